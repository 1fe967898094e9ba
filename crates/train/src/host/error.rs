//! Errors of hosting peers.

use dipaco_store::DiskError;
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

/// The reason why the pieces of a result can't be collected. It concerns this result alone, which its worker sends again:
/// a peer can fill the disk of incomplete results, and must not end this process with that.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum CollectError {
    /// The file of the result can't be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The file of the result can't be read for its check.
    #[error(transparent)]
    Unread(std::io::Error),
    /// The files of a token hold as much as its leases may send.
    #[error(
        "results of the token {token:?} have files for more than the {most} bytes that its leases may send"
    )]
    Share {
        /// Name of the token.
        token: String,
        /// Length in bytes of all results in progress with the token.
        most: u64,
    },
}
