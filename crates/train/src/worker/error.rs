//! Errors of a worker.

use dipaco_path::PathError;
use dipaco_sync::LeaseKey;
use dipaco_topology::ModuleId;
use thiserror::Error;

use crate::TrainError;
use crate::client::ClientError;
use crate::error::through_train_error;

/// An error that ends a worker.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The lease has ended. The worker drops its results and asks for another lease.
    #[error("the lease is lost: {reason}")]
    LeaseLost {
        /// The reason, mostly in the coordinator's words.
        reason: String,
    },
    /// The training of a lease diverged.
    #[error("a lease of path {} has no result", lease.path)]
    Diverged {
        /// The lease.
        lease: LeaseKey,
        /// Number of inner steps of the path before the step that diverged.
        step: u64,
        /// The divergence.
        source: PathError,
    },
    /// The coordinator names a shard in a way that would leave the folders of shards.
    #[error("the coordinator names the shard {name:?}, which is not the name of a shard: join another run")]
    ShardName {
        /// The name of the file, or the content hash.
        name: String,
    },
    /// A change of global weights can't be read.
    #[error("the change of module {module} can't be read: {why}")]
    WeightChange {
        /// The module.
        module: ModuleId,
        /// The reason.
        why: dipaco_codec::CodecError,
    },
    /// The connection to the coordinator, or a transfer.
    #[error(transparent)]
    Client(ClientError),
    /// An error that all roles share.
    #[error(transparent)]
    Core(#[from] TrainError),
}

through_train_error!(WorkerError);
through_train_error!(WorkerError: dipaco_files::FileError, dipaco_shards::ShardsError);

impl From<ClientError> for WorkerError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::LeaseLost { reason } => Self::LeaseLost { reason },
            ClientError::Core(error) => Self::Core(error),
            error => Self::Client(error),
        }
    }
}

impl WorkerError {
    /// The error of a user who asked to stop.
    pub(super) fn cancelled() -> Self {
        Self::Core(TrainError::Cancelled)
    }

    /// The error of a lease. A divergence names the lease, because the coordinator decides what becomes of its path.
    pub(super) fn of_lease(self, lease: LeaseKey) -> Self {
        match self {
            Self::Core(TrainError::Path(source)) => match source.diverged_at() {
                Some(step) => Self::Diverged { lease, step, source },
                None => source.into(),
            },
            error => error,
        }
    }

    /// The error of a lease whose training was cancelled: the heartbeat heard that it is lost.
    pub(super) fn training_cancelled() -> Self {
        Self::LeaseLost { reason: "its training was cancelled".to_owned() }
    }
}
