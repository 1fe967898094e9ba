//! Modules that are loaded when a sequence needs them, under a limit of memory.
#![allow(clippy::unwrap_used)]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/grid.rs"]
mod grid;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use dipaco_infer::{
    EngineError, GenerateRequest, Generation, GenerationEvent, ModuleCache, RoutedModel, RunModel, RunPaths,
    Submission,
};
use dipaco_topology::{ModuleId, PathId};
use grid::{engine, keys, levels, model, packed};

const LONG: Duration = Duration::from_secs(600);

/// Bytes of a module of each level.
fn sizes() -> [usize; 2] {
    [0, 1].map(|level| packed(&levels(), ModuleId { level, index: 0 }, 0).bytes())
}

/// The grid under a limit.
fn limited(limit: Option<usize>) -> (Arc<RunModel>, Arc<ModuleCache>) {
    let cache = ModuleCache::new(limit);
    let load = |path, level: u16| Ok(packed(&levels(), levels().modules_of(path)[usize::from(level)], 0));
    (model(RunPaths::new("", &cache, keys(&levels(), 0), Box::new(load))), cache)
}

fn request(path: u32, number: u32) -> GenerateRequest {
    let prompt: Vec<u32> = (0..20 + number).map(|i| (i * i * 7 + number * 31) % 256).collect();
    GenerateRequest {
        path: Some(PathId(path)),
        ignore_eos: true,
        log_probs: Some(1),
        ..GenerateRequest::new(prompt)
    }
}

/// Tokens and bits of the log-probabilities of each sequence. `look` is called after each event.
async fn answers(mut submission: Submission, look: impl Fn()) -> Result<Vec<Vec<(u32, u32)>>, EngineError> {
    let mut answers = Vec::new();
    while let Some(event) = submission.next().await? {
        look();
        if answers.len() <= event.sequence {
            answers.resize(event.sequence + 1, Vec::new());
        }
        if let GenerationEvent::Token { token, score, .. } = event.event {
            answers[event.sequence].push((token, score.unwrap().log_prob.unwrap().to_bits()));
        }
    }
    Ok(answers)
}

#[tokio::test]
async fn all_paths_answer_with_the_same_bits_under_a_limit_that_holds_a_part() {
    let all = || (0..24).map(|number| request(number % 4, number)).collect::<Vec<_>>();
    let (unlimited, cache) = limited(None);
    let expected = answers(engine(&unlimited, 8).submit(all(), LONG).unwrap(), || {}).await.unwrap();
    let memory = cache.memory();
    assert_eq!((memory.bytes, memory.loads, memory.evictions), (2 * (sizes()[0] + sizes()[1]), 4, 0));

    let [first, second] = sizes();
    // One path; one path and a module of either level.
    for limit in [first + second, 2 * first + second, first + 2 * second + 7] {
        let (model, cache) = limited(Some(limit));
        let look = || assert!(cache.memory().bytes <= limit, "{:?} exceeds {limit}", cache.memory());
        let found = answers(engine(&model, 8).submit(all(), LONG).unwrap(), look).await.unwrap();
        assert!(found == expected, "a limit of {limit} bytes changes an answer");
        let memory = cache.memory();
        assert_eq!(memory.loads, memory.evictions + memory.modules as u64);
        assert!(memory.evictions > 0, "{memory:?}");
        assert_eq!(model.module_memory(), memory);
    }
}

#[tokio::test]
async fn a_module_that_is_being_loaded_holds_up_nobody_else() {
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let cache = ModuleCache::new(None);
    let load = move |path: PathId, level: u16| {
        let module = levels().modules_of(path)[usize::from(level)];
        if module.index == 1 {
            wait.lock().unwrap().recv().unwrap();
        }
        Ok(packed(&levels(), module, 0))
    };
    let engine = engine(&model(RunPaths::new("", &cache, keys(&levels(), 0), Box::new(load))), 4);
    let slow = engine.submit(vec![request(3, 0)], LONG).unwrap();
    for number in 0..3 {
        answers(engine.submit(vec![request(0, number)], LONG).unwrap(), || {}).await.unwrap();
    }
    assert_eq!(cache.memory().loads, 2, "the modules of path 3 can't be there yet");
    go.send(()).unwrap();
    go.send(()).unwrap();
    assert_eq!(answers(slow, || {}).await.unwrap()[0].len(), 16);
}

/// A load takes time and memory that other callers need.
#[tokio::test]
async fn a_load_ends_when_its_caller_goes_away() {
    let [first, second] = sizes();
    let ((begin, begun), (go, wait)) = (channel(), channel::<()>());
    let wait = std::sync::Mutex::new(wait);
    let cache = ModuleCache::new(Some(first + second));
    let load = move |path: PathId, level: u16| {
        let module = levels().modules_of(path)[usize::from(level)];
        begin.send((module.level, module.index)).unwrap();
        if module == (ModuleId { level: 0, index: 1 }) {
            wait.lock().unwrap().recv().unwrap();
        }
        Ok(packed(&levels(), module, 0))
    };
    let engine = engine(&model(RunPaths::new("", &cache, keys(&levels(), 0), Box::new(load))), 4);
    let gone = engine.submit(vec![request(3, 0)], LONG).unwrap();
    // The first step is on path 0.
    assert_eq!([(); 3].map(|()| begun.recv().unwrap()), [(0, 0), (1, 0), (0, 1)]);
    drop(gone);
    go.send(()).unwrap();
    answers(engine.submit(vec![request(0, 0)], LONG).unwrap(), || {}).await.unwrap();
    assert_eq!(begun.try_iter().collect::<Vec<_>>(), [(0, 0), (1, 0)], "module 1/1 has no caller");
}

#[tokio::test]
async fn a_caller_that_goes_away_before_there_is_room_holds_up_nobody() {
    let [first, second] = sizes();
    let (model, _) = limited(Some(first + 2 * second));
    let engine = engine(&model, 4);
    let paths = model.newest();
    let held = paths.path(PathId(0)).unwrap();
    // Module 0/1 has no room beside 0/0. Nobody wants it, so the call returns.
    let unwanted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let prepared = scope.spawn(|| paths.prepare(PathId(3), &unwanted).is_err());
        unwanted.store(true, Ordering::Relaxed);
        paths.look_again();
        assert!(prepared.join().unwrap());
    });
    let gone = engine.submit(vec![request(3, 0)], LONG).unwrap();
    let next = engine.submit(vec![request(1, 0)], LONG).unwrap();
    drop(gone);
    assert_eq!(answers(next, || {}).await.unwrap()[0].len(), 16);
    drop(held);
}

#[tokio::test]
async fn a_damaged_module_fails_its_paths_only_and_a_repaired_one_serves_again() {
    let damaged = Arc::new(AtomicBool::new(true));
    let (cache, flag) = (ModuleCache::new(None), Arc::clone(&damaged));
    let load = move |path, level: u16| {
        let module = levels().modules_of(path)[usize::from(level)];
        if flag.load(Ordering::Relaxed) && module == (ModuleId { level: 1, index: 1 }) {
            return Err("weights/1/1 does not have its hash".into());
        }
        Ok(packed(&levels(), module, 0))
    };
    let engine = engine(&model(RunPaths::new("", &cache, keys(&levels(), 0), Box::new(load))), 4);
    for path in [1, 3, 0, 2, 1] {
        let answer = answers(engine.submit(vec![request(path, 1)], LONG).unwrap(), || {}).await;
        if path % 2 == 0 {
            assert_eq!(answer.unwrap()[0].len(), 16);
            continue;
        }
        let error = answer.unwrap_err();
        assert_eq!(error.to_string(), format!("starting a sequence on path {path} failed"));
        let cause = std::error::Error::source(&error).unwrap();
        assert_eq!(cause.to_string(), format!("path {path} can't be loaded"));
        assert_eq!(cause.source().unwrap().to_string(), "weights/1/1 does not have its hash");
    }
    assert_eq!(cache.memory().modules, 3);
    damaged.store(false, Ordering::Relaxed);
    assert_eq!(answers(engine.submit(vec![request(3, 1)], LONG).unwrap(), || {}).await.unwrap()[0].len(), 16);
}

#[test]
fn a_limit_below_one_path_is_refused_with_both_numbers() {
    let [first, second] = sizes();
    let (model, cache) = limited(Some(first + second - 1));
    let error = model.newest().path(PathId(2)).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    let (path, limit) = (first + second, first + second - 1);
    assert!(
        cause.contains(&format!("needs {path} bytes")) && cause.contains(&format!("allows {limit}")),
        "{cause}"
    );
    assert!(cache.memory().bytes <= limit, "{:?}", cache.memory());
}

#[test]
fn a_module_that_is_held_stays_although_others_were_used_later() {
    let [first, second] = sizes();
    let (model, cache) = limited(Some(first + second + first.max(second)));
    let paths = model.newest();
    let held = paths.path(PathId(1)).unwrap();
    drop(paths.path(PathId(0)).unwrap());
    // Room for 0/1 comes from 1/0, which nobody holds.
    drop(paths.path(PathId(3)).unwrap());
    assert_eq!((cache.memory().loads, cache.memory().evictions), (4, 1));
    let again = paths.path(PathId(1)).unwrap();
    assert!(held.modules.iter().zip(&again.modules).all(|(one, other)| Arc::ptr_eq(one, other)));
    assert_eq!(cache.memory().loads, 4);
}

#[test]
fn preloading_takes_what_fits_and_throws_nothing_out() {
    let [first, second] = sizes();
    for (limit, paths) in [(first + second, 1), (first + 2 * second, 2), (2 * (first + second), 4)] {
        let (model, cache) = limited(Some(limit));
        assert_eq!(model.newest().preload().unwrap(), paths);
        assert_eq!(cache.memory().evictions, 0);
    }
}

/// The modules of path 0 have work without end. The sequence on path 3 gets its turn nevertheless.
#[tokio::test]
async fn a_sequence_that_waits_for_room_is_overtaken_a_bounded_number_of_times() {
    let [first, second] = sizes();
    let (model, _) = limited(Some(first + second));
    let engine = engine(&model, 4);
    let mut requests = vec![request(0, 0), request(3, 0)];
    requests.extend((0..900).map(|_| GenerateRequest { max_tokens: 1, ..request(0, 1) }));
    let mut submission = engine.submit(requests, LONG).unwrap();
    let mut ended = Vec::new();
    while let Some(event) = submission.next().await.unwrap() {
        if matches!(event.event, GenerationEvent::Finished(_)) {
            ended.push(event.sequence);
        }
    }
    assert_eq!(ended.len(), 902);
    let turn = ended.iter().position(|&sequence| sequence == 1).unwrap();
    assert!(turn < 800, "the sequence on path 3 came as number {turn}");
}
