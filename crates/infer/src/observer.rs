//! Counts and durations of finished requests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use dipaco_topology::PathId;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A stop text, a stop token or the end-of-text token.
    Stop,
    /// The requested number of tokens was generated.
    Length,
    /// The caller went away.
    Abort,
    /// The deadline passed.
    Deadline,
    /// The engine was shut down.
    ShuttingDown,
    /// The model failed, or the engine ended by a bug.
    Error,
}

/// Summary of an admitted request after its end.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestSummary {
    /// Number of the client.
    pub client: u64,
    /// The path; `None` if the request ended before it was routed.
    pub path: Option<PathId>,
    /// Outcome.
    pub outcome: Outcome,
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// True if the sequence before it in its submission has the same prompt, as the choices of one prompt have.
    pub shares_prompt: bool,
    /// Number of tokens of the prompt whose keys and values, of all stages, came from the prefix cache.
    pub cached_tokens: usize,
    /// Number of tokens of the prompt that steps have counted in [`StepSummary::prompt_tokens`].
    pub read_tokens: usize,
    /// False if the request could not read the prefix cache, because it wants the scores of its prompt.
    pub reads_cache: bool,
    /// Number of generated tokens.
    pub generated_tokens: usize,
    /// Number of times that the path changed within the sequence.
    pub reroutes: usize,
    /// Largest number of tokens that the request allowed.
    pub max_tokens: usize,
    /// Time in the queue.
    pub queued: Duration,
    /// Time spent in the router; `None` for a pinned path.
    pub routing: Option<Duration>,
    /// Time from the end of the queue until the prompt was read.
    pub prefill: Option<Duration>,
    /// Time from admission until the first generated token.
    pub first_token: Option<Duration>,
    /// Time from admission until the end.
    pub total: Duration,
}

impl RequestSummary {
    /// Number of tokens of the prompt that count as work of this sequence: none if the sequence before it reads them for both.
    #[must_use]
    pub fn own_prompt_tokens(&self) -> usize {
        if self.shares_prompt && self.reads_cache { 0 } else { self.prompt_tokens }
    }
}

/// Summary of a step of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSummary {
    /// Number of tokens that ran, of prompts and continuations.
    pub tokens: usize,
    /// Number of [own prompt tokens](RequestSummary::own_prompt_tokens) that are done since this step: it read them, or they
    /// were in the prefix cache. Tokens that run again do not count again.
    pub prompt_tokens: usize,
    /// Number of sequences that lost their pages and wait again.
    pub preempted: usize,
}

/// Counts requests and tokens. The engine calls it from its threads, so implementations must be fast.
pub trait Observer: Send + Sync {
    /// Called for each token but the first of a sequence, with the time since the token before.
    fn token(&self, interval: Duration);
    /// Called after each step.
    fn step(&self, step: &StepSummary);
    /// Called exactly once for each admitted request, when it ends in any way.
    fn finished(&self, summary: &RequestSummary);
}

/// An observer whose panics end no thread of the engine.
pub(crate) struct Guarded(pub(crate) Arc<dyn Observer>);

impl Observer for Guarded {
    fn token(&self, interval: Duration) {
        quietly(|| self.0.token(interval));
    }

    fn step(&self, step: &StepSummary) {
        quietly(|| self.0.step(step));
    }

    fn finished(&self, summary: &RequestSummary) {
        quietly(|| self.0.finished(summary));
    }
}

fn quietly(count: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(count)).is_err() {
        tracing::error!("counting a request panicked: the counts may be wrong from now on");
    }
}

/// Counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn token(&self, _: Duration) {}
    fn step(&self, _: &StepSummary) {}
    fn finished(&self, _: &RequestSummary) {}
}
