//! Tests of the engine over real modules.
#![allow(clippy::unwrap_used)]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/grid.rs"]
mod grid;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use dipaco_infer::{
    Engine, EngineError, GenerateRequest, GenerationEvent, ModuleCache, RoutedModel, RunModel, RunPaths,
    SamplingParams, SequenceEvent,
};
use dipaco_model::{Device, ModelError, Module, PackedModule, Path, TokenBatch, TokenError, TokenRows};
use dipaco_topology::{ModuleId, PathId, Topology, TopologyConfig};
use fake::VOCAB;
use grid::{config, engine, keys, levels, model, packed, part};

type Loads = Arc<Mutex<BTreeMap<ModuleId, usize>>>;

/// A run of 2 × 2 paths. Module `level/index` is that level of a random model with the seed `index`.
fn run() -> (Arc<RunModel>, Loads) {
    run_of(0)
}

/// The paths of [`run`], with modules of other seeds in each round.
fn paths(levels: &Topology, cache: &Arc<ModuleCache>, loads: &Loads, round: u32) -> RunPaths {
    let (own, loads) = (levels.clone(), Arc::clone(loads));
    let load = move |path, level| {
        let module = own.modules_of(path)[usize::from(level)];
        *loads.lock().unwrap().entry(module).or_insert(0) += 1;
        Ok(packed(&own, module, round))
    };
    RunPaths::new(&format!("round {round}"), cache, keys(levels, round), Box::new(load))
}

fn run_of(round: u32) -> (Arc<RunModel>, Loads) {
    let loads = Loads::default();
    let paths = paths(&levels(), &ModuleCache::new(None), &loads, round);
    (model(paths), loads)
}

/// A path as training and evaluation compute it.
fn composed(levels: &Topology, path: PathId) -> Path {
    let modules = levels.modules_of(path).into_iter().map(|module| part(levels, module, 0));
    let modules: Vec<_> = modules.map(|part| Module::load(&part, &Device::Cpu).unwrap().into()).collect();
    Path::compose(&config(), levels, &modules).unwrap()
}

/// The path of a sequence, and its tokens with their scores.
type Scored = (u32, Vec<(u32, Option<f32>)>);

async fn scores(engine: &Engine, requests: Vec<GenerateRequest>) -> Vec<Scored> {
    let mut all = vec![(u32::MAX, Vec::new()); requests.len()];
    let mut submission = engine.submit(requests, Duration::from_secs(600)).unwrap();
    while let Some(event) = submission.next().await.unwrap() {
        add(&mut all, event);
    }
    all
}

/// Adds an event to the path and the scores of its sequence.
fn add(all: &mut [Scored], SequenceEvent { sequence, event }: SequenceEvent) {
    let (path, scores) = &mut all[sequence];
    match event {
        GenerationEvent::Started { path: started, .. } => *path = started.0,
        GenerationEvent::Prompt(prompt) => scores.extend(prompt.into_iter().map(|s| (s.token, s.log_prob))),
        GenerationEvent::Token { token, score, .. } => scores.push((token, score.unwrap().log_prob)),
        GenerationEvent::Began { .. } | GenerationEvent::Finished(_) => {}
    }
}

fn request(number: u32) -> GenerateRequest {
    let prompt: Vec<u32> = (0..130 + number).map(|i| (i * i * 7 + number * 31) % 256).collect();
    GenerateRequest {
        max_tokens: 20,
        ignore_eos: true,
        log_probs: Some(1),
        prompt_log_probs: Some(1),
        sampling: SamplingParams { seed: number.into(), ..SamplingParams::default() },
        ..GenerateRequest::new(prompt)
    }
}

#[tokio::test]
async fn scores_are_those_of_the_composed_path_and_modules_are_loaded_once() {
    let (model, loads) = run();
    let engine = engine(&model, 4);
    let mut taken = Vec::new();
    for (number, (path, scores)) in (0..).zip(scores(&engine, (0..12).map(request).collect()).await) {
        let tokens: Vec<u32> = scores.iter().map(|s| s.0).collect();
        assert_eq!(tokens[..130 + number as usize], *request(number).prompt);
        assert_eq!(model.route(&[&tokens[..32]]).unwrap()[0].path, PathId(path));
        let count = tokens.len() - 1;
        let path = composed(model.topology(), PathId(path));
        let vocabulary = path.config().vocab_size;
        let inputs = TokenRows::new(&tokens[..count], 1, vocabulary).unwrap();
        let batch = TokenBatch::new(inputs, &tokens[1..], vocabulary).unwrap();
        let whole = path.token_log_probs(&batch).unwrap();
        for (position, (one, all)) in scores[1..].iter().zip(&whole).enumerate() {
            assert!((one.1.unwrap() - all).abs() < 1e-5, "{number} {position}: {one:?} {all}");
        }
        taken.push(model.route(&[&tokens[..32]]).unwrap()[0].path);
    }
    taken.sort_unstable();
    taken.dedup();
    assert!(taken.len() > 1, "the prompts were meant to take several paths: {taken:?}");
    assert_eq!(model.newest().preload().unwrap(), 4);
    let expected = model.topology().module_ids().map(|module| (module, 1)).collect();
    assert_eq!(*loads.lock().unwrap(), expected);
}

#[tokio::test]
async fn the_same_bits_come_out_alone_and_among_others() {
    let (model, _) = run();
    let together = scores(&engine(&model, 4), (0..8).map(request).collect()).await;
    let alone = engine(&model, 1);
    for (number, expected) in (0..).zip(together) {
        assert_eq!(scores(&alone, vec![request(number)]).await, [expected]);
    }
}

#[test]
fn a_missing_router_or_path_is_named() {
    let (model, _) = run();
    let gone = |paths: usize| {
        let paths = keys(model.topology(), 0)[..paths].to_vec();
        RunPaths::new("", &ModuleCache::new(None), paths, Box::new(|_, _| Err("the disk is gone".into())))
    };
    let topology = model.topology().clone();
    let error = RunModel::new(config(), topology, None, gone(4)).err().unwrap();
    assert!(error.to_string().contains("4 paths but no router"), "{error}");
    let dense = Topology::new(&TopologyConfig::dense(2), 2).unwrap();
    let model = RunModel::new(config(), dense, None, gone(1)).unwrap();
    assert_eq!(model.route(&[&[1]]).unwrap()[0].path, PathId(0));
    let prepare = |path| model.generation().prepare(path, &AtomicBool::new(false));
    let error = prepare(PathId(0)).unwrap_err();
    assert_eq!(error.to_string(), "path 0 can't be loaded");
    assert_eq!(error.source().unwrap().to_string(), "the disk is gone");
    assert!(prepare(PathId(1)).is_err());
}

/// Sequences of eight prompts that run while the weights are replaced again and again.
#[tokio::test]
async fn a_sequence_keeps_the_weights_of_its_submission_and_old_ones_are_freed() {
    const ROUNDS: u32 = 4;
    let mut expected = Vec::new();
    for round in 0..ROUNDS {
        let (model, _) = run_of(round);
        expected.push(scores(&engine(&model, 8), (0..8).map(request).collect()).await);
    }
    assert_ne!(expected[0], expected[1]);

    let loads = Loads::default();
    let cache = ModuleCache::new(None);
    let model = model(paths(&levels(), &cache, &loads, 0));
    let engine = engine(&model, 8);
    let mut answers = Vec::new();
    let mut old = Vec::new();
    for round in 0..ROUNDS {
        if round > 0 {
            let paths = paths(model.topology(), &cache, &loads, round);
            paths.preload().unwrap();
            let modules = model.newest().path(PathId(0)).unwrap().modules;
            old.extend(modules.iter().map(Arc::downgrade));
            model.replace(paths);
        }
        let mut submission = engine.submit((0..8).map(request).collect(), Duration::from_secs(600)).unwrap();
        assert_eq!(submission.fingerprint(), format!("round {round}"));
        // Some sequences begin before the weights change, some after it.
        let first = submission.next().await.unwrap().unwrap();
        answers.push((submission, vec![first]));
    }
    for (round, (mut submission, mut events)) in answers.into_iter().enumerate() {
        while let Some(event) = submission.next().await.unwrap() {
            events.push(event);
        }
        let mut found = vec![(u32::MAX, Vec::new()); 8];
        events.into_iter().for_each(|event| add(&mut found, event));
        assert!(found == expected[round], "round {round} is mixed with another");
    }
    // The engine drops a sequence before it sends the last event.
    assert!(old.iter().all(|module| module.upgrade().is_none()), "modules of old rounds stay in memory");
    assert_eq!((cache.memory().modules, cache.memory().evictions), (4, 0));
}

/// Weights at whose end another thread asks the engine something. Tells whether it got its answer meanwhile.
struct AskedAtTheEnd {
    engine: Arc<OnceLock<Weak<Engine>>>,
    answered: Sender<bool>,
}

impl AskedAtTheEnd {
    fn load(&self, path: PathId, level: u16) -> PackedModule {
        packed(&levels(), levels().modules_of(path)[usize::from(level)], 0)
    }
}

impl Drop for AskedAtTheEnd {
    fn drop(&mut self) {
        let engine = self.engine.get().and_then(Weak::upgrade);
        let (done, answer) = channel();
        std::thread::spawn(move || {
            drop(engine.map(|engine| engine.waiting_by_path()));
            let _ = done.send(());
        });
        let _ = self.answered.send(answer.recv_timeout(Duration::from_secs(10)).is_ok());
    }
}

/// The caller of the last sequence with old weights goes away, so they end on the thread of the steps.
#[tokio::test]
async fn nobody_waits_for_the_engine_while_old_weights_end() {
    let (answered, answers) = channel();
    let place = Arc::<OnceLock<Weak<Engine>>>::default();
    let old = AskedAtTheEnd { engine: Arc::clone(&place), answered };
    let cache = ModuleCache::new(None);
    let load = move |path, level| Ok(old.load(path, level));
    let first = RunPaths::new("first", &cache, keys(&levels(), 0), Box::new(load));
    let model = Arc::into_inner(model(first)).unwrap().with_token_router(Box::new(|_| Ok(PathId(0))));
    let model = Arc::new(model);
    let engine = Arc::new(engine(&model, 4));
    place.set(Arc::downgrade(&engine)).unwrap();
    // A chunk longer than the context: the sequence keeps its weights to its end, and asks for no other path.
    let request =
        GenerateRequest { path: Some(PathId(0)), max_tokens: 290, route_every: Some(1000), ..request(0) };
    let request = GenerateRequest { prompt: [1, 2, 3].into(), ..request };
    let mut submission = engine.submit(vec![request], Duration::from_secs(600)).unwrap();
    while !matches!(submission.next().await.unwrap().unwrap().event, GenerationEvent::Token { .. }) {}
    model.replace(paths(model.topology(), &cache, &Loads::default(), 1));
    drop(submission);
    assert!(
        answers.recv_timeout(Duration::from_secs(60)).unwrap(),
        "the engine is locked while old weights end"
    );
}

#[test]
fn older_weights_count_until_nobody_has_or_can_load_a_module_of_theirs() {
    let cache = ModuleCache::new(None);
    let new = |round| paths(&levels(), &cache, &Loads::default(), round);
    let model = model(new(0));
    // As a sequence that may change its path, and as one that keeps it.
    let (older, path) = (model.newest(), model.newest().path(PathId(1)).unwrap());
    assert!(model.is_settled());
    model.replace(new(1));
    assert!(!model.is_settled(), "other modules of the first round can be loaded");
    drop(older);
    assert!(!model.is_settled(), "a path of the first round is in memory");
    drop(path);
    assert!(model.is_settled());
    let same = new(1);
    assert!(model.is_settled(), "the same modules are no older ones");
    drop(same);
    assert!(model.is_settled());
}

#[test]
fn a_prefix_with_a_token_outside_of_the_vocabulary_gets_no_path() {
    let (model, _) = run();
    let vocabulary = VOCAB as u32;
    for prefix in [&[vocabulary][..], &[1, u32::MAX, 2]] {
        let refused = model.route(&[prefix]).unwrap_err();
        let refused = refused.downcast::<ModelError>().unwrap();
        assert!(matches!(*refused, ModelError::Tokens(TokenError::Outside { vocabulary: VOCAB, .. })));
        // The same ids are refused where a request enters.
        let engine =
            engine(&model, 1).submit(vec![GenerateRequest::new(prefix.to_vec())], Duration::from_secs(1));
        assert!(matches!(engine.err(), Some(EngineError::Token { vocab_size: VOCAB, .. })));
    }
}
