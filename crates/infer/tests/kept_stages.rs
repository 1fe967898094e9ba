//! Sequences share what the common first stages of their paths have computed of a text.
#![allow(clippy::unwrap_used)]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/grid.rs"]
mod grid;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dipaco_infer::{
    BoxError, Dtype, Engine, EngineConfig, Executor, GenerateRequest, Generation, GenerationEvent,
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
    fn stages(&self, modules: &[ModuleKey]) -> Vec<Vec<ModuleKey>> {
        self.model.stages(modules)
    }
    fn generation(&self) -> Arc<dyn Generation> {
        self.model.generation()
    }
    fn module_memory(&self) -> ModuleMemory {
        self.model.module_memory()
    }
    fn page_bytes(&self, kv: Dtype) -> usize {
        self.model.page_bytes(kv)
    }
    fn executor(&self, pages: usize, kv: Dtype) -> Box<dyn Executor + '_> {
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

/// The paths with these rounds of the two levels.
fn paths(rounds: [u32; 2]) -> RunPaths {
    let own = levels();
    let load = move |path, level: u16| {
        let module = own.modules_of(path)[usize::from(level)];
        Ok(packed(&own, module, rounds[usize::from(level)]))
    };
    let mut all = keys(&levels(), 0);
    for path in &mut all {
        path.version.0[1..3].copy_from_slice(&rounds.map(|round| round as u8));
        for (key, round) in path.modules.iter_mut().zip(rounds) {
            key.content[1] = round as u8;
        }
    }
    RunPaths::new("", &ModuleCache::new(None), all, Box::new(load))
}

/// A model whose paths change to the next of `order` at each chunk.
fn rerouting(order: [u32; 4]) -> RunModel {
    let router = move |tokens: &[u32]| Ok(PathId(order[tokens.len() / EVERY % 4]));
    Arc::into_inner(model(paths([0; 2]))).unwrap().with_token_router(Box::new(router))
}

fn engine(model: RunModel) -> (Arc<Counting>, Engine) {
    let counting = Arc::new(Counting { model: Arc::new(model), rows: Mutex::default() });
    let engine =
        Engine::start(counting.clone(), Arc::new(Bytes), Arc::new(NoObserver), &EngineConfig::default());
    (counting, engine.unwrap())
}

/// A request for `max_tokens` tokens behind a prompt of `tokens` tokens.
fn request(path: u32, tokens: u32, max_tokens: usize) -> GenerateRequest {
    let prompt: Vec<u32> = (0..tokens).map(|i| i * i * 7 % 256).collect();
    GenerateRequest {
        path: Some(PathId(path)),
        max_tokens,
        ignore_eos: true,
        log_probs: Some(0),
        sampling: SamplingParams { seed: 3, ..SamplingParams::default() },
        ..GenerateRequest::new(prompt)
    }
}

/// Tokens with their log-probabilities.
type Scores = Vec<(u32, Option<f32>)>;

/// Answers a request. Returns the rows of the two stages, and the tokens with their log-probabilities.
async fn answer(
    (counting, engine): &(Arc<Counting>, Engine),
    request: GenerateRequest,
) -> ([usize; 2], Scores) {
    *counting.rows.lock().unwrap() = [0; 2];
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

/// Answers a request whose path changes to the next of `order` at each chunk.
async fn count(order: [u32; 4], score_prompt: bool) -> ([usize; 2], Scores) {
    let request = GenerateRequest {
        prompt_log_probs: score_prompt.then_some(0),
        route_every: Some(EVERY),
        ..request(order[0], 100, TOKENS - 100)
    };
    answer(&engine(rerouting(order)), request).await
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
    // The first stage changes, so both read the text again. Each module of the first stage comes back with another path, and
    // finds 1, 3 and 5 full pages. The fourth change comes back to the first path, whose second stage has one page.
    let (rows, _) = count([0, 2, 1, 3], true).await;
    assert_eq!(rows, [ROWS + 31 + (63 - 16) + (95 - 48) + (127 - 80), ROWS + 31 + 63 + 95 + (127 - 16)]);
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

#[tokio::test]
async fn paths_with_one_first_module_read_a_prompt_through_it_once() {
    let warm = engine(rerouting([0; 4]));
    assert_eq!(answer(&warm, request(0, 64, 4)).await.0, [67; 2]);
    for (path, rows) in [(1, [3, 67]), (2, [67; 2]), (3, [3, 67])] {
        let cold = answer(&engine(rerouting([0; 4])), request(path, 64, 4)).await;
        let (found, scores) = answer(&warm, request(path, 64, 4)).await;
        assert_eq!((cold.0, found), ([67; 2], rows), "path {path}");
        assert_eq!(scores, cold.1, "path {path}");
    }
    // A path that ran before has all but the page of the last token.
    assert_eq!(answer(&warm, request(0, 64, 4)).await.0, [3, 19]);
    // Another client finds no page, of this path or of one with the same first module.
    let other = GenerateRequest { client: 1, ..request(0, 64, 4) };
    assert_eq!(answer(&warm, other).await.0, [67; 2]);
    // Scores need all rows.
    let scored = GenerateRequest { prompt_log_probs: Some(0), ..request(1, 64, 4) };
    assert_eq!(answer(&warm, scored).await.0, [67; 2]);
}

#[tokio::test]
async fn new_weights_of_a_level_keep_what_the_levels_below_it_have_read() {
    let warm = engine(rerouting([0; 4]));
    let first = answer(&warm, request(0, 64, 4)).await;
    for (rounds, rows) in [([0, 1], [3, 67]), ([1, 1], [67; 2]), ([1, 0], [3, 67])] {
        warm.0.model.replace(paths(rounds));
        let cold = rerouting([0; 4]);
        cold.replace(paths(rounds));
        let expected = answer(&engine(cold), request(0, 64, 4)).await.1;
        assert_ne!(expected, first.1);
        assert_eq!(answer(&warm, request(0, 64, 4)).await, (rows, expected), "rounds {rounds:?}");
    }
    // Weights that come back find all of their pages.
    warm.0.model.replace(paths([0; 2]));
    assert_eq!(answer(&warm, request(0, 64, 4)).await, ([3, 19], first.1));
}

#[tokio::test]
async fn a_server_without_paths_within_a_text_shares_pages_of_equal_paths_only() {
    let warm = engine(Arc::into_inner(model(paths([0; 2]))).unwrap());
    for (path, rows) in [(0, [67; 2]), (1, [67; 2]), (0, [19; 2])] {
        assert_eq!(answer(&warm, request(path, 64, 4)).await.0, rows, "path {path}");
    }
}
