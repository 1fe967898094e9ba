//! Training the paths of a run: the coordinator in this process, workers in processes of their own.

mod listening;
mod settings;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;

use dipaco_config::{RunConfig, TrainConfig};
use dipaco_net::Clock;
use dipaco_path::DeviceChoice;
use dipaco_store::{RunManifest, RunStore, TrainingRecord};
use dipaco_telemetry::Progress;
use dipaco_topology::Topology;
use dipaco_train::{
    CoordinatorError, CoordinatorOptions, CoordinatorSummary, OpenRun, Revocations, coordinate, recover,
    rising_losses, small_shards, start_training, take_over, training_origin,
};
use tokio_util::sync::CancellationToken;

use crate::authority::renewals;
use crate::error::PipelineError;
use crate::leftovers::{delete_leftovers, remove_old_unfinished_scores};
use crate::matching_shards::check_training_shards;
use crate::phases;
use crate::rollback;
use crate::run_directory::RunDirectory;
use crate::run_lock::RunLock;
use crate::shard_records::shard_records;
use crate::store::{manifest_in, open_store_of_long_work};
use crate::validation::Validation;
use crate::workers::{WorkerSetup, Workers};
use listening::Listening;

pub use settings::{Change, changes_of_finished_steps, changes_of_training, check_settings};

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
    /// `host:port` by which workers elsewhere reach the coordinator. Port 0 stands for the port that it listens on. When
    /// empty, the listening address, or the loopback in the place of an unspecified one.
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
        remove_old_unfinished_scores(run, config);
        return Ok(summary);
    }
    let begins = saved.as_ref().is_none_or(|saved| saved.training.is_none());
    let mut listening = None;
    if let Some(saved) = saved.filter(|_| begins) {
        // Before the record of the training: a port in use must not leave a run that has begun.
        listening = Some(listen_to_begin(run, config, &saved, options).await?);
    }
    let started = start(run, config, &store, options.resume, progress, &cancel).await?;
    if begins {
        accept()?;
    }
    let listening = match listening {
        Some(listening) => listening,
        // A run that goes on is verified first: its workers would wait for the answers of a port that is open.
        None => Listening::open(run, &started.manifest.run, config, options).await?,
    };
    let watching = listening.watching.clone();
    let board = listening.board(run, options);
    let local = useful_workers(config, options.workers)?;
    let rounds = started.manifest.training.as_ref().map_or(0, TrainingRecord::rounds_done);
    let mut validation = Validation::begin(run, config, &store, rounds)?;
    // A coordinator that already runs goes on, with its address in the tokens, unless this one can take its place.
    let started = take_over(&store, started).await?;
    if !begins {
        accept()?;
    }
    listening.announce(run, options)?;
    let Listening { authority, server, events, monitor, watched: _watched, .. } = listening;
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
    conclude(run, &store, config).await?;
    Ok(summary)
}

/// Opens the ports of a training that begins. A training that can't begin opens none, and leaves no key of the run's authority.
async fn listen_to_begin(
    run: &RunDirectory,
    config: &RunConfig,
    saved: &RunManifest,
    options: &TrainOptions,
) -> Result<Listening, PipelineError> {
    shard_records(run, saved.phase(), config)?;
    check_training_shards(run, saved.phase(), config, Some(saved))?;
    if !saved.seed.as_ref().is_some_and(|seed| seed.finished()) {
        return Err(CoordinatorError::NoSeed.into());
    }
    Listening::open(run, &saved.run, config, options).await
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
async fn conclude(run: &RunDirectory, store: &RunStore, config: &RunConfig) -> Result<(), PipelineError> {
    delete_leftovers(store).await;
    remove_old_unfinished_scores(run, config);
    let training = manifest_in(store).await?.and_then(|manifest| manifest.training);
    if let Some(warning) = training.and_then(|training| rising_losses(&training, config)) {
        tracing::warn!("{warning}");
    }
    Ok(())
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
