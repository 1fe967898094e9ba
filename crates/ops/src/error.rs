//! What can go wrong in an operation.

use thiserror::Error;

/// Why an operation on tensors failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpsError {
    /// The arguments' shapes do not fit the operation or each other.
    #[error("{operation}: {problem}")]
    Shape {
        /// The operation.
        operation: &'static str,
        /// What does not fit, with the shapes.
        problem: String,
    },
    /// A token id or target that the vocabulary does not have.
    #[error("{operation}: token id {token} is not in the vocabulary of {vocabulary} entries")]
    Token {
        /// The operation.
        operation: &'static str,
        /// The id.
        token: u32,
        /// V, the number of entries.
        vocabulary: usize,
    },
    /// The tensor library refused.
    #[error("a tensor operation failed")]
    Tensor(#[from] candle_core::Error),
}

/// Builds a shape error.
pub(crate) fn shape(operation: &'static str, problem: impl Into<String>) -> OpsError {
    OpsError::Shape { operation, problem: problem.into() }
}
