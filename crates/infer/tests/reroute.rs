//! Paths that are chosen anew within a text.
#![allow(clippy::unwrap_used)]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/grid.rs"]
mod grid;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dipaco_infer::{
    BoxError, Engine, EngineConfig, EngineError, GenerateRequest, GenerationEvent, ModuleCache, NoObserver,
    RunModel, RunPaths, SamplingParams, Submission,
};
use dipaco_model::{Device, Module, Path, TokenBatch, TokenRows};
use dipaco_topology::PathId;
use fake::{Bytes, VOCAB};
use grid::{config, keys, levels, model, packed, part};

const LONG: Duration = Duration::from_secs(600);

/// The path after these tokens: any function of all of them.
fn choice(tokens: &[u32]) -> PathId {
    PathId((tokens.iter().sum::<u32>() / 3 + tokens.len() as u32) % 4)
}

fn rerouting(limit: Option<usize>) -> Arc<RunModel> {
    let load = |path, level: u16| Ok(packed(&levels(), levels().modules_of(path)[usize::from(level)], 0));
    let paths = RunPaths::new("", &ModuleCache::new(limit), keys(&levels(), 0), Box::new(load));
    let model = Arc::into_inner(model(paths)).unwrap();
    Arc::new(model.with_token_router(Box::new(|tokens| Ok(choice(tokens)))))
}

fn engine(model: &Arc<RunModel>, config: &EngineConfig) -> Engine {
    Engine::start(model.clone(), Arc::new(Bytes), Arc::new(NoObserver), config).unwrap()
}

fn request(number: u32, every: usize) -> GenerateRequest {
    let prompt: Vec<u32> = (0..90 + number).map(|i| (i * i * 7 + number * 31) % 256).collect();
    GenerateRequest {
        path: Some(PathId(number % 4)),
        max_tokens: 30,
        ignore_eos: true,
        log_probs: Some(0),
        prompt_log_probs: Some(0),
        route_every: Some(every),
        sampling: SamplingParams { seed: number.into(), ..SamplingParams::default() },
        ..GenerateRequest::new(prompt)
    }
}

/// What a sequence gave: its tokens with their log-probabilities, and the number of its changes of paths.
#[derive(Debug, Default, Clone, PartialEq)]
struct Answer {
    scores: Vec<(u32, Option<f32>)>,
    reroutes: usize,
}

async fn answers(engine: &Engine, requests: Vec<GenerateRequest>) -> Vec<Answer> {
    let mut all = vec![Answer::default(); requests.len()];
    let mut submission = engine.submit(requests, LONG).unwrap();
    while let Some(event) = submission.next().await.unwrap() {
        let answer = &mut all[event.sequence];
        match event.event {
            GenerationEvent::Started { .. } | GenerationEvent::Began { .. } => {}
            GenerationEvent::Prompt(scores) => {
                answer.scores.extend(scores.iter().map(|s| (s.token, s.log_prob)));
            }
            GenerationEvent::Token { token, score, .. } => {
                answer.scores.push((token, score.unwrap().log_prob));
            }
            GenerationEvent::Finished(finished) => answer.reroutes = finished.reroutes,
        }
    }
    all
}

/// Log-probabilities of all tokens but the first: each chunk by its path, which reads the text from its beginning. This is
/// how the evaluation scores a text with `--reroute`. Also returns the number of changes.
fn scored_in_chunks(tokens: &[u32], first: PathId, every: usize) -> (Vec<f32>, usize) {
    let log_probs = |path: PathId| {
        let modules = levels().modules_of(path).into_iter();
        let modules = modules.map(|id| Module::load(&part(&levels(), id, 0), &Device::Cpu).unwrap().into());
        let path = Path::compose(&config(), &levels(), &modules.collect::<Vec<_>>()).unwrap();
        let inputs = TokenRows::new(&tokens[..tokens.len() - 1], 1, VOCAB).unwrap();
        path.token_log_probs(&TokenBatch::new(inputs, &tokens[1..], VOCAB).unwrap()).unwrap()
    };
    let all: Vec<Vec<f32>> = (0..4).map(|path| log_probs(PathId(path))).collect();
    let path = |chunk: usize| if chunk == 0 { first } else { choice(&tokens[..chunk * every]) };
    let chunks = (tokens.len() - 1) / every;
    let changes = (1..=chunks).filter(|&chunk| path(chunk) != path(chunk - 1)).count();
    let scores = (1..tokens.len()).map(|position| all[path(position / every).index()][position - 1]);
    (scores.collect(), changes)
}

#[tokio::test]
async fn each_chunk_is_scored_and_generated_by_the_path_that_the_tokens_before_it_choose() {
    let model = rerouting(None);
    let engine = engine(&model, &EngineConfig { slots: 4, ..EngineConfig::default() });
    let mut all = 0;
    for every in [1, 16, 33, 64, 500] {
        let requests: Vec<_> = (0..6).map(|number| request(number, every)).collect();
        for (number, answer) in (0..).zip(answers(&engine, requests).await) {
            let tokens: Vec<u32> = answer.scores.iter().map(|score| score.0).collect();
            assert_eq!(tokens.len(), 120 + number as usize);
            let (expected, changes) = scored_in_chunks(&tokens, PathId(number % 4), every);
            for (position, (found, expected)) in answer.scores[1..].iter().zip(&expected).enumerate() {
                let found = found.1.unwrap();
                assert!((found - expected).abs() < 1e-5, "{every} {number} {position}: {found} {expected}");
            }
            assert_eq!(answer.reroutes, changes, "W = {every}");
            all += changes;
        }
    }
    assert!(all > 100, "the paths were meant to change often: {all}");
}

/// The first chunk is the first token, whose row is the next path's. Nothing but the sequence itself wakes the engine.
#[tokio::test]
async fn a_sequence_alone_goes_on_behind_a_chunk_without_rows() {
    let engine = engine(&rerouting(None), &EngineConfig::default());
    let text = GenerateRequest { max_tokens: 1, ..request(1, 1) };
    let mut submission = engine.submit(vec![text], Duration::from_secs(60)).unwrap();
    let mut tokens = 0;
    while let Some(event) = submission.next().await.unwrap() {
        match event.event {
            GenerationEvent::Prompt(scores) => tokens += scores.len(),
            GenerationEvent::Token { .. } => tokens += 1,
            _ => {}
        }
    }
    assert_eq!(tokens, 92);
}

/// An engine whose router of chunks reports the first token of each text, and then waits for a message.
fn with_held_router() -> (Engine, Sender<()>, Receiver<u32>) {
    let ((begins, begun), (go, held)) = (channel(), channel());
    let held = Mutex::new(held);
    let router = move |tokens: &[u32]| -> Result<PathId, BoxError> {
        begins.send(tokens[0])?;
        held.lock().unwrap().recv()?;
        Ok(PathId(0))
    };
    let model = Arc::into_inner(rerouting(None)).unwrap().with_token_router(Box::new(router));
    (engine(&Arc::new(model), &EngineConfig::default()), go, begun)
}

/// A request that needs one pass over a chunk: without scores the path of the last chunk is the first that is asked for.
fn one_pass(number: u32) -> GenerateRequest {
    GenerateRequest { prompt_log_probs: None, max_tokens: 1, ..request(number, 32) }
}

/// The token by which the router that is held names the request.
fn first(number: u32) -> u32 {
    request(number, 32).prompt[0]
}

/// A request whose path does not change.
fn plain(path: Option<PathId>) -> GenerateRequest {
    GenerateRequest { path, route_every: None, ..one_pass(0) }
}

/// Waits for the answer to requests for at most a minute.
async fn in_time(mut submission: Submission) {
    let all = async { while submission.next().await.unwrap().is_some() {} };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
}

#[tokio::test]
async fn the_router_reads_no_chunk_of_a_caller_that_went_away() {
    let (engine, go, begun) = with_held_router();
    let ask = |number| engine.submit(vec![one_pass(number)], LONG).unwrap();
    let mut stay = vec![ask(0)];
    assert_eq!(begun.recv(), Ok(first(0)));
    // Both wait for the first.
    stay.push(ask(1));
    let gone = ask(2);
    go.send(()).unwrap();
    assert_eq!(begun.recv(), Ok(first(1)));
    drop(gone);
    stay.push(ask(3));
    (0..3).for_each(|_| go.send(()).unwrap());
    for submission in stay {
        in_time(submission).await;
    }
    assert_eq!(begun.try_iter().collect::<Vec<_>>(), [first(3)]);
}

#[tokio::test]
async fn a_sequence_whose_path_is_known_waits_for_no_pass_of_another() {
    let (engine, _go, begun) = with_held_router();
    in_time(engine.submit(vec![plain(None)], LONG).unwrap()).await;
    let _held = engine.submit(vec![one_pass(1)], LONG).unwrap();
    assert_eq!(begun.recv(), Ok(first(1)));
    for path in [Some(PathId(3)), None] {
        in_time(engine.submit(vec![plain(path)], LONG).unwrap()).await;
    }
    let prompt = plain(None).prompt;
    tokio::time::timeout(Duration::from_secs(60), engine.route(&prompt)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_new_prompt_waits_for_one_chunk_of_others_at_most() {
    let (engine, go, begun) = with_held_router();
    let _held: Vec<_> = (1..4).map(|number| engine.submit(vec![one_pass(number)], LONG).unwrap()).collect();
    assert_eq!(begun.recv(), Ok(first(1)));
    let new = engine.submit(vec![plain(None)], LONG).unwrap();
    go.send(()).unwrap();
    in_time(new).await;
}

#[tokio::test]
async fn the_chunks_of_one_client_do_not_hold_up_that_of_another() {
    let (engine, go, begun) = with_held_router();
    let ask =
        |number, client| engine.submit(vec![GenerateRequest { client, ..one_pass(number) }], LONG).unwrap();
    let mut all = vec![ask(0, 1)];
    assert_eq!(begun.recv(), Ok(first(0)));
    all.extend([ask(1, 1), ask(2, 1), ask(3, 2)]);
    (0..4).for_each(|_| go.send(()).unwrap());
    for submission in all {
        in_time(submission).await;
    }
    assert_eq!(begun.try_iter().collect::<Vec<_>>(), [3, 1, 2].map(first));
}

#[tokio::test]
async fn the_choices_of_a_prompt_cost_one_pass() {
    let (engine, go, begun) = with_held_router();
    (0..4).for_each(|_| go.send(()).unwrap());
    in_time(engine.submit(vec![one_pass(1); 4], LONG).unwrap()).await;
    assert_eq!(begun.try_iter().collect::<Vec<_>>(), [first(1)]);
}

#[tokio::test]
async fn a_prompt_without_scores_begins_on_the_path_of_its_last_chunk() {
    let model = rerouting(None);
    let engine = engine(&model, &EngineConfig::default());
    let scored = answers(&engine, (0..6).map(|number| request(number, 32)).collect()).await;
    let unscored = |number| GenerateRequest { prompt_log_probs: None, ..request(number, 32) };
    for (number, (scored, unscored)) in
        scored.into_iter().zip(answers(&engine, (0..6).map(unscored).collect()).await).enumerate()
    {
        assert_eq!(unscored.scores, scored.scores[90 + number..]);
        assert!(unscored.reroutes <= 2, "{unscored:?}");
    }
}

/// No path is asked for after the last token.
#[tokio::test]
async fn a_text_that_ends_with_a_chunk_has_no_further_path() {
    let engine = engine(&rerouting(None), &EngineConfig::default());
    for number in 0..4 {
        let text = GenerateRequest { max_tokens: 0, ..request(number, 90 + number as usize) };
        let answer = answers(&engine, vec![text]).await.remove(0);
        assert_eq!((answer.scores.len(), answer.reroutes), (90 + number as usize, 0));
    }
}

#[tokio::test]
async fn few_pages_and_little_memory_change_nothing() {
    let model = rerouting(None);
    let all = || (0..8).map(|number| request(number, 16)).collect::<Vec<_>>();
    let expected = answers(&engine(&model, &EngineConfig::default()), all()).await;
    let path: usize = levels().modules_of(PathId(0)).iter().map(|id| packed(&levels(), *id, 0).bytes()).sum();
    let tight = EngineConfig { slots: 3, kv_bytes: 1, ..EngineConfig::default() };
    let found = answers(&engine(&rerouting(Some(path)), &tight), all()).await;
    assert!(found == expected, "{found:?}");
}

#[tokio::test]
async fn requests_that_no_router_serves_are_refused() {
    let load = |path, level: u16| Ok(packed(&levels(), levels().modules_of(path)[usize::from(level)], 0));
    let without = model(RunPaths::new("", &ModuleCache::new(None), keys(&levels(), 0), Box::new(load)));
    for (model, every) in [(without, 16), (rerouting(None), 0)] {
        let engine = engine(&model, &EngineConfig::default());
        let refused = engine.submit(vec![request(0, every)], LONG).err().unwrap();
        assert!(matches!(refused, EngineError::Parameter { field: "route_every", .. }), "{refused}");
    }
    let model = Arc::into_inner(rerouting(None)).unwrap();
    let failing = Arc::new(model.with_token_router(Box::new(|_| Err("the router is damaged".into()))));
    let engine = engine(&failing, &EngineConfig::default());
    let mut submission = engine.submit(vec![request(0, 16)], LONG).unwrap();
    let failed = loop {
        match submission.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the sequence ended without its router"),
            Err(error) => break error,
        }
    };
    assert!(failed.to_string().contains("choosing the path of a chunk"), "{failed}");
    assert_eq!(engine.load().running, 0);
}
