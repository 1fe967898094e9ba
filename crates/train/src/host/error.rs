//! Errors of hosting peers.

use thiserror::Error;

use crate::TrainError;
use crate::error::through_train_error;

/// An error of serving connections or receiving results.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The uploaded content differs from the announced digest. A refusal tells the worker this in one line.
    #[error(
        "its content has BLAKE3 {found}, the upload announced {expected}: upload it again, and check the memory of the worker's machine"
    )]
    OtherContent {
        /// Announced hash.
        expected: String,
        /// Hash of the received content.
        found: String,
    },
    /// The machine has no memory for a result.
    #[error(
        "there is no memory for a result of {bytes} bytes: stop other programs, or train smaller modules"
    )]
    Memory {
        /// Length of the result in bytes.
        bytes: u64,
    },
    /// A panic has left the process's state half changed.
    #[error(
        "a bug stopped a change in the middle, so the state in memory can't be trusted: report the panic above, and start again with --resume"
    )]
    Broken,
    /// An error that all roles share.
    #[error(transparent)]
    Core(#[from] TrainError),
}

through_train_error!(HostError);
