//! The events of a caller's sequences.

use std::time::Duration;

use dipaco_topology::PathId;

use crate::{Route, TokenScore};

/// Reason for the end of a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop text, a stop token or the end-of-text token.
    Stop,
    /// The requested number of tokens was generated.
    Length,
}

/// The stop text or stop token of the request that ended a continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// This stop text.
    Text(String),
    /// This stop token.
    Token(u32),
}

/// The end of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Reason for the end.
    pub reason: FinishReason,
    /// Stop text or stop token that ended it; `None` for a token of [`crate::TextCodec::end_tokens`] or the length.
    pub stop: Option<StopReason>,
    /// Remaining text that was held back.
    pub text: String,
    /// Number of generated tokens, including the end token.
    pub generated_tokens: usize,
    /// Number of prompt tokens whose keys and values, of all stages, came from the prefix cache.
    pub cached_tokens: usize,
    /// Number of times that the path changed within the sequence.
    pub reroutes: usize,
}

/// An event of one of the sequences of a submission.
#[derive(Debug)]
pub struct SequenceEvent {
    /// Index of the sequence's request in the submission.
    pub sequence: usize,
    /// The event.
    pub event: GenerationEvent,
}

/// Events of a sequence, in this order: `Started`, `Began`, `Prompt` if the request scores its prompt, `Token` for each token,
/// then `Finished`. An error can take the place of each of them and is the last.
#[derive(Debug)]
pub enum GenerationEvent {
    /// The sequence has its path. It may still wait for its turn.
    Started {
        /// The path.
        path: PathId,
        /// The router's decision; `None` for a pinned path.
        route: Option<Route>,
    },
    /// The sequence has left the queue.
    Began {
        /// Time in the queue.
        queued: Duration,
    },
    /// The scores of the prompt, one per token. The first token has no log-probability.
    Prompt(Vec<TokenScore>),
    /// A generated token.
    Token {
        /// The token.
        token: u32,
        /// Complete characters that can't be part of a stop text; may be empty.
        text: String,
        /// Number of characters that the earlier tokens completed, including characters held back.
        offset: usize,
        /// Score of the token, if the request asks for log-probabilities.
        score: Option<TokenScore>,
    },
    /// The sequence is complete.
    Finished(Finished),
}
