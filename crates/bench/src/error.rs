//! Errors of measurements.

use dipaco_topology::{ModuleId, PathId};
use dipaco_train::client::ClientError;
use dipaco_train::{HostError, TrainError};
use thiserror::Error;

/// An error of a load test or a transfer trial.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// An outer gradient of zeros can't be encoded.
    #[error("the outer gradient of module {module} from path {path} can't be encoded: {why}")]
    OuterGradient {
        /// The module.
        module: ModuleId,
        /// The path.
        path: PathId,
        /// The reason.
        why: dipaco_codec::CodecError,
    },
    /// The coordinator's run ended before the load test.
    #[error("the run was complete before the end of the load test: give the coordinator more rounds")]
    RunComplete,
    /// The worker of a lease trial.
    #[error("the measured worker failed")]
    Worker(#[source] Box<dipaco_train::WorkerError>),
    /// A lease of a trial was lost, so its costs are not those of a lease.
    #[error("a measured lease was lost: repeat the measurement on a less busy machine")]
    LeaseLost,
    /// The session with the coordinator, or a transfer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The receipt of an uploaded result.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The shared core of all roles.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The plan of the run.
    #[error(transparent)]
    Plan(#[from] dipaco_protocol::PlanError),
    /// The network.
    #[error(transparent)]
    Net(#[from] dipaco_net::NetError),
    /// The run store.
    #[error(transparent)]
    Store(#[from] dipaco_store::StoreError),
    /// The topology of the run.
    #[error(transparent)]
    Topology(#[from] dipaco_topology::TopologyError),
    /// The layout or the state of a path.
    #[error(transparent)]
    Path(#[from] dipaco_path::PathError),
    /// A task of this program panicked.
    #[error("internal fault of dipaco: a task panicked; please report it")]
    Task(#[from] tokio::task::JoinError),
    /// The address of a server.
    #[error("{url} can't be used as a server's address: {why}")]
    Url {
        /// The address.
        url: String,
        /// The reason.
        why: String,
    },
    /// A server that answered no request.
    #[error("{url} answered no request: {why}")]
    NoAnswer {
        /// The address.
        url: String,
        /// The reason of the first failure.
        why: String,
    },
    /// A server that refused requests as invalid.
    #[error(
        "{refused} of {of} requests were refused as invalid: {why}; lower --prompt-tokens, --max-tokens, --vocabulary or --paths, \
         or shorten the prompts of --prompts, so that the server can answer all"
    )]
    Invalid {
        /// Number of these requests.
        refused: usize,
        /// Number of all measured requests.
        of: usize,
        /// The reasons.
        why: String,
    },
    /// The user asked to stop.
    #[error("stopped on request")]
    Cancelled,
}
