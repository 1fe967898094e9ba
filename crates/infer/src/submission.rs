//! The events of sequences that were submitted together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::job::outcome;
use crate::scheduler::SequenceId;
use crate::shared::Shared;
use crate::{EngineError, GenerationEvent, Outcome, SequenceEvent};

/// The events of the sequences that were submitted together. Dropping it cancels the unfinished sequences.
pub struct Submission {
    pub(crate) events: mpsc::Receiver<Result<SequenceEvent, EngineError>>,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Duration,
    /// Number of sequences without their last event.
    pub(crate) unfinished: usize,
    pub(crate) sequences: Vec<SequenceId>,
    pub(crate) fingerprint: Arc<str>,
    pub(crate) shared: Arc<Shared>,
}

impl Submission {
    /// The fingerprint of the weights that all its sequences use.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Waits for the next event of any sequence. Returns `None` after the last event of the last sequence.
    ///
    /// The first failure ends all sequences, so a submission is never answered in part. A sequence that is still in the
    /// queue at the deadline fails then, not at its turn. Dropping the returned future loses no event.
    ///
    /// # Errors
    /// The failure of a sequence, the deadline, or the shutdown of the engine.
    pub async fn next(&mut self) -> Result<Option<SequenceEvent>, EngineError> {
        if self.unfinished == 0 {
            return Ok(None);
        }
        let (deadline, at) = (self.deadline, self.arrived.checked_add(self.deadline));
        let over = async {
            match at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        // Events come first: a caller at its deadline still gets the tokens that were made in time.
        let received = tokio::select! {
            biased;
            // A thread that panics drops its ends before it gives the reason.
            Some(received) = self.events.recv() => received,
            () = self.shared.abort.cancelled() => Err(self.shared.stopped()),
            () = over => Err(EngineError::Deadline { deadline }),
        };
        match &received {
            Ok(SequenceEvent { event: GenerationEvent::Finished(_), .. }) => self.unfinished -= 1,
            Ok(_) => {}
            Err(error) => self.cancel(outcome(error)),
        }
        received.map(Some)
    }

    /// Ends the sequences that run, and takes the waiting ones out of the queue.
    fn cancel(&mut self, outcome: Outcome) {
        self.unfinished = 0;
        let mut state = self.shared.lock();
        let mut waiting = Vec::new();
        for &id in &self.sequences {
            // A waiting sequence frees its place in the queue now, not at its turn.
            if let Some(job) = state.waiting.remove(&id) {
                state.scheduler.remove(id);
                self.shared.observer.finished(&job.summary(outcome));
                waiting.push(job);
            } else {
                state.cancelled.push((id, outcome));
            }
        }
        self.events.close();
        let ended = state.take_ended();
        self.shared.changed(&state);
        // Freed outside of the lock: they may hold the last weights of a generation.
        drop(state);
        drop((waiting, ended));
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if self.unfinished > 0 {
            self.cancel(Outcome::Abort);
        }
    }
}
