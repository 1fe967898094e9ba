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
    /// The store has a seed of another configuration or data.
    #[error(
        "this run's seed model was trained with another configuration or other text: use another run directory, or train it anew with `dipaco seed --restart`"
    )]
    OtherSeed,
    /// The seed can't be replaced: paths have been trained from it.
    #[error(
        "paths have been trained from this run's seed model: train another seed in another run directory"
    )]
    SeedInUse,
    /// A score is not finite.
    #[error(
        "path {path} gives token {token} of the reserved documents no finite probability: its weights diverged"
    )]
    ScoreNotFinite {
        /// The path.
        path: PathId,
        /// The token's place in the token file.
        token: u64,
    },
    /// There is no text at all.
    #[error("{} holds no sequence to train on: give `dipaco prepare` more text", file.display())]
    NoText {
        /// The token file.
        file: PathBuf,
    },
    /// A path state of another size.
    #[error(
        "the path's state holds {found} moments, its model {expected} parameters: it belongs to another configuration"
    )]
    PathStateLength {
        /// Parameters of the path.
        expected: usize,
        /// Moments in the state.
        found: usize,
    },
    /// The manifest does not hold what it must.
    #[error(
        "the manifest lacks {what}: it is damaged or of another run; go back to a copy of the run's store"
    )]
    ManifestLacks {
        /// What is missing.
        what: String,
    },
    /// An outer gradient can't be written or read. A refusal tells it in one line.
    #[error("the outer gradient of module {module} from path {path}: {why}")]
    OuterGradient {
        /// The module.
        module: ModuleId,
        /// The path.
        path: PathId,
        /// Why.
        why: dipaco_codec::CodecError,
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
    /// The lease under which a worker works is over; what it did under it is dropped, and it asks for another one.
    #[error("the lease is lost: {reason}")]
    LeaseLost {
        /// Why, in the coordinator's words.
        reason: String,
    },
    /// The coordinator's answer does not fit the question.
    #[error("the coordinator's answer to a {request} is none: the two are of different versions")]
    UnexpectedAnswer {
        /// The question.
        request: &'static str,
    },
    /// The coordinator at the token's address serves another run.
    #[error(
        "the coordinator at this address serves run {found}, the token is for {expected}: get the token of this run"
    )]
    OtherRun {
        /// The token's run.
        expected: String,
        /// The coordinator's run.
        found: String,
    },
    /// A synchronizer can't answer what the coordinator can.
    #[error("a synchronizer sends on to the coordinator: {reason}")]
    Elsewhere {
        /// Why.
        reason: String,
    },
    /// The coordinator came back with another configuration.
    #[error("the coordinator came back with another configuration: start the worker again")]
    PlanChanged,
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
    /// There is no memory for an object.
    #[error(
        "there is no memory for an object of {bytes} bytes: stop other programs, or train smaller modules"
    )]
    Memory {
        /// The object's length in bytes.
        bytes: u64,
    },
    /// The coordinator sent something else than was asked for, twice, and finds its own copy sound.
    #[error(
        "{name} arrived twice with another content than the coordinator's manifest says: check the memory of this machine, and that both run the same version"
    )]
    OtherObject {
        /// The object asked for.
        name: String,
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
            dipaco_model::ModelError,
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
