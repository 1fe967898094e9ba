//! Errors of this package.

use dipaco_ops::{OpsError, TokenError};
use thiserror::Error;

use crate::gguf::VocabularyError;

/// Error of code that a caller gives, such as a tokenizer or a store behind a trait: kept as the source of another error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Error of building, loading or running a model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A value of section `[model]` is out of range or does not fit another value.
    #[error("{key}: {problem}")]
    Config {
        /// The wrong key or keys, such as `model.heads`.
        key: &'static str,
        /// The problem and its remedy.
        problem: String,
    },
    /// Weights do not match the configuration.
    #[error("tensor `{tensor}`: {problem}")]
    Weights {
        /// Name of the tensor.
        tensor: String,
        /// The problem.
        problem: String,
    },
    /// The modules do not form a path.
    #[error("a path can't be composed: {problem}")]
    Compose {
        /// The problem.
        problem: String,
    },
    /// The bytes are not a safetensors file, or the file is damaged.
    #[error("the weights are not a valid safetensors file")]
    Safetensors(#[from] safetensors::SafeTensorError),
    /// The sequence is longer than the context.
    #[error(
        "{positions} positions do not fit the context of {context}: shorten the input or raise model.context"
    )]
    Context {
        /// Requested positions, including the positions in the cache.
        positions: usize,
        /// `model.context`.
        context: usize,
    },
    /// A token id is outside of the vocabulary.
    #[error(
        "token id {token} is not in the vocabulary of {vocabulary} entries: was the text encoded by another tokenizer?"
    )]
    Token {
        /// The id.
        token: u32,
        /// V.
        vocabulary: usize,
    },
    /// The length of an argument does not fit the batch.
    #[error("{what}: {problem}")]
    Batch {
        /// Name of the argument.
        what: &'static str,
        /// The problem.
        problem: String,
    },
    /// A tensor was loaded for inference, so it has no gradient.
    #[error("tensor `{tensor}` got no gradient: load its module with `Module::load_trainable`")]
    NoGradient {
        /// Name of the tensor.
        tensor: String,
    },
    /// A file of an exported checkpoint can't be written as JSON.
    #[error("the checkpoint's {file} can't be written")]
    Json {
        /// The file.
        file: &'static str,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// A tokenizer that a GGUF file can't hold.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// Token ids are not a batch.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// An operation failed.
    #[error("the model's computation failed")]
    Operation(#[from] OpsError),
    /// The tensor library returned an error.
    #[error("a tensor operation failed")]
    Tensor(#[from] candle_core::Error),
}
