//! A sequence from its admission to its last event.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dipaco_topology::PathId;
use tokio::sync::mpsc;

use crate::{
    EngineError, GenerateRequest, Generation, GenerationEvent, Outcome, RequestSummary, SequenceEvent,
    ServedPath,
};

/// The caller of a sequence went away.
#[derive(Debug)]
pub(crate) struct Gone;

/// An admitted sequence.
pub(crate) struct Job {
    pub(crate) request: GenerateRequest,
    /// Index of the request in its submission.
    pub(crate) sequence: usize,
    /// True if the sequence before it in its submission has the same prompt.
    pub(crate) shares_prompt: bool,
    /// Number of the submission. The first failure ends all its sequences.
    pub(crate) submission: u64,
    pub(crate) events: mpsc::Sender<Result<SequenceEvent, EngineError>>,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Duration,
    /// Its path and the path's modules; `None` until the sequence is routed.
    pub(crate) place: Option<(PathId, ServedPath)>,
    /// Time that the router took; `None` for a pinned path.
    pub(crate) routing: Option<Duration>,
    /// The weights of the submission, for a sequence that may change its path.
    pub(crate) generation: Option<Arc<dyn Generation>>,
}

impl Job {
    /// The summary of a job that has not begun.
    pub(crate) fn summary(&self, outcome: Outcome) -> RequestSummary {
        let waited = self.arrived.elapsed();
        RequestSummary {
            client: self.request.client,
            path: self.place.as_ref().map(|place| place.0).or(self.request.path),
            outcome,
            prompt_tokens: self.request.prompt.len(),
            shares_prompt: self.shares_prompt,
            cached_tokens: 0,
            read_tokens: 0,
            reads_cache: self.request.prompt_log_probs.is_none(),
            generated_tokens: 0,
            reroutes: 0,
            max_tokens: self.request.max_tokens,
            queued: waited,
            routing: self.routing,
            prefill: None,
            first_token: None,
            total: waited,
        }
    }

    /// True if the model has nothing to compute for the request.
    pub(crate) fn is_empty(&self) -> bool {
        self.request.max_tokens == 0 && self.request.prompt_log_probs.is_none()
    }

    pub(crate) fn is_late(&self) -> bool {
        self.arrived.elapsed() >= self.deadline
    }

    /// Sends an event or the failure of the sequence.
    pub(crate) fn send(&self, event: Result<GenerationEvent, EngineError>) -> Result<(), Gone> {
        let event = event.map(|event| SequenceEvent { sequence: self.sequence, event });
        // The channel has room for all events of the submission, so sending fails only when the caller is gone.
        self.events.try_send(event).map_err(|_| Gone)
    }
}

/// Largest number of events of a request: `Started`, `Began`, `Prompt`, each `Token`, the last event, and one to spare.
pub(crate) fn most_events(request: &GenerateRequest) -> usize {
    request.max_tokens + 5
}

/// The outcome that counts for a failure.
pub(crate) fn outcome(error: &EngineError) -> Outcome {
    match error {
        EngineError::Deadline { .. } => Outcome::Deadline,
        EngineError::ShuttingDown => Outcome::ShuttingDown,
        _ => Outcome::Error,
    }
}
