//! The coordinator's process: answers workers, watches leases, and takes the outer steps that nobody else takes.

mod ledger;
mod manifest_writer;
mod orders;
mod owners;
mod recover;
mod requests;
mod round_tally;
mod run_progress;
mod start;

pub use recover::recover;
pub use start::{start_training, training_origin};

use std::error::Error;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dipaco_config::RunConfig;
use dipaco_net::Server;
use dipaco_store::{RunStore, ShardRecord};
use dipaco_sync::Guard;
use dipaco_telemetry::{Event, Events, Progress};
use dipaco_topology::Topology;
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::TrainError;
use crate::coordinator::ledger::Ledger;
use crate::coordinator::manifest_writer::ManifestWriter;
use crate::coordinator::owners::ModuleOwners;
use crate::coordinator::requests::CoordinatorRequests;
use crate::coordinator::run_progress::RunProgress;
use crate::host::ResultIntake;
use crate::host::Revocations;
use crate::host::Uploads;
use crate::host::serve_peers;
use crate::open_run::OpenRun;
use crate::synchronizer::Synchronizer;
use dipaco_protocol::RUN_COMPLETE;
use dipaco_protocol::WorkerPlan;

/// How long the coordinator of a finished run waits for its workers to hear of it.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(10);

/// Divides the text anew for the phase whose number it is given, and returns the shards of its paths. The paths wait
/// with the weights that the store has then. What it did is done again, or found done, when the coordinator stops
/// before it has been noted.
pub type Reroute = Box<dyn Fn(u32) -> Rerouting + Send + Sync>;
/// What a [`Reroute`] returns.
pub type Rerouting =
    Pin<Box<dyn Future<Output = Result<Vec<ShardRecord>, Box<dyn Error + Send + Sync>>> + Send>>;

/// What a coordinator works with.
pub struct CoordinatorOptions {
    /// The run's configuration, with the vocabulary set.
    pub config: RunConfig,
    /// The run's store.
    pub store: RunStore,
    /// The run as the store has it.
    pub started: OpenRun,
    /// The routing folder: the places of shards are relative to it.
    pub shards: PathBuf,
    /// Begins the phases of routing; without it the coordinator ends where the next one is to begin.
    pub reroute: Option<Reroute>,
    /// Tokens that may not be used any more.
    pub revocations: Revocations,
    /// The event file.
    pub events: Events,
    /// Where progress goes.
    pub progress: Progress,
}

/// What a run of the coordinator did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CoordinatorSummary {
    /// Whether the run is complete.
    pub finished: bool,
    /// Whether it waits for its next phase of routing.
    pub at_boundary: bool,
    /// Rounds that every path has been trained for, those before this coordinator included.
    pub rounds: u32,
    /// Inner steps that were taken under this coordinator, in rounds of all paths.
    pub new_rounds: f64,
    /// Bytes sent to workers in UDP datagrams: payloads, headers, encryption, retransmissions, acknowledgements.
    pub bytes_sent: u64,
    /// Bytes received from workers in UDP datagrams.
    pub bytes_received: u64,
    /// Seconds that workers have spent on inner steps that count.
    pub inner_seconds: f64,
    /// Seconds that workers have spent between them: transfers, and waiting for others and for work.
    pub waited_seconds: f64,
    /// Seconds from the first to the last moment.
    pub seconds: f64,
}

/// Coordinates the run until it is complete or `cancel` is triggered.
///
/// # Errors
/// When the store or the event file can't be written, when another coordinator has taken the run over, or when the
/// store does not fit the configuration.
pub async fn coordinate(
    options: CoordinatorOptions,
    server: Server,
    cancel: CancellationToken,
) -> Result<CoordinatorSummary, TrainError> {
    let CoordinatorOptions { config, store, started, shards, reroute, revocations, events, progress } =
        options;
    let begun = Instant::now();
    let topology = Topology::new(&config.topology, config.model.blocks)?;
    let lease = Duration::from_secs(config.train.lease_seconds);
    let plan = WorkerPlan::new(&config);
    let to_write = Arc::new(Notify::new());
    let (ledger, sequence) = Ledger::take_over(
        &store,
        started.manifest,
        started.sequence,
        topology.clone(),
        &plan,
        lease,
        to_write.clone(),
    )
    .await?;
    let layout = dipaco_path::Layout::of_plan(&plan, &topology)?;
    let incarnation = ledger.incarnation();
    let done = trained(&ledger);
    let total = u64::from(topology.paths()) * plan.total_steps();
    let steps: Vec<u64> = ledger.rounds().progress().paths.iter().map(|path| path.steps).collect();
    let progress = RunProgress::new(&progress, events, (done, total), plan.train.inner_steps, &steps);
    let progress = Arc::new(progress);
    let changed = Arc::new(Notify::new());
    let ledger = Arc::new(Mutex::new(ledger));
    let (written, on_disk) = watch::channel(0);
    let manifest_writer =
        ManifestWriter { ledger: ledger.clone(), store: store.clone(), sequence, changed: to_write, written };
    let stop_writing = CancellationToken::new();
    let _stop_with_this = stop_writing.clone().drop_guard();
    // In a thread of its own: what it writes may be long, and answers are not to wait for that.
    let (here, stop) = (tokio::runtime::Handle::current(), stop_writing.clone());
    let writing = tokio::task::spawn_blocking(move || here.block_on(manifest_writer.run(stop)));
    let (synchronizer, schedule) =
        (Synchronizer::new(store.clone(), layout.clone(), config.outer.clone()), plan.schedule()?);
    let intake = ResultIntake {
        store,
        plan,
        topology,
        layout,
        uploads: Uploads::new(shards.clone()),
        guard: Mutex::new(Guard::new(config.outer.guard)),
    };
    let requests = Arc::new(CoordinatorRequests {
        ledger,
        intake: Arc::new(intake),
        schedule,
        owners: Mutex::new(ModuleOwners::new(incarnation)),
        lease,
        shards,
        changed,
        deadlines: Arc::new(Notify::new()),
        written: on_disk.clone(),
        revocations,
        contributed: watch::Sender::new(0),
        started: begun,
        progress: progress.clone(),
    });
    let farewell = CancellationToken::new();
    let accepting = serve_peers(&server, &requests, &farewell);
    tokio::pin!(accepting);
    // A failure anywhere ends the coordinator: what it has told its workers is on the disk, and `--resume` goes on.
    let ended = tokio::select! {
        result = requests.take_own_outer_steps(synchronizer) => result.map(|()| Ended::Stopped),
        result = watch_leases(&requests) => result.map(|()| Ended::Stopped),
        result = &mut accepting => result.map(|()| Ended::Stopped),
        result = conduct(&requests, reroute.as_ref()) => result,
        () = writer_ends(on_disk) => Err(TrainError::Cancelled),
        () = cancel.cancelled() => Ok(Ended::Stopped),
    };
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => {
            // What is in the books is still written, so that nothing writes any more when this returns.
            stop_writing.cancel();
            let written = writing.await.map_err(|source| TrainError::Thread { source })?;
            // Those who wait for the disk are told nothing more than that there is no writing any more: this is why.
            return match (error, written) {
                (TrainError::Cancelled, Err(why)) => Err(why),
                (error, _) => Err(error),
            };
        }
    };
    let finished = ended == Ended::Complete;
    if finished {
        // Workers ask once more and hear that the run is complete; one that is gone is not waited for.
        farewell.cancel();
        if let Ok(ended) = tokio::time::timeout(GOODBYE_TIMEOUT, accepting).await {
            ended?;
        }
    }
    progress.finish();
    let spent = progress.spent_in_all();
    let traffic = server.traffic();
    server.close(if finished { RUN_COMPLETE } else { "the coordinator stops" }).await;
    // What is in the books is written to its end; nothing begins any more.
    requests.ledger().close();
    stop_writing.cancel();
    writing.await.map_err(|source| TrainError::Thread { source })??;
    let ledger = requests.ledger();
    let paths = &ledger.rounds().progress().paths;
    // Inner steps are counted far below 2^53.
    #[allow(clippy::cast_precision_loss)]
    let new_rounds =
        (trained(&ledger) - done) as f64 / (config.train.inner_steps * paths.len() as u64) as f64;
    Ok(CoordinatorSummary {
        finished,
        at_boundary: ended == Ended::Boundary,
        rounds: ledger.training()?.rounds_done(),
        new_rounds,
        bytes_sent: traffic.udp_sent,
        bytes_received: traffic.udp_received,
        inner_seconds: spent.inner,
        waited_seconds: spent.waited,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Waits until nothing is written down any more.
async fn writer_ends(mut written: watch::Receiver<u64>) {
    while written.changed().await.is_ok() {}
}

/// Inner steps that all paths together have taken.
fn trained(ledger: &Ledger) -> u64 {
    ledger.rounds().progress().paths.iter().map(|path| path.steps).sum()
}

/// Why a coordinator ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Every path is done.
    Complete,
    /// The next phase of routing is to begin, and somebody else does that.
    Boundary,
    /// It was asked to.
    Stopped,
}

/// Leads from phase to phase until every path is done.
async fn conduct(requests: &CoordinatorRequests, reroute: Option<&Reroute>) -> Result<Ended, TrainError> {
    loop {
        let changed = requests.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let boundary = {
            let ledger = requests.ledger();
            if ledger.rounds().finished() {
                return Ok(Ended::Complete);
            }
            let training = ledger.training()?;
            ledger.rounds().at_boundary().then(|| (training.phase + 1, training.phase_end()))
        };
        let Some((phase, round)) = boundary else {
            changed.await;
            continue;
        };
        // Whoever divides the text reads the run from the disk.
        requests.on_disk().await?;
        let Some(reroute) = reroute else { return Ok(Ended::Boundary) };
        let begun = Instant::now();
        tracing::info!(phase, round, "the text is divided among the paths anew");
        let shards = reroute(phase).await.map_err(|source| TrainError::Reroute { source })?;
        requests.begin_phase(shards).await?;
        let seconds = begun.elapsed().as_secs_f64();
        requests.progress.event(Event::PhaseStarted { phase, round: round.into(), seconds })?;
    }
}

/// Ends leases at their deadline.
async fn watch_leases(requests: &CoordinatorRequests) -> Result<(), TrainError> {
    loop {
        // Its own statement: the books must not stay locked while this waits.
        let deadline = requests.ledger().rounds().next_deadline();
        match deadline {
            Some(deadline) => {
                tokio::select! {
                    // Heartbeats move deadlines back, so at the wake-up there may be nothing to end yet.
                    () = tokio::time::sleep_until(requests.started + deadline) => requests.wake()?,
                    () = requests.deadlines.notified() => {}
                }
            }
            None => requests.deadlines.notified().await,
        }
    }
}
