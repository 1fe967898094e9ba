//! Errors that every role of a training run shares.

use std::path::PathBuf;

use thiserror::Error;

/// An error of the store, the network, the files or the tasks of any role.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The text holds no sequence.
    #[error("{} holds no sequence to train on: give `dipaco prepare` more text", file.display())]
    NoText {
        /// The token file.
        file: PathBuf,
    },
    /// The user asked to stop.
    #[error("stopped on request; all committed results are kept")]
    Cancelled,
    /// A file can't be used.
    #[error("can't {action} {}", file.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file.
        file: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// A task of this program panicked.
    #[error("internal fault of dipaco: a task panicked; please report it")]
    Task {
        /// The panic.
        #[from]
        source: tokio::task::JoinError,
    },
    /// A fault of this program.
    #[error("internal fault of dipaco: {what}; please report it")]
    Internal {
        /// The assumption that does not hold.
        what: String,
    },
    /// Levels and model do not fit.
    #[error(transparent)]
    Topology(#[from] dipaco_topology::TopologyError),
    /// The model can't be composed or run.
    #[error(transparent)]
    Model(#[from] dipaco_model::ModelError),
    /// A file can't be published.
    #[error(transparent)]
    File(#[from] dipaco_files::FileError),
    /// Scores of the reserved documents can't be read.
    #[error(transparent)]
    Routing(#[from] dipaco_routing::RoutingError),
    /// A token file can't be read.
    #[error(transparent)]
    Shards(#[from] dipaco_shards::ShardsError),
    /// The run store can't be used.
    #[error(transparent)]
    Store(#[from] dipaco_store::StoreError),
    /// The network can't be used.
    #[error(transparent)]
    Net(#[from] dipaco_net::NetError),
    /// Training of a path fails.
    #[error(transparent)]
    Path(#[from] dipaco_path::PathError),
    /// The plan of the run does not fit together, or cannot be read.
    #[error(transparent)]
    Plan(#[from] dipaco_protocol::PlanError),
}

/// Implements the conversions of shared causes into the error of a role, by way of [`TrainError`].
macro_rules! through_train_error {
    ($role:ty) => {
        $crate::error::through_train_error!(
            $role:
            dipaco_model::ModelError,
            dipaco_net::NetError,
            dipaco_path::PathError,
            dipaco_protocol::PlanError,
            dipaco_store::StoreError,
            dipaco_topology::TopologyError,
            tokio::task::JoinError,
        );
    };
    ($role:ty: $($cause:ty),+ $(,)?) => {
        $(impl From<$cause> for $role {
            fn from(cause: $cause) -> Self {
                Self::from($crate::TrainError::from(cause))
            }
        })+
    };
}
pub(crate) use through_train_error;
