//! Errors of the steps.

use std::path::PathBuf;
use std::process::ExitStatus;

use dipaco_config::TrainConfig;
use dipaco_store::StoreError;
use dipaco_topology::{ModuleId, PathId};
use dipaco_train::client::{ClientError, TokenPlaceError, TokenUrlError};
use dipaco_train::{CoordinatorError, TrainError};
use thiserror::Error;

use crate::authority_error::AuthorityError;
use crate::export_error::ExportError;
use crate::extend_error::ExtendError;
use crate::label_error::LabelError;
use crate::measured_runs::MeasuredRunsError;
use crate::pretrained_error::PretrainedError;
use crate::serve_memory::ServerTooLarge;
use crate::stale_shards::StaleShards;

/// Why a step failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A step needs prepared text.
    #[error("there is no prepared text in {}: run `dipaco prepare` with this run first", folder.display())]
    NotPrepared {
        /// The folder of prepared text.
        folder: PathBuf,
    },
    /// A step needs validation text, and the prepared text has none.
    #[error(
        "the prepared text in {} has no validation documents: prepare it in a new folder with --validation, or with \
         prepare.validation_fraction above 0",
        folder.display()
    )]
    NoValidationText {
        /// The folder of prepared text.
        folder: PathBuf,
    },
    /// The text to prepare holds the store of a run.
    #[error(
        "{} is the store of a run and lies in a folder of the text, so its files would be read as text: name the files and \
         folders of the text instead of a folder around the store, or move the store and set run.store to its new place",
        store.display()
    )]
    StoreInText {
        /// The folder of the store.
        store: PathBuf,
    },
    /// The HTTP port of a training or a synchronizer can't be opened.
    #[error("nobody can watch this process at {address}: name another address with --http, or leave it out")]
    Watch {
        /// The address.
        address: std::net::SocketAddr,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A command names a run directory that does not exist.
    #[error("there is no run in {}: check --run, or run `dipaco prepare` with this directory first", folder.display())]
    NoRun {
        /// The directory.
        folder: PathBuf,
    },
    /// The files of a pretrained model.
    #[error(transparent)]
    Pretrained(#[from] PretrainedError),
    /// A pretrained model can't be used.
    #[error(transparent)]
    Import(#[from] dipaco_model::ImportError),
    /// The run's seed is not a pretrained model with further steps.
    #[error("this run has no imported model besides its seed")]
    NotImported,
    /// A step needs a router and shards.
    #[error(
        "there are no shards in {}: run `dipaco route fit` and `dipaco route assign` with this run first, or for a later phase of \
         routing `dipaco route refit`",
        folder.display()
    )]
    NotRouted {
        /// The folder of the phase of routing.
        folder: PathBuf,
    },
    /// The router is damaged or of another version.
    #[error("{} can't be used: run `dipaco route fit` and `dipaco route assign` again", file.display())]
    Router {
        /// The router's file.
        file: PathBuf,
        /// The reason.
        #[source]
        source: dipaco_routing::RoutingError,
    },
    /// Another router than that of the trained paths is to be fitted.
    #[error(
        "{} divided the text of the trained paths, and the text or the settings of routing differ now: set them back, or route \
         and train in another run directory",
        file.display()
    )]
    RouterInUse {
        /// The router's file.
        file: PathBuf,
    },
    /// Other shards than those that the paths were trained on are to be made.
    #[error(
        "{} holds the shards of the trained paths, and the text, the router or the settings of their division \
         (routing.overlap, routing.router_share, routing.seed) differ now: set them back, or route and train in another run \
         directory",
        folder.display()
    )]
    ShardsInUse {
        /// The folder of the shards.
        folder: PathBuf,
    },
    /// The shards belong to another router, another text or other settings.
    #[error(transparent)]
    StaleShards(#[from] StaleShards),
    /// The tokenizer is not the one that the run was routed with.
    #[error(
        "{} has hash {found}, but this run was routed with the tokenizer {expected}: put that tokenizer.json back, or \
         route and train again with this one",
        file.display()
    )]
    OtherTokenizer {
        /// The tokenizer's file.
        file: PathBuf,
        /// Its hash.
        found: String,
        /// Hash of the tokenizer that the run was routed with.
        expected: String,
    },
    /// The training replaces its weights faster than a reader can ask for them.
    #[error(
        "the training in {store} replaces its weights too fast to read them: try again after the training"
    )]
    BusyRun {
        /// Address of the store.
        store: String,
    },
    /// The run is in training, or is being taken back.
    #[error("the run in {} {busy}", folder.display())]
    RunBusy {
        /// The run's directory.
        folder: PathBuf,
        /// Who has the run, and what to do.
        busy: &'static str,
    },
    /// A file can't be published.
    #[error(transparent)]
    File(#[from] dipaco_files::FileError),
    /// A synchronizer needs a token, which the coordinator writes.
    #[error(
        "{} does not exist: start `dipaco coordinator` with this run first; it writes the file",
        file.display()
    )]
    NoCoordinator {
        /// The file of the token.
        file: PathBuf,
    },
    /// A synchronizer has another store than its coordinator.
    #[error(
        "the store {store} does not hold the run {run} of the token: copy config.toml of the run to this machine, with \
         `run.store` at an address that both the coordinator and this machine reach"
    )]
    OtherStore {
        /// The address of the store.
        store: String,
        /// Identity of the token's run.
        run: String,
    },
    /// A step needs the seed.
    #[error("this run has no finished seed model: run `dipaco seed` first")]
    NoSeed,
    /// The seed of another run reads the tokens of another tokenizer.
    #[error(
        "{} is not the tokenizer of the other run's seed: prepare this run's text with --set prepare.tokenizer={}",
        file.display(),
        expected.display()
    )]
    SeedTokenizer {
        /// This run's tokenizer.
        file: PathBuf,
        /// The tokenizer of the seed.
        expected: PathBuf,
    },
    /// A step needs trained paths.
    #[error("the paths of this run have not been trained: run `dipaco train` first")]
    NotTrained,
    /// Early stopping needs held-out losses, and no path has one.
    #[error(
        "no path of the run in {store} has a held-out loss of this phase of routing, by which its best version is chosen: leave \
         out early stopping (--early-stopping), wait until the training has measured one, or train with \
         train.holdout_fraction and train.holdout_sequences above 0"
    )]
    NoBest {
        /// Address of the store.
        store: String,
    },
    /// The next router needs reserved documents.
    #[error("{} holds no reserved documents: set routing.router_share, and run `dipaco route assign` before training begins", file.display())]
    NoReserved {
        /// The file of reserved documents.
        file: PathBuf,
    },
    /// The configuration has no further phase of routing.
    #[error(
        "the run is in phase {phase} of routing, the last of its configuration: list the next in [[routing.phases]]"
    )]
    NoPhase {
        /// The phase that the run is in.
        phase: u32,
    },
    /// Re-routing needs the transformer router.
    #[error(
        "there is no transformer router in {}: run `dipaco route fit-transformer` with this run first, or choose by the run's \
         own router (evaluation.reroute_by or serve.reroute_by = \"features\")",
        folder.display()
    )]
    NoTransformer {
        /// The folder of the phase of routing.
        folder: PathBuf,
    },
    /// A path number outside the topology.
    #[error("there is no path {path}: this run has paths 0 to {}", paths.saturating_sub(1))]
    NoSuchPath {
        /// The path.
        path: PathId,
        /// Number of paths of the run.
        paths: u32,
    },
    /// The manifest does not list the weights of a module.
    #[error(
        "the run's manifest does not list the weights of module {module}: the run was trained with another topology or \
         fragments, use the configuration that is saved with the run"
    )]
    StoreLacks {
        /// The module.
        module: ModuleId,
    },
    /// The key of the run's authority.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// Two processes want to run experiments in one folder.
    #[error(
        "another process runs experiments in {}: wait for it, or give another folder with --out",
        folder.display()
    )]
    FolderBusy {
        /// The folder.
        folder: PathBuf,
    },
    /// The caller asked to stop.
    #[error("interrupted; finished work is kept")]
    Interrupted,
    /// A file or folder.
    #[error("can't {action} {}", path.display())]
    Io {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A worker process can't be started.
    #[error("worker {name} can't be started")]
    Worker {
        /// The worker.
        name: String,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A worker process fails again and again.
    #[error("worker {name} keeps failing ({status}); the end of {}:\n{tail}", log.display())]
    WorkerFailed {
        /// The worker.
        name: String,
        /// Its last exit status.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// This process can't keep to its processors.
    #[error(transparent)]
    Processors(#[from] crate::memory_nodes::ProcessorsError),
    /// More threads than a machine has use for: starting them takes minutes.
    #[error("{threads} threads are too many: give 1 to {}, or 0 for one per core", TrainConfig::MOST_THREADS)]
    ManyThreads {
        /// Number of threads.
        threads: usize,
    },
    /// Threads can't be started.
    #[error("can't compute with {threads} threads")]
    Threads {
        /// Number of threads.
        threads: usize,
        /// The reason.
        #[source]
        source: rayon::ThreadPoolBuildError,
    },
    /// The training beside a server went on to another phase, with another router.
    #[error(
        "the training is in phase {phase}, and the server routes by the router of phase {served}: start the server again"
    )]
    OtherPhase {
        /// The phase of the training.
        phase: u32,
        /// The phase of the server's router.
        served: u32,
    },
    /// A task of this program panicked.
    #[error("internal fault of dipaco: a task of this program panicked; please report it")]
    Task {
        /// The panic.
        #[source]
        source: tokio::task::JoinError,
    },
    /// A state that this program rules out.
    #[error("internal fault of dipaco: {what}; please report it")]
    Internal {
        /// The contradiction.
        what: &'static str,
        /// The error that it came with.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// Labels of documents.
    #[error(transparent)]
    Labels(#[from] LabelError),
    /// No law can be fitted to the results of experiments.
    #[error(transparent)]
    MeasuredRuns(#[from] MeasuredRunsError),
    /// Exported files that were read again.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// Extending a finished run.
    #[error(transparent)]
    Extend(#[from] ExtendError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] dipaco_config::ConfigError),
    /// Text, tokenizers and token files.
    #[error(transparent)]
    Shards(#[from] dipaco_shards::ShardsError),
    /// Routers and shards.
    #[error(transparent)]
    Routing(#[from] dipaco_routing::RoutingError),
    /// Coordinator, synchronizer, seed and router training.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A run can't be extended.
    #[error(transparent)]
    Extension(#[from] dipaco_train::ExtensionError),
    /// The seed can't be trained.
    #[error(transparent)]
    SeedTraining(#[from] dipaco_train::SeedError),
    /// Documents can't be scored, or a router can't be trained.
    #[error(transparent)]
    RouterTraining(#[from] dipaco_train::RouterError),
    /// The worker fails.
    #[error(transparent)]
    Training(#[from] dipaco_train::WorkerError),
    /// The coordinator fails.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// The synchronizer fails.
    #[error(transparent)]
    Synchronizer(#[from] dipaco_train::SynchronizerError),
    /// Connections of peers can't be served.
    #[error(transparent)]
    Host(#[from] dipaco_train::HostError),
    /// The trainer of a path.
    #[error(transparent)]
    Path(#[from] dipaco_path::PathError),
    /// The plan of a training.
    #[error(transparent)]
    Plan(#[from] dipaco_protocol::PlanError),
    /// The model.
    #[error(transparent)]
    Model(#[from] dipaco_model::ModelError),
    /// The topology.
    #[error(transparent)]
    Topology(#[from] dipaco_topology::TopologyError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Connections and certificates.
    #[error(transparent)]
    Net(#[from] dipaco_net::NetError),
    /// A token can't be read.
    #[error(transparent)]
    Token(#[from] TokenPlaceError),
    /// The event file.
    #[error(transparent)]
    Events(#[from] dipaco_telemetry::EventsError),
    /// A server that needs more memory than there is.
    #[error(transparent)]
    ServeMemory(#[from] ServerTooLarge),
    /// The run as a model for inference.
    #[error(transparent)]
    RunModel(#[from] dipaco_infer::RunModelError),
    /// The HTTP server.
    #[error(transparent)]
    Server(#[from] dipaco_server::ServerError),
    /// Charts.
    #[error(transparent)]
    Plot(#[from] dipaco_plot::PlotError),
    /// Evaluation.
    #[error(transparent)]
    Eval(#[from] dipaco_eval::EvalError),
    /// Experiments and their results.
    #[error(transparent)]
    Experiment(#[from] dipaco_experiment::ExperimentError),
}

impl PipelineError {
    /// Returns whether a process gave up because the coordinator or its token can't be reached. Starting it again later may
    /// help.
    pub fn is_unreachable(&self) -> bool {
        let unreachable = |error: &ClientError| matches!(error, ClientError::Unreachable { .. });
        match self {
            Self::Training(dipaco_train::WorkerError::Client(error))
            | Self::Synchronizer(dipaco_train::SynchronizerError::Client(error)) => unreachable(error),
            Self::Token(TokenPlaceError::Url(error)) => error.passes(),
            _ => false,
        }
    }

    /// Returns whether another command works on the run or folder. Starting this one later helps.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::RunBusy { .. } | Self::FolderBusy { .. })
    }

    /// Returns whether another coordinator has taken the run over. Starting this one again would take the run back.
    pub fn is_replaced(&self) -> bool {
        let (Self::Coordinator(CoordinatorError::Core(core)) | Self::Train(core)) = self else {
            return false;
        };
        matches!(core, TrainError::Store(StoreError::Conflict { .. }))
    }

    /// Returns whether the user's configuration or arguments are the cause.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::Topology(_)
            | Self::Path(dipaco_path::PathError::BuiltWithoutCuda)
            | Self::Token(TokenPlaceError::Url(TokenUrlError::Address { .. }))
            | Self::NoRun { .. }
            | Self::StoreInText { .. }
            | Self::NoSuchPath { .. }
            | Self::ManyThreads { .. }
            | Self::Coordinator(CoordinatorError::OtherTraining)
            | Self::Extend(
                ExtendError::Itself { .. } | ExtendError::Setting { .. } | ExtendError::Kept { .. },
            )
            | Self::ServeMemory(_)
            | Self::Model(dipaco_model::ModelError::Config { .. })
            | Self::Routing(dipaco_routing::RoutingError::Config { .. })
            | Self::Eval(dipaco_eval::EvalError::Config { .. })
            | Self::Server(dipaco_server::ServerError::Config(_)) => true,
            Self::Experiment(error) => error.is_configuration(),
            _ => false,
        }
    }
}
