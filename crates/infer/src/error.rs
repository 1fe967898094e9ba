//! What can go wrong with a request.

use std::time::Duration;

use dipaco_topology::PathId;
use thiserror::Error;

/// An error of the model or the tokenizer behind the engine's traits.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a request was not admitted or did not finish.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The queue is full for now.
    #[error("the queue is full ({waiting} of at most {limit} {unit} are waiting): try again in {} s", retry_after.as_secs())]
    Overloaded {
        /// What waits.
        waiting: usize,
        /// How much may wait.
        limit: usize,
        /// What is counted: sequences or prompt tokens.
        unit: &'static str,
        /// When to try again: an estimate from the recent requests.
        retry_after: Duration,
    },
    /// A submission that would not fit even into an empty queue.
    #[error(
        "the request holds {given} {unit}, more than the queue's limit of {limit}: send it in smaller parts"
    )]
    TooLarge {
        /// What the request holds.
        given: usize,
        /// How much the queue holds.
        limit: usize,
        /// What is counted: sequences or prompt tokens.
        unit: &'static str,
    },
    /// A prompt without a token.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// Prompt and continuation don't fit into the context.
    #[error(
        "the prompt has {prompt} tokens and max_tokens is {max_tokens}, but max_model_len is {context}: \
         shorten the prompt or lower max_tokens"
    )]
    Context {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens to generate.
        max_tokens: usize,
        /// Tokens that the model can hold.
        context: usize,
    },
    /// A token id outside of the vocabulary.
    #[error("token {token} is not in the vocabulary: ids are below {vocab_size}")]
    Token {
        /// The token.
        token: u32,
        /// V.
        vocab_size: usize,
        /// Where the token was given: `prompt`, `logit_bias` or `stop_token_ids`.
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
        /// The parameter.
        field: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// The request ran out of its time.
    #[error("the request did not finish within its deadline of {} s", deadline.as_secs_f64())]
    Deadline {
        /// The time it had, from its arrival.
        deadline: Duration,
    },
    /// The engine is being stopped.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The model's logits are no distribution.
    #[error("path {path} gave logits that are not finite: its weights are damaged or diverged in training")]
    NotFinite {
        /// The path.
        path: PathId,
    },
    /// The model gave a wrong number of logits.
    #[error(
        "path {path} gave {given} logits where {expected} were expected: the model and the engine disagree"
    )]
    Shape {
        /// The path.
        path: PathId,
        /// Logits given.
        given: usize,
        /// Logits expected.
        expected: usize,
    },
    /// The model failed.
    #[error("{what} failed")]
    Model {
        /// What was being done.
        what: String,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// A bug: the thread that ran the request panicked. The slot goes on with other requests.
    #[error("the request hit a bug: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
}
