//! Errors of the operations.

use thiserror::Error;

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
    /// A token or target id is not below the size of the vocabulary.
    #[error("{operation}: token id {token} is not in the vocabulary of {vocabulary} entries")]
    Token {
        /// The operation.
        operation: &'static str,
        /// The id.
        token: u32,
        /// V, the number of entries.
        vocabulary: usize,
    },
    /// candle reported an error.
    #[error("a tensor operation failed")]
    Tensor(#[from] candle_core::Error),
}

/// Builds a shape error.
pub(crate) fn shape(operation: &'static str, problem: impl Into<String>) -> OpsError {
    OpsError::Shape { operation, problem: problem.into() }
}
