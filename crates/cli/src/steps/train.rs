//! Training the paths of a run: the coordinator here, the workers as processes of their own.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use dipaco_config::RunConfig;
use dipaco_net::{JoinToken, Limits, RunAuthority, Server};
use dipaco_path::DeviceChoice;
use dipaco_protocol::WORKER;
use dipaco_store::{RunManifest, RunStore};
use dipaco_telemetry::{Events, Progress};
use dipaco_train::{
    CoordinatorOptions, CoordinatorSummary, OpenRun, Revocations, coordinate, recover, rising_losses,
    small_shards, start_training,
};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio_util::sync::CancellationToken;

use crate::run_directory::RunDirectory;
use crate::steps::error::StepError;
use crate::steps::workers::{WorkerSetup, Workers};
use crate::steps::{files, phases};

/// How long a join token and the coordinator's certificate hold.
pub(crate) const TOKEN_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

/// How a run is trained.
#[derive(Clone, Debug)]
pub(crate) struct TrainOptions {
    /// Worker processes on this machine; 0 when all are elsewhere.
    pub(crate) workers: usize,
    /// The UDP address that the coordinator listens on.
    pub(crate) listen: SocketAddr,
    /// `host:port` by which workers elsewhere reach it; the listening address when empty.
    pub(crate) advertise: Vec<String>,
    /// Continue a run that has begun.
    pub(crate) resume: bool,
    /// End where a phase of routing is to begin, instead of beginning it.
    pub(crate) stop_at_phase: bool,
    /// Where the workers of this machine train.
    pub(crate) device: DeviceChoice,
}

/// Trains until the run is complete or `cancel` is triggered.
pub(crate) async fn train(
    run: &RunDirectory,
    config: &RunConfig,
    options: &TrainOptions,
    progress: &Progress,
    cancel: CancellationToken,
) -> Result<CoordinatorSummary, StepError> {
    let store = open_store(run)?;
    if options.resume {
        recover(&store, progress).await?;
    }
    let phase = phases::current(run).await?;
    let shards = crate::steps::route::shard_records(run, phase)?;
    let started = start_training(&store, config, shards, options.resume).await?;
    if let Some(training) = &started.manifest.training {
        let rounds = training.phase_end() - training.phase_begin();
        if let Some(warning) = small_shards(&training.shards, config, rounds) {
            tracing::warn!("{warning}");
        }
    }
    raise_open_files();
    let server = listen(run, &started, options)?;
    let events = Events::create(&run.events())?;
    let setup = CoordinatorOptions {
        config: config.clone(),
        store,
        started,
        shards: run.routing(0).root().to_owned(),
        revocations: Revocations::of(&run.revoked()),
        reroute: (!options.stop_at_phase).then(|| phases::rerouting(run, config, progress)),
        events,
        progress: progress.clone(),
    };
    let threads = threads_per_worker(config, options.workers);
    let setup_workers =
        WorkerSetup { run: run.clone(), workers: options.workers, threads, device: options.device };
    let mut workers = Workers::start(setup_workers)?;
    let result = tokio::select! {
        result = coordinate(setup, server, cancel) => result.map_err(StepError::from),
        result = workers.watch() => result,
    };
    workers.stop().await;
    let summary = result?;
    let manifest = open_store(run)?.load::<RunManifest>().await?.map(|loaded| loaded.manifest);
    if let Some(warning) = manifest.and_then(|manifest| manifest.training.as_ref().and_then(rising_losses)) {
        tracing::warn!("{warning}");
    }
    Ok(summary)
}

/// Raises the number of files that this process may open to what the system allows: each result that is on its way is
/// one, and the usual 1,024 are too few for a thousand workers.
pub(crate) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the number of open files stays as it is");
    }
}

/// The share of the cores that each of several workers on this machine gets.
pub(crate) fn threads_per_worker(config: &RunConfig, workers: usize) -> usize {
    match config.train.threads_per_worker {
        0 => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            (cores / workers.max(1)).max(1)
        }
        threads => threads,
    }
}

/// Opens or creates the store of a run.
pub(crate) fn open_store(run: &RunDirectory) -> Result<RunStore, StepError> {
    Ok(RunStore::create(&run.store().to_string_lossy())?)
}

/// Binds the coordinator's socket and writes the token with which workers join.
fn listen(run: &RunDirectory, started: &OpenRun, options: &TrainOptions) -> Result<Server, StepError> {
    let now = SystemTime::now();
    let authority = authority(run, &started.manifest.run, now)?;
    let server = Server::bind(options.listen, &authority.server(now, TOKEN_LIFETIME)?, Limits::default())?;
    let mut addresses = options.advertise.clone();
    if addresses.is_empty() {
        addresses.push(server.local_addr().to_string());
    }
    let token: JoinToken = authority.issue(WORKER, WORKER, addresses, now, TOKEN_LIFETIME)?;
    let file = run.join_token();
    files::write_private(&file, format!("{token}\n").as_bytes())?;
    tracing::info!(address = %server.local_addr(), token = %file.display(), "listening for workers");
    Ok(server)
}

/// The run's own certificate authority, made at its first training.
pub(crate) fn authority(run: &RunDirectory, id: &str, now: SystemTime) -> Result<RunAuthority, StepError> {
    let file = run.authority();
    match fs::read_to_string(&file) {
        Ok(text) => {
            let authority = RunAuthority::from_pem(&text)?;
            if authority.run_id() != id {
                return Err(StepError::OtherAuthority { file, run: authority.run_id().to_owned() });
            }
            Ok(authority)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let authority = RunAuthority::create(id, now)?;
            files::write_private(&file, authority.to_pem().as_bytes())?;
            Ok(authority)
        }
        Err(source) => Err(StepError::Io { action: "read", path: file, source }),
    }
}
