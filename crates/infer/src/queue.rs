//! The bounded queue between callers and slots.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::EngineError;

/// Load of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of sequences that wait for a slot.
    pub waiting: usize,
    /// Number of prompt tokens of the waiting sequences.
    pub waiting_tokens: usize,
    /// Number of sequences that hold a slot.
    pub running: usize,
}

/// An entry of the queue.
pub(crate) trait QueueEntry {
    /// Number of prompt tokens.
    fn tokens(&self) -> usize;
    /// Returns whether the caller is gone.
    fn abandoned(&self) -> bool;
}

/// A bounded first-in first-out queue.
pub(crate) struct Queue<J> {
    state: Mutex<QueueState<J>>,
    ready: Condvar,
    load: watch::Sender<Load>,
    limits: QueueLimits,
}

/// Limits of a queue.
#[derive(Clone, Copy)]
pub(crate) struct QueueLimits {
    /// Number of waiting sequences.
    pub(crate) requests: usize,
    /// Number of waiting prompt tokens.
    pub(crate) tokens: usize,
    /// Number of sequences that run at a time.
    pub(crate) slots: usize,
}

struct QueueState<J> {
    jobs: VecDeque<J>,
    load: Load,
    closed: bool,
    /// Moving average of the seconds that a job holds a slot. The estimate for `retry_after` is based on it.
    seconds: f64,
}

impl<J: QueueEntry> Queue<J> {
    pub(crate) fn new(limits: QueueLimits) -> Self {
        let state = QueueState { jobs: VecDeque::new(), load: Load::default(), closed: false, seconds: 1.0 };
        Self {
            state: Mutex::new(state),
            ready: Condvar::new(),
            load: watch::Sender::new(Load::default()),
            limits,
        }
    }

    /// Admits all of `jobs` or none of them.
    pub(crate) fn push(&self, jobs: Vec<J>) -> Result<(), EngineError> {
        let tokens: usize = jobs.iter().map(QueueEntry::tokens).sum();
        let most = self.limits.requests.saturating_add(self.limits.slots);
        for (given, limit, unit) in [(jobs.len(), most, REQUESTS), (tokens, self.limits.tokens, TOKENS)] {
            if given > limit {
                return Err(EngineError::TooLarge { given, limit, unit });
            }
        }
        let mut state = self.lock();
        if state.closed {
            return Err(EngineError::ShuttingDown);
        }
        // Free slots take entries at once, so the queue can admit that many more.
        let free = self.limits.slots.saturating_sub(state.load.running);
        let Load { waiting, waiting_tokens, .. } = state.load;
        let retry_after = state.retry_after(self.limits.slots);
        for (waiting, given, limit, unit) in [
            (waiting, jobs.len(), self.limits.requests.saturating_add(free), REQUESTS),
            (waiting_tokens, tokens, self.limits.tokens, TOKENS),
        ] {
            if waiting + given > limit {
                return Err(EngineError::Overloaded { waiting, limit, unit, retry_after });
            }
        }
        state.load.waiting += jobs.len();
        state.load.waiting_tokens += tokens;
        state.jobs.extend(jobs);
        self.load.send_replace(state.load);
        drop(state);
        self.ready.notify_all();
        Ok(())
    }

    /// Waits for the next job; `None` once the queue is closed and empty. The caller holds a slot until it calls
    /// [`done`](Self::done).
    pub(crate) fn pop(&self) -> Option<J> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.load.waiting -= 1;
                state.load.waiting_tokens -= job.tokens();
                state.load.running += 1;
                self.load.send_replace(state.load);
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives a slot back, which the job held for this time.
    pub(crate) fn done(&self, held: Duration) {
        let mut state = self.lock();
        state.seconds += 0.1 * (held.as_secs_f64() - state.seconds);
        state.load.running -= 1;
        self.load.send_replace(state.load);
    }

    /// Removes and returns the entries whose callers are gone.
    pub(crate) fn remove_abandoned(&self) -> Vec<J> {
        let mut state = self.lock();
        let jobs = std::mem::take(&mut state.jobs);
        let (gone, kept): (VecDeque<J>, VecDeque<J>) = jobs.into_iter().partition(QueueEntry::abandoned);
        state.jobs = kept;
        state.load.waiting -= gone.len();
        state.load.waiting_tokens -= gone.iter().map(QueueEntry::tokens).sum::<usize>();
        self.load.send_replace(state.load);
        gone.into()
    }

    /// Refuses new jobs from now on. [`pop`](Self::pop) still returns the queued jobs.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_all();
    }

    pub(crate) fn load(&self) -> watch::Receiver<Load> {
        self.load.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<J>> {
        // No code under the lock can panic halfway through a change, so the state behind a poisoned lock is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const REQUESTS: &str = "sequences";
const TOKENS: &str = "prompt tokens";

impl<J> QueueState<J> {
    /// Estimated time until the waiting jobs have started, from 1 to 60 seconds.
    fn retry_after(&self, slots: usize) -> Duration {
        let rounds = self.load.waiting as f64 / slots.max(1) as f64;
        Duration::from_secs((rounds * self.seconds).ceil().clamp(1.0, 60.0) as u64)
    }
}
