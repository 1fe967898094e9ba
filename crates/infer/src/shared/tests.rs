//! What an engine without threads counts, and what it drops outside of its lock.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Weak, mpsc};
use std::time::Instant;

use dipaco_topology::Topology;

use super::*;
use crate::model::Held;
use crate::running::Running;
use crate::scheduler::{Arrival, Limits};
use crate::{
    BoxError, Dtype, Executor, ModuleMemory, NoObserver, PathVersion, RequestSummary, ServedPath,
    StepSummary, Submission, TextStream, TokenizerInfo,
};

/// A model, its weights and a tokenizer that nobody asks anything.
struct Unasked;

impl RoutedModel for Unasked {
    fn context(&self) -> usize {
        unreachable!()
    }

    fn vocab_size(&self) -> usize {
        unreachable!()
    }

    fn topology(&self) -> &Topology {
        unreachable!()
    }

    fn prefix_tokens(&self) -> usize {
        unreachable!()
    }

    fn route(&self, _: &[&[u32]]) -> Result<Vec<Route>, BoxError> {
        unreachable!()
    }

    fn generation(&self) -> Arc<dyn Generation> {
        unreachable!()
    }

    fn module_memory(&self) -> ModuleMemory {
        unreachable!()
    }

    fn page_bytes(&self, _: Dtype) -> usize {
        unreachable!()
    }

    fn executor(&self, _: usize, _: Dtype) -> Box<dyn Executor + '_> {
        unreachable!()
    }
}

impl Generation for Unasked {
    fn fingerprint(&self) -> Arc<str> {
        unreachable!()
    }

    fn loaded(&self, _: PathId) -> Option<ServedPath> {
        unreachable!()
    }

    fn prepare(&self, _: PathId, _: &AtomicBool) -> Result<ServedPath, BoxError> {
        unreachable!()
    }
}

impl TextStream for Unasked {
    fn push(&mut self, _: u32) -> Result<String, BoxError> {
        unreachable!()
    }

    fn finish(&mut self) -> String {
        unreachable!()
    }
}

impl TextCodec for Unasked {
    fn encode(&self, _: &str) -> Result<Vec<u32>, BoxError> {
        unreachable!()
    }

    fn decode(&self, _: &[u32]) -> Result<String, BoxError> {
        unreachable!()
    }

    fn token_text(&self, _: u32) -> String {
        unreachable!()
    }

    fn stream(&self, _: &[u32]) -> Box<dyn TextStream> {
        Box::new(Self)
    }

    fn end_of_text(&self) -> u32 {
        unreachable!()
    }

    fn vocab_size(&self) -> usize {
        unreachable!()
    }

    fn info(&self) -> TokenizerInfo {
        unreachable!()
    }
}

/// An error, or a guard of modules, that tells, when it is dropped, whether the engine's lock was free.
#[derive(Debug)]
struct Witness {
    shared: Weak<Shared>,
    lock_was_free: mpsc::Sender<bool>,
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the router failed")
    }
}

impl std::error::Error for Witness {}

impl Drop for Witness {
    fn drop(&mut self) {
        let free = self.shared.upgrade().is_some_and(|shared| shared.state.try_lock().is_ok());
        let _ = self.lock_was_free.send(free);
    }
}

/// The outcomes of the sequences that ended.
#[derive(Default)]
struct Outcomes(Mutex<Vec<Outcome>>);

impl Observer for Outcomes {
    fn token(&self, _: Duration) {}
    fn step(&self, _: &StepSummary) {}
    fn finished(&self, summary: &RequestSummary) {
        self.0.lock().unwrap().push(summary.outcome);
    }
}

fn engine() -> Arc<Shared> {
    observed(Arc::new(NoObserver))
}

fn observed(observer: Arc<dyn Observer>) -> Arc<Shared> {
    let scheduler = Scheduler::new(Limits {
        sequences: 1,
        step_tokens: 1,
        prompt_slowdown: 1.0,
        queued_sequences: 2,
        queued_tokens: 2,
        pages: 1,
    });
    let load = watch::Sender::new(scheduler.load());
    let state = SharedState::new(scheduler);
    Arc::new(Shared {
        model: Arc::new(Unasked),
        codec: Arc::new(Unasked),
        observer,
        abort: CancellationToken::new(),
        ended: OnceLock::new(),
        broken: CancellationToken::new(),
        load,
        state: Mutex::new(state),
        change: Condvar::new(),
    })
}

/// A sequence that the scheduler knows.
fn admitted(shared: &Shared) -> SequenceId {
    let arrival = Arrival {
        client: 0,
        priority: 0,
        prompt: [1].into(),
        max_tokens: 1,
        reads_cache: false,
        chunks: None,
    };
    shared.lock().scheduler.admit(vec![arrival], Duration::from_secs(1)).unwrap()[0]
}

/// A path whose modules tell, when they are freed, whether the engine's lock was free.
fn served(shared: &Arc<Shared>, told: &mpsc::Sender<bool>) -> ServedPath {
    let witness = Witness { shared: Arc::downgrade(shared), lock_was_free: told.clone() };
    ServedPath::of_cache(Vec::new(), PathVersion([0; 32]), &[], Held::new(witness))
}

fn job() -> Job {
    let (events, _) = tokio::sync::mpsc::channel(1);
    Job {
        request: GenerateRequest { ignore_eos: true, ..GenerateRequest::new([1u32]) },
        sequence: 0,
        shares_prompt: false,
        submission: 0,
        events,
        arrived: Instant::now(),
        deadline: Duration::from_secs(1),
        place: None,
        routing: None,
        generation: None,
    }
}

fn running(served: ServedPath) -> Running {
    Running::new(job(), PathId(0), served, 0, &Unasked)
}

/// A change of a path may hold the only modules of a path. Whoever frees gigabytes under the lock holds up every caller.
#[test]
fn changes_of_paths_that_nobody_makes_are_dropped_outside_of_the_lock() {
    let shared = engine();
    let (told, lock_was_free) = mpsc::channel();
    let (answer, mut answered) = oneshot::channel();
    let id = admitted(&shared);
    let mut state = shared.lock();
    let witness = Witness { shared: Arc::downgrade(&shared), lock_was_free: told };
    let failed = EngineError::Model { action: "routing".to_owned(), source: witness.into() };
    state.moves.failed.push((id, failed));
    state.questions.push_back(Question { prefix: [1].into(), answer });
    drop(state);
    shared.stop();
    assert_eq!(lock_was_free.try_iter().collect::<Vec<_>>(), [true]);
    assert_eq!(answered.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
}

#[test]
fn modules_that_come_after_the_end_are_dropped_outside_of_the_lock() {
    let shared = engine();
    let (told, lock_was_free) = mpsc::channel();
    let id = admitted(&shared);
    shared.stop();
    let (path, generation) = (PathId(0), Arc::new(Unasked));
    let routed = Routed { id, path, route: None, took: None, generation, overtaken: 0 };
    shared.placed(routed, Ok(served(&shared, &told)));
    assert_eq!(lock_was_free.try_iter().collect::<Vec<_>>(), [true]);
}

#[test]
fn modules_that_sequences_give_up_are_dropped_outside_of_the_lock() {
    let shared = engine();
    let (told, lock_was_free) = mpsc::channel();
    let ended = admitted(&shared);
    shared.lock().scheduler.remove(ended);
    let leaving = admitted(&shared);
    let mut all = BTreeMap::from([(leaving, running(served(&shared, &told)))]);
    let mut state = shared.lock();
    state.moves.left.push(leaving);
    state.moves.arrived.push((ended, PathId(0), served(&shared, &told)));
    let left_over = state.make_moves(&Unasked, &mut all);
    drop(state);
    assert!(all[&leaving].served.is_none());
    drop(left_over);
    assert_eq!(lock_was_free.try_iter().collect::<Vec<_>>(), [true, true]);
}

#[test]
fn callers_that_go_away_leave_the_queue_of_the_loader_at_once_and_the_last_one_ends_the_load() {
    let shared = engine();
    let path = PathId(0);
    let generation: Arc<dyn Generation> = Arc::new(Unasked);
    let unwanted = Arc::new(AtomicBool::new(false));
    let callers = [(); 2].map(|()| {
        let id = admitted(&shared);
        let generation = Arc::clone(&generation);
        let mut state = shared.lock();
        state.waiting.insert(id, job());
        state.unloaded.push_back(Routed { id, path, route: None, took: None, generation, overtaken: 0 });
        drop(state);
        let (_, events) = tokio::sync::mpsc::channel(1);
        Submission {
            events,
            arrived: Instant::now(),
            deadline: Duration::from_secs(1),
            unfinished: 1,
            sequences: vec![id],
            fingerprint: "".into(),
            shared: Arc::clone(&shared),
        }
    });
    shared.lock().loading = Some(Loading { path, generation, unwanted: Arc::clone(&unwanted) });
    let left = callers.map(|caller| {
        drop(caller);
        (shared.lock().unloaded.len(), unwanted.load(Ordering::Relaxed))
    });
    assert_eq!(left, [(1, false), (0, true)]);
}

#[test]
fn all_sequences_that_wait_when_the_engine_ends_count_under_the_reason() {
    for (thread, outcome) in [(None, Outcome::ShuttingDown), (Some("dipaco-router"), Outcome::Error)] {
        let seen = Arc::new(Outcomes::default());
        let shared = observed(seen.clone());
        for _ in 0..2 {
            let id = admitted(&shared);
            shared.lock().waiting.insert(id, job());
        }
        if let Some(thread) = thread {
            shared.ended.set(thread).unwrap();
        }
        shared.stop();
        assert_eq!(*seen.0.lock().unwrap(), [outcome; 2], "{thread:?}");
    }
}

/// A failure in the queue leaves the sequences that run to the caller.
#[tokio::test]
async fn a_caller_that_learns_of_a_failure_ends_what_runs_under_its_reason() {
    let shared = engine();
    let (events, receiver) = tokio::sync::mpsc::channel(1);
    let (waiting, running) = (admitted(&shared), admitted(&shared));
    shared.lock().waiting.insert(waiting, Job { events, ..job() });
    let mut submission = Submission {
        events: receiver,
        arrived: Instant::now(),
        deadline: Duration::from_secs(600),
        unfinished: 2,
        sequences: vec![waiting, running],
        fingerprint: "".into(),
        shared: Arc::clone(&shared),
    };
    let failed = EngineError::Panicked { message: "the router panicked".to_owned() };
    shared.end_waiting(shared.lock(), waiting, Outcome::Error, Some(Err(failed)));
    assert!(matches!(submission.next().await, Err(EngineError::Panicked { .. })));
    assert_eq!(shared.lock().cancelled, [waiting, running].map(|id| (id, Outcome::Error)));
}
