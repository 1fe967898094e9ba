//! The state that callers and the engine's threads share.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use dipaco_topology::PathId;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::job::{Job, outcome};
use crate::reroute::Moves;
use crate::route_cache::RouteCache;
use crate::scheduler::{Chunks, Scheduler, SequenceId};
use crate::versions::Versions;
use crate::{
    EngineError, Finished, GenerateRequest, Generation, GenerationEvent, Load, Observer, Outcome, Route,
    RoutedModel, TextCodec,
};

/// The state that callers and the engine's threads share.
pub(crate) struct Shared {
    pub(crate) model: Arc<dyn RoutedModel>,
    pub(crate) codec: Arc<dyn TextCodec>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) abort: CancellationToken,
    /// Name of the thread that ended by a bug.
    pub(crate) ended: OnceLock<&'static str>,
    /// A thread ended by a bug, and all sequences have ended.
    pub(crate) broken: CancellationToken,
    pub(crate) load: watch::Sender<Load>,
    pub(crate) state: Mutex<SharedState>,
    /// The state changed.
    pub(crate) change: Condvar,
}

pub(crate) struct SharedState {
    pub(crate) scheduler: Scheduler,
    /// Sequences that have not left the queue.
    pub(crate) waiting: BTreeMap<SequenceId, Job>,
    /// Sequences that wait for the router. They stay here until a pass has read their texts.
    pub(crate) unrouted: VecDeque<Unrouted>,
    /// Callers that ask for a route only.
    pub(crate) questions: VecDeque<Question>,
    pub(crate) routes: RouteCache,
    /// Sequences that wait for their modules.
    pub(crate) unloaded: VecDeque<Routed>,
    /// The path that is being loaded, for the first of them or for one whose caller went away.
    pub(crate) loading: Option<Loading>,
    /// Running sequences whose callers went away, with the reason.
    pub(crate) cancelled: Vec<(SequenceId, Outcome)>,
    /// Running sequences that change their paths.
    pub(crate) moves: Moves,
    pub(crate) versions: Versions,
    pub(crate) submissions: u64,
    pub(crate) closed: bool,
}

impl SharedState {
    /// The state before the first sequence.
    pub(crate) fn new(scheduler: Scheduler) -> Self {
        Self {
            scheduler,
            waiting: BTreeMap::new(),
            unrouted: VecDeque::new(),
            questions: VecDeque::new(),
            routes: RouteCache::default(),
            unloaded: VecDeque::new(),
            loading: None,
            cancelled: Vec::new(),
            moves: Moves::default(),
            versions: Versions::default(),
            submissions: 0,
            closed: false,
        }
    }
}

/// A sequence without a path, or at the end of a chunk.
pub(crate) struct Unrouted {
    pub(crate) id: SequenceId,
    pub(crate) client: u64,
    pub(crate) asked: Asked,
    pub(crate) generation: Arc<dyn Generation>,
}

/// A caller that asks for the route of the first tokens of a text.
pub(crate) struct Question {
    pub(crate) prefix: Arc<[u32]>,
    pub(crate) answer: oneshot::Sender<Result<Route, EngineError>>,
}

/// A sequence with a path.
pub(crate) struct Routed {
    pub(crate) id: SequenceId,
    pub(crate) path: PathId,
    /// The router's decision, if it was asked.
    pub(crate) route: Option<Route>,
    /// Time that the router took, if it was asked.
    pub(crate) took: Option<Duration>,
    pub(crate) generation: Arc<dyn Generation>,
    /// Number of sequences that began although this one was the first to wait.
    pub(crate) overtaken: usize,
}

/// A path that the loader makes ready.
#[derive(Clone)]
pub(crate) struct Loading {
    pub(crate) path: PathId,
    pub(crate) generation: Arc<dyn Generation>,
    /// True when no sequence waits for the path any more.
    pub(crate) unwanted: Arc<AtomicBool>,
}

/// The source of a path.
pub(crate) enum Asked {
    /// The first tokens of the prompt.
    Prefix(Arc<[u32]>),
    /// The caller.
    Pinned(PathId),
    /// All tokens before a chunk. The path of the last chunk, if there was one.
    Chunk(Arc<[u32]>, Option<PathId>),
}

impl Unrouted {
    /// A sequence that has not begun, with its first chunk. The router reads at most `most` tokens.
    pub(crate) fn new(
        id: SequenceId,
        request: &GenerateRequest,
        chunks: Option<Chunks>,
        most: usize,
        generation: Arc<dyn Generation>,
    ) -> Self {
        let before = chunks.map_or(0, |chunks| chunks.end - chunks.every);
        let asked = match request.path {
            _ if before > 0 => Asked::Chunk(request.prompt[..before].into(), None),
            Some(path) => Asked::Pinned(path),
            None => Asked::Prefix(request.prompt[..request.prompt.len().min(most)].into()),
        };
        Self { id, client: request.client, asked, generation }
    }
}

impl Asked {
    /// The text for the router of prompts.
    pub(crate) fn prefix(&self) -> Option<&Arc<[u32]>> {
        if let Self::Prefix(prefix) = self { Some(prefix) } else { None }
    }

    /// The text for the router of chunks.
    pub(crate) fn chunk(&self) -> Option<&Arc<[u32]>> {
        if let Self::Chunk(tokens, _) = self { Some(tokens) } else { None }
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, SharedState> {
        // No code under the lock can panic halfway through a change, so the state behind a poisoned lock is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change of the state.
    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, SharedState>) -> MutexGuard<'a, SharedState> {
        self.change.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells watchers and threads that the state changed.
    pub(crate) fn changed(&self, state: &SharedState) {
        self.load.send_replace(state.scheduler.load());
        self.change.notify_all();
    }

    /// Why the engine takes no sequences any more.
    pub(crate) fn stopped(&self) -> EngineError {
        self.ended.get().map_or(EngineError::ShuttingDown, |&thread| EngineError::ThreadEnded { thread })
    }

    /// Refuses new sequences and ends the admitted ones.
    pub(crate) fn stop(&self) {
        self.lock().closed = true;
        self.abort.cancel();
        let mut state = self.lock();
        // Nobody makes these moves any more, and their modules may be what the loader waits for.
        let moves = std::mem::take(&mut state.moves);
        let questions = std::mem::take(&mut state.questions);
        drop(state);
        // Freed outside of the lock: the modules may be gigabytes.
        drop((moves, questions));
        state = self.lock();
        let waiting: Vec<SequenceId> = state.waiting.keys().copied().collect();
        for id in waiting {
            let stopped = self.stopped();
            self.end_waiting(state, id, outcome(&stopped), Some(Err(stopped)));
            state = self.lock();
        }
        let ended = state.take_ended();
        self.changed(&state);
        drop(state);
        drop(ended);
    }

    /// Runs one of the engine's threads. Should it end by a bug, callers learn of it now and not at their deadlines.
    pub(crate) fn run_thread(&self, thread: &'static str, run: impl FnOnce(&Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(self))) {
            tracing::error!(thread, panic = message(panic.as_ref()), "a thread of the engine panicked");
            // The first one counts: others may follow from it.
            let _ = self.ended.set(thread);
            self.stop();
            self.broken.cancel();
        }
    }

    /// Ends a sequence that has not left the queue. A failure ends the other sequences of its submission, which count as it
    /// does.
    pub(crate) fn end_waiting(
        &self,
        mut state: MutexGuard<'_, SharedState>,
        id: SequenceId,
        outcome: Outcome,
        end: Option<Result<Finished, EngineError>>,
    ) {
        let Some(job) = state.waiting.remove(&id) else { return };
        state.scheduler.remove(id);
        self.observer.finished(&job.summary(outcome));
        let mut others = Vec::new();
        if let Some(Err(_)) = end {
            others = self.abandon_waiting(&mut state, job.submission, outcome);
        }
        self.changed(&state);
        drop(state);
        drop(others);
        if let Some(end) = end {
            // Sending fails only when the caller is gone.
            let _ = job.send(end.map(GenerationEvent::Finished));
        }
    }

    /// Ends the sequences of a submission that have not left the queue, after another one failed with this outcome. Returns
    /// them, to be dropped outside of the lock: they may hold the last weights of a generation.
    pub(crate) fn abandon_waiting(
        &self,
        state: &mut SharedState,
        submission: u64,
        outcome: Outcome,
    ) -> Vec<Job> {
        let mut abandoned = Vec::new();
        for (id, job) in state.waiting.extract_if(.., |_, job| job.submission == submission) {
            state.scheduler.remove(id);
            self.observer.finished(&job.summary(outcome));
            abandoned.push(job);
        }
        abandoned
    }
}

/// Runs `f`, and turns its panic into an error: a panic in one request must not end the others.
pub(crate) fn guarded<R>(f: impl FnOnce() -> Result<R, EngineError>) -> Result<R, EngineError> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let message = message(panic.as_ref());
        tracing::error!(%message, "a request panicked");
        Err(EngineError::Panicked { message })
    })
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown panic".into())
}

#[cfg(test)]
mod tests;
