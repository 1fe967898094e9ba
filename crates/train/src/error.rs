//! Errors that every role of a training run shares.

use std::path::PathBuf;

use dipaco_topology::{ModuleId, PathId};
use thiserror::Error;

/// An error of the store, the network, the files or the tasks of any role.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The store has no finished seed.
    #[error("this run has no finished seed model: run `dipaco seed` first")]
    NoSeed,
    /// Training has not begun.
    #[error("the training of this run has not begun: run `dipaco train`")]
    NotStarted,
    /// Training has begun and may not be continued.
    #[error(
        "the training of this run has begun ({rounds} of {of} rounds done): continue it with --resume, or use another run directory"
    )]
    AlreadyStarted {
        /// Rounds that every path has done.
        rounds: u32,
        /// Rounds in all.
        of: u32,
    },
    /// The store has the training of another configuration or data.
    #[error(
        "this run was trained with another configuration, seed model or shards, and going on would mix the two: continue it with its own configuration, or use another run directory"
    )]
    OtherTraining,
    /// The run's shards do not fit its topology.
    #[error(
        "there are {shards} shards for {paths} paths: run `dipaco route fit` and `dipaco route assign` for this configuration"
    )]
    ShardCount {
        /// Shards that there are.
        shards: usize,
        /// Paths of the topology.
        paths: u32,
    },
    /// A path has nothing to train on.
    #[error(
        "path {path} has no documents to train on: use fewer paths, more text, or another router seed (`--set router.seed=…`), and route again"
    )]
    EmptyShard {
        /// The path.
        path: PathId,
    },
    /// A phase of routing can't begin yet.
    #[error(
        "the next phase begins after {round} rounds of every path, and the run is not there yet: train on first"
    )]
    NotAtBoundary {
        /// The round with which the phase ends.
        round: u32,
    },
    /// The text could not be divided anew.
    #[error(transparent)]
    Reroute {
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is no text at all.
    #[error("{} holds no sequence to train on: give `dipaco prepare` more text", file.display())]
    NoText {
        /// The token file.
        file: PathBuf,
    },
    /// The manifest does not hold what it must.
    #[error(
        "the manifest lacks {what}: it is damaged or of another run; go back to a copy of the run's store"
    )]
    ManifestLacks {
        /// What is missing.
        what: String,
    },
    /// The change of a module can't be written or read.
    #[error("the change of module {module}: {why}")]
    Broadcast {
        /// The module.
        module: ModuleId,
        /// Why.
        why: dipaco_codec::CodecError,
    },
    /// The coordinator refuses the worker or what it brings.
    #[error("the coordinator refuses: {reason}")]
    Refused {
        /// Why, in its words.
        reason: String,
    },
    /// The coordinator's answer does not fit the question.
    #[error("the coordinator's answer to a {request} is none: the two are of different versions")]
    UnexpectedAnswer {
        /// The question.
        request: &'static str,
    },
    /// Something that the run needs is damaged, and so are its checkpoints.
    #[error("the run can't go on, and has no checkpoint that is whole: restore its store from a copy")]
    DamagedRun {
        /// The first object that is damaged.
        source: dipaco_store::StoreError,
    },
    /// The run was completed by others while this worker still had a lease.
    #[error("the run is complete")]
    Complete,
    /// The user asked to stop.
    #[error("stopped on request; what was committed is kept")]
    Cancelled,
    /// A file can't be used.
    #[error("can't {action} {}", file.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        file: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Something can't be written as JSON.
    #[error("can't write the configuration as JSON")]
    Json {
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
    /// The pieces of a result are no whole.
    #[error(
        "its pieces make a whole with BLAKE3 {found}, and {expected} was said: bring it again, and check the memory of the worker's machine"
    )]
    OtherContent {
        /// The hash that the worker gave.
        expected: String,
        /// The hash of what arrived.
        found: String,
    },
    /// There is no memory for an object.
    #[error(
        "there is no memory for an object of {bytes} bytes: stop other programs, or train smaller modules"
    )]
    Memory {
        /// The object's length in bytes.
        bytes: u64,
    },
    /// A task of this program panicked.
    #[error("internal fault of dipaco: a task panicked; please report it")]
    Thread {
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
    /// Saved progress can't be continued.
    #[error(transparent)]
    Progress(#[from] dipaco_sync::ProgressError),
    /// Contributions can't be merged.
    #[error(transparent)]
    Fold(#[from] dipaco_sync::FoldError),
    /// Levels and model do not fit.
    #[error(transparent)]
    Topology(#[from] dipaco_topology::TopologyError),
    /// The model can't be composed or run.
    #[error(transparent)]
    Model(#[from] dipaco_model::ModelError),
    /// A token file can't be read.
    #[error(transparent)]
    Shards(#[from] dipaco_shards::ShardsError),
    /// The run store can't be used.
    #[error(transparent)]
    Store(#[from] dipaco_store::StoreError),
    /// The network can't be used.
    #[error(transparent)]
    Net(#[from] dipaco_net::NetError),
    /// The event file can't be written.
    #[error(transparent)]
    Events(#[from] dipaco_telemetry::EventsError),
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
            dipaco_net::NetError,
            dipaco_path::PathError,
            dipaco_protocol::PlanError,
            dipaco_store::StoreError,
            dipaco_telemetry::EventsError,
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
