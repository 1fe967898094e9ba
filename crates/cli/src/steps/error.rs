//! What can go wrong in a step of a run.

use std::path::PathBuf;
use std::process::ExitStatus;

use dipaco_topology::PathId;
use thiserror::Error;

/// Why a step failed.
#[derive(Debug, Error)]
pub(crate) enum StepError {
    #[error("there is no prepared text in {}: run `dipaco prepare` with this run first", folder.display())]
    NotPrepared { folder: PathBuf },
    #[error("there are no shards in {}: run `dipaco route fit` and `dipaco route assign` with this run first", folder.display())]
    NotRouted { folder: PathBuf },
    #[error("{} can't be used: run `dipaco route fit` and `dipaco route assign` again", file.display())]
    Router {
        file: PathBuf,
        #[source]
        source: dipaco_routing::RoutingError,
    },
    #[error(
        "{} has hash {found}, but this run was routed with the tokenizer {expected}: put that tokenizer.json back, or \
         route and train again with this one",
        file.display()
    )]
    OtherTokenizer { file: PathBuf, found: String, expected: String },
    #[error(
        "{} is not there: start `dipaco coordinator` with this run first, it says there where it is reached",
        file.display()
    )]
    NoCoordinator { file: PathBuf },
    #[error("this run has no finished seed model: run `dipaco seed` first")]
    NoSeed,
    #[error("the paths of this run have not been trained: run `dipaco train` first")]
    NotTrained,
    #[error("{} holds no reserved documents: set routing.router_share, and run `dipaco route assign` before training begins", file.display())]
    NoReserved { file: PathBuf },
    #[error(
        "the run is in phase {phase} of routing, and its configuration has no later one: list it in [[routing.phases]]"
    )]
    NoPhase { phase: u32 },
    #[error(
        "there is no transformer router in {}: run `dipaco route fit-transformer` with this run first",
        folder.display()
    )]
    NoTransformer { folder: PathBuf },
    #[error("the settings can't be written as JSON; this is a fault of dipaco: please report it")]
    Settings {
        #[source]
        source: serde_json::Error,
    },
    #[error(
        "{}, line {line}: this is no label: each line is to be a JSON object with the texts `url` and `domain`",
        file.display()
    )]
    Label {
        file: PathBuf,
        line: u64,
        #[source]
        source: serde_json::Error,
    },
    #[error(
        "{} was prepared into this run's validation text and is not there any more: give the text with --labelled-text",
        file.display()
    )]
    LabelledText { file: PathBuf },
    #[error(
        "{} has labels for {labelled} of the {documents} documents of {}: it is of another text. It has {known} addresses \
         such as {label}, the text has addresses such as {url}",
        labels.display(),
        tokens.display()
    )]
    OtherLabels {
        labels: PathBuf,
        known: usize,
        label: String,
        url: String,
        documents: usize,
        labelled: usize,
        tokens: PathBuf,
    },
    #[error("there is no path {path}: this run has paths 0 to {}", paths.saturating_sub(1))]
    NoSuchPath { path: PathId, paths: u32 },
    #[error("the store of this run lacks {what}: it is damaged or of another run; go back to a copy of it")]
    StoreLacks { what: String },
    #[error("{} belongs to run `{run}`, the store to another: remove the file, and give workers the new token", file.display())]
    OtherAuthority { file: PathBuf, run: String },
    #[error("can't {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("worker {name} can't be started")]
    Worker {
        name: String,
        #[source]
        source: std::io::Error,
    },
    #[error("worker {name} keeps failing ({status}); the end of {}:\n{tail}", log.display())]
    WorkerFailed { name: String, status: ExitStatus, log: PathBuf, tail: String },
    #[error("a part of this program failed; this is a fault of dipaco: please report it")]
    Task {
        #[source]
        source: tokio::task::JoinError,
    },
    #[error("there are no sources of crates in {}: give text of your own with --data", folder.display())]
    NoCrates { folder: PathBuf },
    #[error(
        "the lock file that this program was built with can't be read; this is a fault of dipaco: please report it"
    )]
    Lock {
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("can't compute with {threads} threads")]
    Threads {
        threads: usize,
        #[source]
        source: rayon::ThreadPoolBuildError,
    },
    #[error("{url} does not answer")]
    Request {
        url: String,
        #[source]
        source: Box<ureq::Error>,
    },
    #[error("the answer of {what} is not of its form; this is a fault of dipaco: please report it")]
    Answer { what: &'static str },
    #[error(transparent)]
    Config(#[from] dipaco_config::ConfigError),
    #[error(transparent)]
    Shards(#[from] dipaco_shards::ShardsError),
    #[error(transparent)]
    Routing(#[from] dipaco_routing::RoutingError),
    #[error(transparent)]
    Train(#[from] dipaco_train::TrainError),
    #[error(transparent)]
    SeedTraining(#[from] dipaco_train::SeedError),
    #[error(transparent)]
    RouterTraining(#[from] dipaco_train::RouterError),
    #[error(transparent)]
    Training(#[from] dipaco_train::WorkerError),
    #[error(transparent)]
    Coordinator(#[from] dipaco_train::CoordinatorError),
    #[error(transparent)]
    Synchronizer(#[from] dipaco_train::SynchronizerError),
    #[error(transparent)]
    Host(#[from] dipaco_train::HostError),
    #[error(transparent)]
    Path(#[from] dipaco_path::PathError),
    #[error(transparent)]
    Plan(#[from] dipaco_protocol::PlanError),
    #[error(transparent)]
    Model(#[from] dipaco_model::ModelError),
    #[error(transparent)]
    Topology(#[from] dipaco_topology::TopologyError),
    #[error(transparent)]
    Store(#[from] dipaco_store::StoreError),
    #[error(transparent)]
    Net(#[from] dipaco_net::NetError),
    #[error(transparent)]
    Events(#[from] dipaco_telemetry::EventsError),
    #[error(transparent)]
    RunModel(#[from] dipaco_infer::RunModelError),
    #[error(transparent)]
    Server(#[from] dipaco_server::ServerError),
    #[error(transparent)]
    Plot(#[from] dipaco_plot::PlotError),
    #[error(transparent)]
    Eval(#[from] dipaco_eval::EvalError),
}

impl StepError {
    /// Whether the user's configuration or arguments are at fault.
    pub(crate) fn is_configuration(&self) -> bool {
        matches!(
            self,
            Self::Config(_)
                | Self::Topology(_)
                | Self::Path(dipaco_path::PathError::BuiltWithoutCuda)
                | Self::NoSuchPath { .. }
                | Self::Model(dipaco_model::ModelError::Config { .. })
                | Self::Routing(dipaco_routing::RoutingError::Config { .. })
                | Self::Eval(dipaco_eval::EvalError::Config { .. })
                | Self::Server(dipaco_server::ServerError::Config(_))
        )
    }
}
