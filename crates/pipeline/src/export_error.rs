//! Errors of exported files that were read again.

use std::path::PathBuf;

use thiserror::Error;

use crate::logit_difference::LogitDifference;

/// Why exported files are not the model that was exported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The files are a model of another vocabulary.
    #[error(
        "{} is a model of {found} tokens instead of {expected}: this is a fault of dipaco, please report it",
        file.display()
    )]
    Vocabulary {
        /// The folder or file.
        file: PathBuf,
        /// Number of tokens of the files' model.
        found: usize,
        /// Number of tokens of the exported weights.
        expected: usize,
    },
    /// The files are not rounded, and give other logits.
    #[error(
        "{} does not give the logits of the weights: {difference}; do not use it, this is a fault of dipaco: please report it",
        file.display()
    )]
    Differs {
        /// The folder or file.
        file: PathBuf,
        /// The logits of both.
        difference: LogitDifference,
    },
}
