//! What the engine tells whoever counts.

use std::time::Duration;

use dipaco_topology::PathId;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A stop text, a stop token or the end of the text.
    Stop,
    /// The largest number of tokens.
    Length,
    /// The caller went away.
    Abort,
    /// The deadline passed.
    Deadline,
    /// The engine was stopped.
    ShuttingDown,
    /// The model failed.
    Error,
}

/// A request that was admitted and is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The path that ran; `None` when the request ended before it was known.
    pub path: Option<PathId>,
    /// How it ended.
    pub outcome: Outcome,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// The most tokens that were asked for.
    pub max_tokens: usize,
    /// Time in the queue.
    pub queued: Duration,
    /// Time of the router; `None` when the path was pinned.
    pub routing: Option<Duration>,
    /// Time from leaving the queue until the prompt was read.
    pub prefill: Option<Duration>,
    /// Time from admission until the first generated token.
    pub first_token: Option<Duration>,
    /// Time from admission until the end.
    pub total: Duration,
}

/// Counts what the engine does. Called from the threads that run requests: implementations must be quick.
pub trait Observer: Send + Sync {
    /// A token after a sequence's first came this long after the one before it.
    fn token(&self, interval: Duration);
    /// A request is over, whatever became of it; called exactly once for each admitted request.
    fn finished(&self, summary: &Summary);
}

/// Counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn token(&self, _: Duration) {}
    fn finished(&self, _: &Summary) {}
}
