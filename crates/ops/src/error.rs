//! Errors of the operations.

use thiserror::Error;

use crate::KernelSetError;

/// An error of an operation on tensors.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpsError {
    /// The arguments' shapes do not fit the operation or each other.
    #[error("{operation}: {problem}")]
    Shape {
        /// The operation.
        operation: &'static str,
        /// The arguments that do not fit, with their shapes.
        problem: String,
    },
    /// Token or target ids belong to a larger vocabulary than the weights.
    #[error(
        "{operation}: the weights have {entries} entries, but the ids are of a vocabulary of {ids}: was the text encoded by another tokenizer?"
    )]
    Vocabulary {
        /// The operation.
        operation: &'static str,
        /// Size of the vocabulary of the ids.
        ids: usize,
        /// V, the number of entries of the weights.
        entries: usize,
    },
    /// The forced set of kernels can't run.
    #[error(transparent)]
    Kernels(#[from] KernelSetError),
    /// candle reported an error.
    #[error("a tensor operation failed")]
    Tensor(#[from] candle_core::Error),
}

/// Builds a shape error.
pub(crate) fn shape(operation: &'static str, problem: impl Into<String>) -> OpsError {
    OpsError::Shape { operation, problem: problem.into() }
}
