//! A model whose next token is a known function, and a tokenizer whose tokens are bytes.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use dipaco_infer::{
    BoxError, Dtype, Executor, Generation, ModuleMemory, PageCopy, PathVersion, Positions, Route,
    RoutedModel, SequenceRows, ServedPath, TextCodec, TextStream, TokenizerInfo,
};
use dipaco_topology::{LevelConfig, Modules, PathId, Topology, TopologyConfig};

pub const END: u32 = 256;
pub const VOCAB: usize = 257;

/// A model of two levels with two modules each, over bytes. The likeliest next byte is the next letter of the alphabet plus
/// the number of the path; `z` and above end the text. The other logits are a fixed function of token, position and path.
/// A prompt with `!` fails, a prompt with `#` panics, and the logits after a prompt with `$` are no numbers.
pub struct Fake {
    topology: Topology,
    pub context: usize,
    pub gate: Arc<Gate>,
    /// Holds passes of the router back. Their texts are counted before.
    pub router_gate: Gate,
    pub broken: Arc<Broken>,
    /// Number of texts that were routed.
    pub routed: AtomicUsize,
}

impl Fake {
    pub fn new(context: usize) -> Arc<Self> {
        let level = |blocks: &str, embedding| LevelConfig {
            modules: Modules::Count(2),
            blocks: blocks.into(),
            embedding,
            head: !embedding,
            frozen: false,
        };
        let config = TopologyConfig::grid(1, vec![level("0", true), level("1", false)]);
        let topology = Topology::new(&config, 2).unwrap();
        Arc::new(Self {
            topology,
            context,
            gate: Arc::default(),
            router_gate: Gate::default(),
            broken: Arc::default(),
            routed: AtomicUsize::new(0),
        })
    }

    pub fn next(token: u32, path: u32) -> u32 {
        let next = token + 1 + path;
        if token == u32::from(b'~') || next > u32::from(b'z') { END } else { next }
    }
}

/// Names a thread that panics as soon as it asks the model something, outside of any request.
#[derive(Default)]
pub struct Broken(Mutex<Option<&'static str>>);

impl Broken {
    pub fn set(&self, thread: &'static str) {
        *self.0.lock().unwrap() = Some(thread);
    }

    fn meet(&self) {
        let thread = *self.0.lock().unwrap();
        let current = std::thread::current();
        assert!(thread.is_none() || thread != current.name(), "the fake model was asked to end a thread");
    }
}

/// Holds decode steps, or passes of the router, back until a test releases them.
#[derive(Default)]
pub struct Gate {
    shut: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub fn shut(&self) {
        *self.shut.lock().unwrap() = true;
    }

    pub fn open(&self) {
        *self.shut.lock().unwrap() = false;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let shut = self.shut.lock().unwrap();
        drop(self.changed.wait_while(shut, |shut| *shut).unwrap());
    }
}

impl RoutedModel for Fake {
    fn context(&self) -> usize {
        self.context
    }

    fn vocab_size(&self) -> usize {
        self.broken.meet();
        VOCAB
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn prefix_tokens(&self) -> usize {
        4
    }

    fn route(&self, prefixes: &[&[u32]]) -> Result<Vec<Route>, BoxError> {
        self.routed.fetch_add(prefixes.len(), Ordering::SeqCst);
        self.router_gate.pass();
        let route = |prefix: &&[u32]| {
            let path = prefix[0] % 4;
            let distances = (0..4).map(|p: u32| 0.25 + (p ^ path) as f32).collect();
            // As if the router chose the first level by a part of the features.
            let level_distances = vec![Some(0.125), None];
            let prefix_tokens = prefix.len();
            Route { level_distances, prefix_tokens, ..Route::new(PathId(path), distances) }
        };
        Ok(prefixes.iter().map(route).collect())
    }

    fn generation(&self) -> Arc<dyn Generation> {
        Arc::new(FakePaths(Arc::clone(&self.broken)))
    }

    fn module_memory(&self) -> ModuleMemory {
        ModuleMemory { bytes: 4096, modules: 4, loads: 4, ..ModuleMemory::default() }
    }

    fn page_bytes(&self, _: Dtype) -> usize {
        1 << 20
    }

    fn executor(&self, pages: usize, _: Dtype) -> Box<dyn Executor + '_> {
        Box::new(FakeSteps { model: self, pages: vec![[u32::MAX; 16]; pages] })
    }
}

struct FakePaths(Arc<Broken>);

impl Generation for FakePaths {
    fn fingerprint(&self) -> Arc<str> {
        "fp_test".into()
    }

    fn loaded(&self, path: PathId) -> Option<ServedPath> {
        self.0.meet();
        // Every other path is in memory from the start.
        path.0.is_multiple_of(2).then(|| self.prepare(path, &AtomicBool::new(false)).unwrap())
    }

    fn prepare(&self, path: PathId, _: &AtomicBool) -> Result<ServedPath, BoxError> {
        Ok(ServedPath::new(Vec::new(), PathVersion([path.0 as u8; 32])))
    }
}

struct FakeSteps<'a> {
    model: &'a Fake,
    /// The tokens of each page.
    pages: Vec<[u32; 16]>,
}

/// The logits after a token at a position: flat noise with one clear maximum.
pub fn logits(token: u32, position: usize, path: u32) -> Vec<f32> {
    let mut state = (u64::from(token) << 40) ^ ((position as u64) << 8) ^ u64::from(path);
    let mut row: Vec<f32> = (0..VOCAB)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 * 3.0
        })
        .collect();
    row[Fake::next(token, path) as usize] = 6.0;
    row
}

impl Executor for FakeSteps<'_> {
    fn step(&mut self, rows: &[SequenceRows<'_>]) -> Result<Vec<Vec<f32>>, BoxError> {
        self.model.gate.pass();
        rows.iter().map(|rows| self.rows(rows)).collect()
    }

    fn copy_page(&mut self, copy: &PageCopy) -> Result<(), BoxError> {
        Err(format!("the paths have no stage in common: {copy:?}").into())
    }
}

impl FakeSteps<'_> {
    fn rows(&mut self, rows: &SequenceRows<'_>) -> Result<Vec<f32>, BoxError> {
        let &SequenceRows { path, tokens, start, pages, logits: positions, .. } = rows;
        let prompt = start == 0;
        assert!(!(prompt && tokens.contains(&u32::from(b'#'))), "the fake model was asked to panic");
        if prompt && tokens.contains(&u32::from(b'!')) {
            return Err("the fake device failed".into());
        }
        assert!(start + tokens.len() <= self.model.context);
        for (position, &token) in (start..).zip(tokens) {
            self.pages[pages[position / 16] as usize][position % 16] = token;
        }
        assert!(
            (0..start).all(|position| self.pages[pages[position / 16] as usize][position % 16] != u32::MAX)
        );
        let from = tokens.len() - positions.count(tokens.len());
        let rows: Vec<f32> =
            (from..tokens.len()).flat_map(|i| logits(tokens[i], start + i, path.0)).collect();
        let nan = positions != Positions::None && prompt && tokens.contains(&u32::from(b'$'));
        Ok(if nan { vec![f32::NAN; rows.len()] } else { rows })
    }
}

/// Each byte is a token.
pub struct Bytes;

impl TextCodec for Bytes {
    fn encode(&self, text: &str) -> Result<Vec<u32>, BoxError> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, BoxError> {
        let mut stream = self.stream(&[]);
        let text: Result<String, BoxError> = tokens.iter().map(|&token| stream.push(token)).collect();
        Ok(text? + &stream.finish())
    }

    fn token_text(&self, token: u32) -> String {
        String::from_utf8_lossy(&self.token_bytes(token)).into_owned()
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        match u8::try_from(token) {
            Ok(byte) => vec![byte],
            Err(_) if token == END => b"<|end|>".to_vec(),
            Err(_) => Vec::new(),
        }
    }

    fn stream(&self, after: &[u32]) -> Box<dyn TextStream> {
        let mut stream = ByteStream::default();
        for &token in after {
            let _ = stream.push(token);
        }
        Box::new(stream)
    }

    fn end_of_text(&self) -> u32 {
        END
    }

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn info(&self) -> TokenizerInfo {
        TokenizerInfo { class: "PreTrainedTokenizerFast".into(), end_of_text: "<|end|>".into() }
    }
}

/// [`Bytes`] whose texts end with `END` or with this token.
#[allow(dead_code, reason = "a test program may have one end token")]
pub struct TwoEnds(pub u32);

impl TextCodec for TwoEnds {
    fn encode(&self, text: &str) -> Result<Vec<u32>, BoxError> {
        Bytes.encode(text)
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, BoxError> {
        Bytes.decode(tokens)
    }

    fn token_text(&self, token: u32) -> String {
        Bytes.token_text(token)
    }

    fn stream(&self, after: &[u32]) -> Box<dyn TextStream> {
        Bytes.stream(after)
    }

    fn end_of_text(&self) -> u32 {
        END
    }

    fn end_tokens(&self) -> Vec<u32> {
        vec![END, self.0]
    }

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn info(&self) -> TokenizerInfo {
        Bytes.info()
    }
}

#[derive(Default)]
struct ByteStream {
    held: Vec<u8>,
}

impl TextStream for ByteStream {
    fn push(&mut self, token: u32) -> Result<String, BoxError> {
        match u8::try_from(token) {
            Ok(byte) => self.held.push(byte),
            Err(_) if token == END => {}
            Err(_) => return Err(format!("token {token} is not in the vocabulary").into()),
        }
        Ok(match std::str::from_utf8(&self.held) {
            Err(error) if error.error_len().is_none() => String::new(),
            _ => self.finish(),
        })
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}
