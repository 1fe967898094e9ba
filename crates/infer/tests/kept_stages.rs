//! A sequence that changes its path keeps what the common stages have computed.
#![allow(clippy::unwrap_used)]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/grid.rs"]
mod grid;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dipaco_infer::{
    BoxError, Engine, EngineConfig, Executor, GenerateRequest, Generation, GenerationEvent, KvType,
    ModuleCache, ModuleKey, ModuleMemory, NoObserver, PageCopy, Route, RoutedModel, RunModel, RunPaths,
    SamplingParams, SequenceRows,
};
use dipaco_topology::{PathId, Topology};
use fake::Bytes;
use grid::{keys, levels, model, packed};

/// W, and the tokens of the text: 100 of the prompt and 60 generated.
const EVERY: usize = 32;
const TOKENS: usize = 160;

/// A model that counts the rows of its two stages.
struct Counting {
    model: Arc<RunModel>,
    rows: Mutex<[usize; 2]>,
}

impl RoutedModel for Counting {
    fn context(&self) -> usize {
        self.model.context()
    }
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }
    fn topology(&self) -> &Topology {
        self.model.topology()
    }
    fn prefix_tokens(&self) -> usize {
        self.model.prefix_tokens()
    }
    fn route(&self, prefixes: &[&[u32]]) -> Result<Vec<Route>, BoxError> {
        self.model.route(prefixes)
    }
    fn reroutes(&self) -> bool {
        self.model.reroutes()
    }
    fn reroute(&self, tokens: &[u32]) -> Result<PathId, BoxError> {
        self.model.reroute(tokens)
    }
    fn shared_stages(&self, one: &[ModuleKey], other: &[ModuleKey]) -> usize {
        self.model.shared_stages(one, other)
    }
    fn generation(&self) -> Arc<dyn Generation> {
        self.model.generation()
    }
    fn module_memory(&self) -> ModuleMemory {
        self.model.module_memory()
    }
    fn page_bytes(&self, kv: KvType) -> usize {
        self.model.page_bytes(kv)
    }
    fn executor(&self, pages: usize, kv: KvType) -> Box<dyn Executor + '_> {
        Box::new(CountingSteps { steps: self.model.executor(pages, kv), rows: &self.rows })
    }
}

struct CountingSteps<'a> {
    steps: Box<dyn Executor + 'a>,
    rows: &'a Mutex<[usize; 2]>,
}

impl Executor for CountingSteps<'_> {
    fn step(&mut self, rows: &[SequenceRows<'_>]) -> Result<Vec<Vec<f32>>, BoxError> {
        let mut counts = self.rows.lock().unwrap();
        for sequence in rows {
            counts[sequence.stage..].iter_mut().for_each(|count| *count += sequence.tokens.len());
        }
        self.steps.step(rows)
    }
    fn copy_page(&mut self, copy: &PageCopy) -> Result<(), BoxError> {
        self.steps.copy_page(copy)
    }
}

/// Answers a request whose path changes to the next of `paths` at each chunk. Returns the rows of the two stages, and the
/// tokens with their log-probabilities.
async fn count(paths: [u32; 4], score_prompt: bool) -> ([usize; 2], Vec<(u32, Option<f32>)>) {
    let load = |path, level: u16| Ok(packed(&levels(), levels().modules_of(path)[usize::from(level)], 0));
    let grid = model(RunPaths::new("", &ModuleCache::new(None), keys(&levels(), 0), Box::new(load)));
    let router = move |tokens: &[u32]| Ok(PathId(paths[tokens.len() / EVERY % 4]));
    let model = Arc::into_inner(grid).unwrap().with_token_router(Box::new(router));
    let counting = Arc::new(Counting { model: Arc::new(model), rows: Mutex::default() });
    let engine =
        Engine::start(counting.clone(), Arc::new(Bytes), Arc::new(NoObserver), &EngineConfig::default())
            .unwrap();
    // Without those of the first step, for which nobody waits.
    *counting.rows.lock().unwrap() = [0; 2];
    let prompt: Vec<u32> = (0..100).map(|i| i * i * 7 % 256).collect();
    let request = GenerateRequest {
        path: Some(PathId(paths[0])),
        max_tokens: TOKENS - prompt.len(),
        ignore_eos: true,
        log_probs: Some(0),
        prompt_log_probs: score_prompt.then_some(0),
        route_every: Some(EVERY),
        sampling: SamplingParams { seed: 3, ..SamplingParams::default() },
        ..GenerateRequest::new(prompt)
    };
    let mut submission = engine.submit(vec![request], Duration::from_secs(600)).unwrap();
    let mut scores = Vec::new();
    while let Some(event) = submission.next().await.unwrap() {
        match event.event {
            GenerationEvent::Prompt(prompt) => scores.extend(prompt.iter().map(|s| (s.token, s.log_prob))),
            GenerationEvent::Token { token, score, .. } => scores.push((token, score.unwrap().log_prob)),
            GenerationEvent::Started { .. }
            | GenerationEvent::Began { .. }
            | GenerationEvent::Finished(_) => {}
        }
    }
    let rows = *counting.rows.lock().unwrap();
    (rows, scores)
}

/// The row of the last token predicts nothing and does not run.
const ROWS: usize = TOKENS - 1;

#[tokio::test]
async fn the_stages_below_the_first_that_differs_do_not_run_again() {
    // Nothing changes: each row runs once in each stage.
    assert_eq!(count([0; 4], true).await.0, [ROWS; 2]);
    // At 32, 64, 96 and 128 tokens the first stage stays, and the second is another each time. Before a change, 15 rows are
    // in a page that is not full: they run again in both stages.
    // The second stage also keeps the full pages of the time when its path was chosen before: 1, 3 and 5 pages.
    let (rows, _) = count([0, 1, 0, 1], true).await;
    assert_eq!(rows, [ROWS + 4 * 15, ROWS + 31 + (63 - 16) + (95 - 48) + (127 - 80)]);
    // The first stage changes, so both read the text again. The fourth change comes back to the first path, with one page.
    let (rows, _) = count([0, 2, 1, 3], true).await;
    assert_eq!(rows, [ROWS + 31 + 63 + 95 + (127 - 16); 2]);
}

#[tokio::test]
async fn a_prompt_without_scores_keeps_them_too() {
    // The prompt begins on the path of its last chunk, so the path changes once, at 128 tokens.
    let (rows, _) = count([0, 0, 0, 0], false).await;
    assert_eq!(rows, [ROWS; 2]);
    let (rows, unscored) = count([1, 0, 0, 0], false).await;
    assert_eq!(rows, [ROWS + 15, ROWS + 127]);
    let (_, scored) = count([1, 0, 0, 0], true).await;
    assert_eq!(unscored, scored[100..]);
}
