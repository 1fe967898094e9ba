//! The inputs and the decisions of a scheduler.

use std::sync::Arc;

use crate::PageCopy;

/// Number of a sequence. Later sequences have larger numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SequenceId(pub(super) u64);

/// Limits of a scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Sequences that run at a time.
    pub(crate) sequences: usize,
    /// Tokens of a step; at least `sequences` are taken.
    pub(crate) step_tokens: usize,
    /// Longest step with prompts while sequences generate, in times of a step without prompts.
    pub(crate) prompt_slowdown: f64,
    /// Sequences that may wait.
    pub(crate) queued_sequences: usize,
    /// Prompt tokens that may wait.
    pub(crate) queued_tokens: usize,
    /// Pages of keys and values.
    pub(crate) pages: usize,
}

/// A sequence to admit.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) client: u64,
    /// Lower numbers first, among the waiting sequences of the client.
    pub(crate) priority: i32,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) max_tokens: usize,
    /// False if all rows of the prompt must be computed, because their logits are wanted.
    pub(crate) reads_cache: bool,
    /// Chunks after which the path is chosen anew; `None` if it stays.
    pub(crate) chunks: Option<Chunks>,
}

/// Chunks of a text. The path of a chunk scores and generates its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// Tokens before the end of the current chunk.
    pub(crate) end: usize,
    /// W, tokens of a chunk.
    pub(crate) every: usize,
}

/// The rows of a sequence in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedRows {
    pub(crate) id: SequenceId,
    pub(crate) start: usize,
    /// The first stage that the rows go through.
    pub(crate) stage: usize,
    pub(crate) tokens: Vec<u32>,
    pub(crate) pages: Vec<u32>,
    /// True if the last row is the last known token, so its logits give the next one.
    pub(crate) last: bool,
}

/// The next step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Copies of pages, in this order before the rows run.
    pub(crate) copies: Vec<PageCopy>,
    pub(crate) rows: Vec<PlannedRows>,
    /// Number of rows of sequences that generate.
    pub(crate) generating: usize,
    /// True if the step had room for no other sequence: all places are taken, or it has all its tokens, or pages ran out.
    pub(crate) full: bool,
    /// Sequences that leave the queue, with the number of tokens that the prefix cache has for them.
    pub(crate) started: Vec<(SequenceId, usize)>,
    /// Sequences that lost their pages and wait again.
    pub(crate) preempted: Vec<SequenceId>,
    /// Sequences at the end of a chunk, with the number of tokens that choose the path of the next one.
    pub(crate) at_end: Vec<(SequenceId, usize)>,
}

impl Plan {
    /// Number of tokens that run.
    pub(crate) fn tokens(&self) -> usize {
        self.rows.iter().map(|rows| rows.tokens.len()).sum()
    }
}
