//! Training the paths of a run: the coordinator in this process, workers in processes of their own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use dipaco_config::{RunConfig, TrainConfig};
use dipaco_monitor::{Monitor, TensorBoard, follow};
use dipaco_net::{Clock, Limits, RunAuthority, Server};
use dipaco_path::DeviceChoice;
use dipaco_store::{RunManifest, RunStore, TrainingRecord};
use dipaco_telemetry::{Events, Progress};
use dipaco_topology::Topology;
use dipaco_train::{
    CoordinatorError, CoordinatorOptions, CoordinatorSummary, OpenRun, Revocations, coordinate, recover,
    rising_losses, small_shards, start_training, take_over, training_origin,
};
use tokio_util::sync::CancellationToken;

use crate::advertised::with_bound_port;
use crate::authority::{TOKEN_LIFETIME, authority, renew_tokens, renewals, write_tokens};
use crate::error::PipelineError;
use crate::leftovers::delete_leftovers;
use crate::limits::raise_open_files;
use crate::matching_shards::check_training_shards;
use crate::phases;
use crate::prepared::tokenizer_file;
use crate::rollback;
use crate::run_directory::RunDirectory;
use crate::run_lock::RunLock;
use crate::shard_records::shard_records;
use crate::store::{manifest, manifest_in, open_store_of_long_work};
use crate::validation::Validation;
use crate::vocabulary::with_vocabulary;
use crate::watch::watch;
use crate::workers::{WorkerSetup, Workers};

/// Settings of a training that do not change its weights.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// Worker processes on this machine, of which no more start than paths train in a round; 0 when all workers are
    /// elsewhere.
    pub workers: usize,
    /// The program `dipaco`, which the worker processes run.
    pub program: PathBuf,
    /// UDP address that the coordinator listens on.
    pub listen: SocketAddr,
    /// `host:port` by which workers elsewhere reach the coordinator; the listening address when empty. Port 0 stands for
    /// the port that it listens on.
    pub advertise: Vec<String>,
    /// Continue a run that has begun.
    pub resume: bool,
    /// Stop at the boundary of a phase of routing instead of beginning the next phase. A phase whose router is fitted already, on
    /// scores of the weights at the boundary, begins, so that a resumed run reaches the boundary after it.
    pub stop_at_phase: bool,
    /// Device of the workers on this machine.
    pub device: DeviceChoice,
    /// TCP address at which the training can be watched over HTTP; nowhere when absent.
    pub http: Option<SocketAddr>,
    /// Folder of files for TensorBoard, which are written during the training; none when absent.
    pub tensorboard: Option<PathBuf>,
}

/// Trains until the run is complete or `cancel` is triggered. `config` has its vocabulary. `accept` is called once, when nothing
/// refuses the settings any more: in a training that begins when its record has them, and otherwise when the run is taken over.
///
/// # Errors
/// [`PipelineError::Interrupted`] when `cancel` is triggered while a resumed run is verified, which changes nothing.
/// When the run is not routed, its shards belong to another router or text, it has begun and `resume` is false, or it has other
/// settings than it began with; when the store or a file of the run can't be written; when a worker process keeps failing; the
/// error of `accept`.
pub async fn train(
    run: &RunDirectory,
    config: &RunConfig,
    options: &TrainOptions,
    progress: &Progress,
    cancel: CancellationToken,
    accept: impl Fn() -> Result<(), PipelineError>,
) -> Result<CoordinatorSummary, PipelineError> {
    let stop = cancel.clone();
    let store = open_store_of_long_work(run, move || stop.is_cancelled()).await?;
    let _lock = RunLock::for_training(run)?;
    let saved = manifest_in(&store).await?;
    // Before the recovery, which reads all objects: a complete run keeps no checkpoint to go back to.
    if let Some(summary) = saved.as_ref().map_or(Ok(None), |saved| finished(saved, config))? {
        accept()?;
        delete_leftovers(&store).await;
        return Ok(summary);
    }
    let begins = saved.is_none_or(|saved| saved.training.is_none());
    let started = start(run, config, &store, options.resume, progress, &cancel).await?;
    if begins {
        accept()?;
    }
    raise_open_files();
    let authority = Arc::new(authority(run, &started.manifest.run, SystemTime::now())?);
    let server = bind(run, &authority, config.train.max_workers, options.listen)?;
    let events = Events::create(&run.events())?;
    let (monitor, watching) = (Monitor::new(&run.events()), CancellationToken::new());
    // Ends with this function, however it ends.
    let _watched = watching.clone().drop_guard();
    if let Some(address) = options.http {
        watch(address, "training", monitor.clone(), watching.clone()).await?;
    }
    let board = options
        .tensorboard
        .as_deref()
        .map(|folder| tokio::spawn(follow(TensorBoard::new(&run.events(), folder), watching.clone())));
    let local = useful_workers(config, options.workers)?;
    let rounds = started.manifest.training.as_ref().map_or(0, TrainingRecord::rounds_done);
    let mut validation = Validation::begin(run, config, &store, rounds)?;
    // A coordinator that already runs goes on, with its address in the tokens, unless this one can take its place.
    let started = take_over(&store, started).await?;
    if !begins {
        accept()?;
    }
    announce(run, &authority, &server, &options.advertise)?;
    let setup = CoordinatorOptions {
        config: config.clone(),
        store: store.clone(),
        started,
        shards: run.routing(0).root().to_owned(),
        revocations: Revocations::of(&run.revoked()),
        renew: Some(renewals(authority)),
        clock: Clock::system(),
        reroute: Some(phases::rerouting(run, config, &store, progress, options.stop_at_phase)),
        events,
        progress: progress.clone(),
        observe: Some(Box::new(move |live| monitor.watch(live))),
    };
    // After the join token, which the worker processes read at once.
    let mut workers = start_workers(run, config, options, local)?;
    let result = tokio::select! {
        result = coordinate(setup, server, cancel.clone()) => result.map_err(PipelineError::from),
        result = workers.watch() => result,
        never = validate_beside(validation.as_mut()) => match never {},
    };
    workers.stop().await;
    if let Some(validation) = validation {
        // The workers have ended, so their cores and GPUs are free.
        validation.end(result.is_ok(), options.device, progress, &cancel).await;
    }
    watching.cancel();
    if let Some(board) = board {
        // It logs its own errors.
        let _ = board.await;
    }
    let summary = result?;
    conclude(&store, config).await?;
    Ok(summary)
}

/// Begins the training, or goes on with one that has begun, and warns of its settings.
pub(crate) async fn start(
    run: &RunDirectory,
    config: &RunConfig,
    store: &RunStore,
    resume: bool,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<OpenRun, PipelineError> {
    if resume {
        match recover(store, progress, cancel).await {
            Ok(Some(rollback)) => rollback::tell(run, &rollback),
            Ok(None) => {}
            Err(CoordinatorError::Interrupted) => return Err(PipelineError::Interrupted),
            Err(error) => return Err(error.into()),
        }
    }
    // Read after the recovery, because the run may have gone back to an earlier phase.
    let saved = manifest_in(store).await?;
    let phase = saved.as_ref().map_or(0, RunManifest::phase);
    let shards = shard_records(run, phase, config)?;
    check_training_shards(run, phase, config, saved.as_ref())?;
    let started = start_training(store, config, shards, resume).await?;
    warn_of_settings(started.manifest.training.as_ref(), config);
    Ok(started)
}

fn start_workers(
    run: &RunDirectory,
    config: &RunConfig,
    options: &TrainOptions,
    workers: usize,
) -> Result<Workers, PipelineError> {
    let (run, program) = (run.clone(), options.program.clone());
    let threads = threads_per_worker(config, workers);
    Workers::start(WorkerSetup { run, program, workers, threads, device: options.device })
}

/// Runs [`Validation::beside_training`]. Without a validation it never returns.
async fn validate_beside(validation: Option<&mut Validation<'_>>) -> Infallible {
    match validation {
        Some(validation) => validation.beside_training().await,
        None => std::future::pending().await,
    }
}

/// Warns of shards that are read too often, and tells of early stopping that hardly measures.
fn warn_of_settings(training: Option<&TrainingRecord>, config: &RunConfig) {
    let small = training.and_then(|training| {
        small_shards(&training.shards, config, training.phase_begin()..training.phase_end())
    });
    if let Some(warning) = small {
        tracing::warn!("{warning}");
    }
    // A choice that only `--early-stopping` makes later, so no warning.
    if let Some(note) = config.early_stopping_note() {
        tracing::info!("{note}");
    }
}

/// Deletes what a complete run does not need any more, and warns of rising losses.
async fn conclude(store: &RunStore, config: &RunConfig) -> Result<(), PipelineError> {
    delete_leftovers(store).await;
    let training = manifest_in(store).await?.and_then(|manifest| manifest.training);
    if let Some(warning) = training.and_then(|training| rising_losses(&training, config)) {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Checks that a run whose training has begun keeps the settings that its weights depend on. Call it before the
/// configuration is saved, so that a refused command leaves the saved one. `config` may lack its vocabulary. Without the
/// tokenizer of a run nothing can be compared, and no command can use its training.
///
/// # Errors
/// [`PipelineError::Coordinator`] when the training began with other settings, [`PipelineError::Model`] when they don't fit
/// the tokenizer, and [`PipelineError::Store`] when the store can't be read.
pub async fn check_settings(run: &RunDirectory, config: &RunConfig) -> Result<(), PipelineError> {
    if tokenizer_file(run).is_none() {
        return Ok(());
    }
    let Some(manifest) = manifest(run).await? else { return Ok(()) };
    let (Some(start), Some(training)) = (manifest.start_hash(), &manifest.training) else { return Ok(()) };
    let config = with_vocabulary(run, config)?;
    if training.origin == training_origin(&config, &start)? {
        Ok(())
    } else {
        Err(CoordinatorError::OtherTraining.into())
    }
}

/// The settings of the steps before the training that differ between `saved` and `given`, in a run whose training has
/// begun: each key with both values. Those of routing may differ while a phase is to come, which then reads them.
///
/// # Errors
/// [`PipelineError::Store`] when the store can't be read.
pub async fn changes_of_finished_steps(
    run: &RunDirectory,
    saved: &RunConfig,
    given: &RunConfig,
) -> Result<Vec<(String, String, String)>, PipelineError> {
    let sections = ["prepare.", "seed_model.", "routing."];
    let mut changes = saved.differences(given);
    changes.retain(|(key, ..)| sections.iter().any(|section| key.starts_with(section)));
    if changes.is_empty() {
        return Ok(changes);
    }
    match manifest(run).await?.and_then(|manifest| manifest.training) {
        None => changes.clear(),
        Some(training) if (training.phase as usize) < training.boundaries.len() => {
            changes.retain(|(key, ..)| !key.starts_with("routing."));
        }
        Some(_) => {}
    }
    Ok(changes)
}

/// The summary of a run that is complete under this configuration; `None` when there is something left to train.
///
/// Neither workers nor shards are needed to find out: both may be gone when a run is complete.
fn finished(manifest: &RunManifest, config: &RunConfig) -> Result<Option<CoordinatorSummary>, PipelineError> {
    let (Some(start), Some(training)) = (manifest.start_hash(), &manifest.training) else { return Ok(None) };
    if !training.finished() || training.origin != training_origin(config, &start)? {
        return Ok(None);
    }
    Ok(Some(CoordinatorSummary {
        finished: true,
        at_boundary: false,
        rounds: training.rounds_done(),
        new_rounds: 0.0,
        bytes_sent: 0,
        bytes_received: 0,
        bytes_linked: 0,
        inner_seconds: 0.0,
        waited_seconds: 0.0,
        seconds: 0.0,
    }))
}

/// The number of `workers` on this machine that have something to do: at most one for each path that trains in a round. The
/// others would wait, and take threads from those that train.
///
/// # Errors
/// [`PipelineError::Topology`] when the topology does not fit the model.
pub fn useful_workers(config: &RunConfig, workers: usize) -> Result<usize, PipelineError> {
    let topology = Topology::new(&config.topology, config.model.blocks)?;
    let paths = config.train.paths_per_round.most(topology.trained_paths().len() as u64);
    Ok(workers.min(usize::try_from(paths).unwrap_or(usize::MAX)))
}

/// Threads of each of several workers on this machine: `train.threads_per_worker`, or an equal share of the cores.
pub fn threads_per_worker(config: &RunConfig, workers: usize) -> usize {
    match config.train.threads_per_worker {
        0 => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            (cores / workers.max(1)).clamp(1, TrainConfig::MOST_THREADS)
        }
        threads => threads,
    }
}

/// Binds the coordinator's socket.
fn bind(
    run: &RunDirectory,
    authority: &Arc<RunAuthority>,
    max_workers: usize,
    listen: SocketAddr,
) -> Result<Server, PipelineError> {
    let now = SystemTime::now();
    let (directory, source) = (run.clone(), authority.clone());
    let identity = authority.server(now, TOKEN_LIFETIME)?.renewed_by(Clock::system(), move |now| {
        // The tokens in the run's folder are as old as the server's certificate.
        if let Err(error) = renew_tokens(&directory, &source, now) {
            tracing::warn!(%error, "the join tokens in the run's folder can't be renewed");
        }
        source.server(now, TOKEN_LIFETIME)
    });
    Ok(Server::bind(listen, &identity, Limits::for_peers(max_workers))?)
}

/// Writes the tokens of workers and synchronizers, with the coordinator's addresses.
fn announce(
    run: &RunDirectory,
    authority: &RunAuthority,
    server: &Server,
    advertise: &[String],
) -> Result<(), PipelineError> {
    let address = server.local_addr();
    let mut addresses: Vec<_> =
        advertise.iter().map(|advertised| with_bound_port(advertised, address.port())).collect();
    if addresses.is_empty() {
        addresses.push(address.to_string());
    }
    write_tokens(run, authority, &addresses, SystemTime::now())?;
    let token = run.join_token();
    tracing::info!(%address, token = %token.display(), "listening for workers");
    Ok(())
}
