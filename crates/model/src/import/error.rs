//! Errors of importing a model.

use thiserror::Error;

use crate::ModelError;

/// Why a pretrained model can't be imported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A file is not JSON, or not a JSON object.
    #[error("{file} is not a JSON object")]
    Json {
        /// The file.
        file: String,
        /// The reason; absent for JSON of another kind.
        #[source]
        source: Option<serde_json::Error>,
    },
    /// A value of a file is missing or makes no sense.
    #[error("{file}: {key} {problem}")]
    Value {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// The problem.
        problem: String,
    },
    /// The model has a part that this program does not compute.
    #[error("{file}: {what} is not supported: {supported}")]
    Unsupported {
        /// The file.
        file: String,
        /// The part, with its value in the file.
        what: String,
        /// What is supported instead.
        supported: &'static str,
    },
    /// A tensor is missing, unknown, or of another shape or type.
    #[error("{file}: tensor `{tensor}` {problem}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The problem.
        problem: String,
    },
    /// A file is no safetensors file, or damaged.
    #[error("{file} is not a valid safetensors file")]
    Safetensors {
        /// The file.
        file: String,
        /// The reason.
        #[source]
        source: safetensors::SafeTensorError,
    },
    /// A file is no GGUF file, or damaged.
    #[error("{file} is not a valid GGUF file: {problem}")]
    Gguf {
        /// The file.
        file: String,
        /// The problem.
        problem: String,
    },
    /// The settings are outside of what a path can have.
    #[error("the model's settings can't be used")]
    Model(#[from] ModelError),
}
