//! What can go wrong in this package.

use dipaco_ops::OpsError;
use thiserror::Error;

/// Why a model can't be built, loaded or run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A value of section `[model]` is wrong or does not fit another one.
    #[error("{key}: {problem}")]
    Config {
        /// The key or keys at fault, as in `model.heads`.
        key: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A set of weights is not the one that the configuration asks for.
    #[error("tensor `{tensor}`: {problem}")]
    Weights {
        /// The tensor's name.
        tensor: String,
        /// What does not fit.
        problem: String,
    },
    /// Modules that do not make up a path.
    #[error("a path can't be composed: {problem}")]
    Compose {
        /// What is missing or does not fit.
        problem: String,
    },
    /// Bytes that are no safetensors file, or one that is damaged.
    #[error("the weights are not a valid safetensors file")]
    Safetensors(#[from] safetensors::SafeTensorError),
    /// More positions than the model has.
    #[error("{positions} positions do not fit the context of {context}: shorten the input or raise model.context")]
    Context {
        /// The positions asked for, those already in the cache included.
        positions: usize,
        /// `model.context`.
        context: usize,
    },
    /// A token id that the model does not have.
    #[error("token id {token} is not in the vocabulary of {vocabulary} entries: was the text encoded by another tokenizer?")]
    Token {
        /// The id.
        token: u32,
        /// V.
        vocabulary: usize,
    },
    /// Token lists whose lengths do not fit the batch.
    #[error("{what}: {problem}")]
    Batch {
        /// The argument at fault.
        what: &'static str,
        /// What does not fit.
        problem: String,
    },
    /// The loss does not depend on a parameter, so it can't be trained.
    #[error("tensor `{tensor}` got no gradient: load its module with `Module::load_trainable`")]
    NoGradient {
        /// The tensor's name.
        tensor: String,
    },
    /// A file of an exported checkpoint can't be written as JSON.
    #[error("the checkpoint's {file} can't be written")]
    Json {
        /// The file.
        file: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// An operation failed.
    #[error("the model's computation failed")]
    Operation(#[from] OpsError),
    /// The tensor library refused.
    #[error("a tensor operation failed")]
    Tensor(#[from] candle_core::Error),
}
