//! Errors of a request.

use std::time::Duration;

use dipaco_model::BoxError;
use dipaco_topology::PathId;
use thiserror::Error;

/// Errors of a request: it was not admitted or did not finish.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The queue is full for now, or its work takes longer than the request's deadline.
    #[error("the queue is full ({waiting} of at most {limit} {unit} are waiting): try again in {} s", retry_after.as_secs())]
    Overloaded {
        /// Number of waiting units.
        waiting: usize,
        /// Largest number of waiting units.
        limit: usize,
        /// The counted unit: sequences, prompt tokens or seconds of work.
        unit: &'static str,
        /// Time after which to try again, estimated from recent requests.
        retry_after: Duration,
    },
    /// A request that does not fit into an empty queue or the memory of keys and values.
    #[error("the request holds {given} {unit}, more than the limit of {limit}: send it in smaller parts")]
    TooLarge {
        /// Number of units in the request.
        given: usize,
        /// Number of units that the queue can hold.
        limit: usize,
        /// The counted unit: sequences, prompt tokens or cache pages.
        unit: &'static str,
    },
    /// A prompt without a token.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// Prompt and continuation are longer than the context.
    #[error(
        "the prompt has {prompt} tokens and max_tokens is {max_tokens}, but max_model_len is {context}: \
         shorten the prompt or lower max_tokens"
    )]
    Context {
        /// Number of tokens of the prompt.
        prompt: usize,
        /// Number of tokens to generate.
        max_tokens: usize,
        /// Number of tokens of the model's context.
        context: usize,
    },
    /// A token id outside of the vocabulary.
    #[error("token {token} is not in the vocabulary: ids are below {vocab_size}")]
    Token {
        /// The token.
        token: u32,
        /// V.
        vocab_size: usize,
        /// Field of the request that holds the token: `prompt`, `logit_bias` or `stop_token_ids`.
        field: &'static str,
    },
    /// A path that does not exist.
    #[error("path {path} does not exist: the run has paths 0 to {}", paths.saturating_sub(1))]
    Path {
        /// The path.
        path: PathId,
        /// P.
        paths: u32,
    },
    /// A sampling parameter out of its range.
    #[error("{field} is {value}: {expected}")]
    Parameter {
        /// Name of the parameter.
        field: &'static str,
        /// The value as text.
        value: String,
        /// The allowed values, as a sentence.
        expected: &'static str,
    },
    /// The deadline of the request passed.
    #[error("the request did not finish within its deadline of {} s", (deadline.as_secs_f64() * 1e3).round() / 1e3)]
    Deadline {
        /// Time that the request had, from its arrival.
        deadline: Duration,
    },
    /// The engine is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// A thread of the engine ended by a bug, so the engine answers nothing any more.
    #[error("the thread {thread} of the engine ended by a bug: start the server again, and see its log")]
    ThreadEnded {
        /// Name of the thread.
        thread: &'static str,
    },
    /// The model returned logits that are not finite.
    #[error("path {path} gave logits that are not finite: its weights are damaged or diverged in training")]
    NotFinite {
        /// The path.
        path: PathId,
    },
    /// The model returned a wrong number of logits.
    #[error(
        "path {path} returned {given} logits where {expected} were expected: the model and the engine disagree"
    )]
    Shape {
        /// The path.
        path: PathId,
        /// Number of logits returned.
        given: usize,
        /// Expected number of logits.
        expected: usize,
    },
    /// The model failed.
    #[error("{action} failed")]
    Model {
        /// The failed action, as in `routing the prompt`.
        action: String,
        /// Error of the model.
        #[source]
        source: BoxError,
    },
    /// The request panicked, which is a bug. The engine goes on with other requests.
    #[error("the request panicked, which is a bug: {message}")]
    Panicked {
        /// Message of the panic.
        message: String,
    },
}

impl EngineError {
    /// The same failure for another sequence. Its causes become text.
    pub(crate) fn again(&self) -> Self {
        let mut causes = String::new();
        let mut cause = std::error::Error::source(self);
        while let Some(next) = cause {
            causes.push_str(if causes.is_empty() { "" } else { ": " });
            causes.push_str(&next.to_string());
            cause = next.source();
        }
        match self {
            Self::Model { action, .. } => Self::Model { action: action.clone(), source: causes.into() },
            Self::Panicked { message } => Self::Panicked { message: message.clone() },
            other => Self::Model { action: other.to_string(), source: causes.into() },
        }
    }
}
