//! The coordinator's process: answers workers, watches leases, and takes the outer steps of modules without a
//! synchronizer.

mod clock_looks;
mod contributions;
mod error;
mod lease_watch;
mod leftovers;
mod live;
mod manifest_writer;
mod recover;
mod requests;
mod rollback;
mod round_tally;
mod run_progress;
mod start;
mod take_over;
mod written_changes;

pub use contributions::{FragmentContributions, PathContributions, TokenContributions, contributions_of};
pub use error::CoordinatorError;
pub use recover::recover;
pub use requests::RenewToken;
pub use rollback::roll_back;
pub use start::{start_training, training_origin};
pub use take_over::take_over;

use std::error::Error;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dipaco_config::RunConfig;
use dipaco_ledger::{Ledger, PhaseBoundary};
use dipaco_net::{Clock, Server, Traffic};
use dipaco_store::{ManifestSequence, Patience, RunStore, ShardRecord, StoreError};
use dipaco_telemetry::{Event, Events, LiveSource, Progress, WireBytes};
use dipaco_topology::Topology;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::TrainError;
use crate::coordinator::clock_looks::ClockLooks;
use crate::coordinator::lease_watch::watch_leases;
use crate::coordinator::leftovers::Leftovers;
use crate::coordinator::manifest_writer::ManifestWriter;
use crate::coordinator::requests::{CoordinatorRequests, ObjectChecks, WaitingRequests};
use crate::coordinator::run_progress::{RunProgress, RunReach};
use crate::coordinator::take_over::{ledger_plan, read_store};
use crate::coordinator::written_changes::WrittenChanges;
use crate::host::{LinkIssuer, ResultIntake, Revocations, Uploads, VerifiedGradients, serve_peers};
use crate::open_run::OpenRun;
use crate::synchronizer::Synchronizer;
use dipaco_path::Layout;
use dipaco_protocol::{RUN_COMPLETE, WorkerPlan};

/// Time for which the coordinator of a complete run waits for its workers to leave.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(10);

/// Divides the text anew for a phase, whose number is the argument, and returns the shards of its paths; `None` if the
/// coordinator is to end before this phase. Meanwhile no path is trained, and the store holds the final weights of the previous
/// phase. The call is repeated if the coordinator stops before it has recorded the phase, so it must accept its own earlier
/// results.
pub type Reroute = Box<dyn Fn(u32) -> Rerouting + Send + Sync>;
/// Result of a [`Reroute`].
pub type Rerouting =
    Pin<Box<dyn Future<Output = Result<Option<Vec<ShardRecord>>, Box<dyn Error + Send + Sync>>> + Send>>;

/// Takes the source of the present state of a coordinator that has taken its run over.
pub type Observe = Box<dyn FnOnce(LiveSource) + Send>;

/// Time between two looks for unfinished writes of processes that are gone.
const LOOK_FOR_LEFTOVERS: Duration = Duration::from_secs(3600);

/// Settings of a coordinator.
pub struct CoordinatorOptions {
    /// The run's configuration, with the vocabulary set.
    pub config: RunConfig,
    /// The run's store. Give it [`store_patience`](crate::store_patience), or the first failure of a disk ends the coordinator.
    pub store: RunStore,
    /// The current manifest of the run. Where another coordinator may still run, it is that of [`take_over()`].
    pub started: OpenRun,
    /// The routing folder. Paths of shard files are relative to it.
    pub shards: PathBuf,
    /// Begins the phases of routing. Without it the coordinator ends at the beginning of the next phase.
    pub reroute: Option<Reroute>,
    /// Tokens that are no longer valid.
    pub revocations: Revocations,
    /// Renews the tokens of connected peers; without it tokens end at their expiry.
    pub renew: Option<RenewToken>,
    /// The time of day, for what other processes wrote into the store.
    pub clock: Clock,
    /// The event file.
    pub events: Events,
    /// The progress display.
    pub progress: Progress,
    /// Gets the source of the present state once the run is taken over.
    pub observe: Option<Observe>,
}

/// Results of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CoordinatorSummary {
    /// True if the run is complete.
    pub finished: bool,
    /// True if the run waits for its next phase of routing.
    pub at_boundary: bool,
    /// Rounds that every path has completed since the start of the run.
    pub rounds: u32,
    /// Inner steps of completed leases under this coordinator, in rounds of all paths.
    pub new_rounds: f64,
    /// Bytes sent to workers in UDP datagrams: payloads, headers, encryption, retransmissions, acknowledgements.
    pub bytes_sent: u64,
    /// Bytes received from workers in UDP datagrams.
    pub bytes_received: u64,
    /// Bytes that workers read straight from the store for completed leases, as they report it.
    pub bytes_linked: u64,
    /// Seconds of workers in inner steps of completed leases.
    pub inner_seconds: f64,
    /// Seconds of workers between inner steps: transfers, and waiting for other workers and for leases.
    pub waited_seconds: f64,
    /// Seconds from the start to the end of the coordinator.
    pub seconds: f64,
}

/// Coordinates the run until it is complete or `cancel` is triggered.
///
/// # Errors
/// When the store can't be written, when another coordinator has taken the run over, or when the store does not fit the
/// configuration.
pub async fn coordinate(
    mut options: CoordinatorOptions,
    server: Server,
    cancel: CancellationToken,
) -> Result<CoordinatorSummary, CoordinatorError> {
    let observe = options.observe.take();
    let counters = server.traffic_source();
    options.events = options.events.with_wire_bytes(Arc::new(move || wire_bytes(counters.read())));
    let RunningCoordinator { requests, synchronizer, writer, leftovers, reroute, steps_before } =
        RunningCoordinator::take_over(options).await?;
    let rounds = requests.ledger().rounds_done().into();
    requests.progress.event(Event::CoordinatorStarted { rounds });
    if let Some(observe) = observe {
        observe(live::source(&requests, server.traffic_source()));
    }
    let farewell = CancellationToken::new();
    // Deadlines are watched as long as peers are served: a request in the goodbye looks at the clock, too.
    let serving = async {
        tokio::select! {
            ended = serve_peers(&server, &requests, &farewell) => ended,
            never = watch_leases(&requests) => match never {},
        }
    };
    // Lives until the server is closed: dropping it earlier would end connections without a reason.
    tokio::pin!(serving);
    // A failure anywhere ends the coordinator: every answer that its workers have is on the disk, and `--resume` goes on.
    let ended = tokio::select! {
        result = requests.take_own_outer_steps(synchronizer) => result.map(|()| Ended::Stopped),
        result = &mut serving => result.map(|()| Ended::Stopped),
        result = lead_phases(&requests, reroute.as_ref()) => result,
        () = requests.written.ended() => Err(CoordinatorError::Stopped),
        never = leftovers.keep_removing() => match never {},
        () = cancel.cancelled() => Ok(Ended::Stopped),
    };
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => return Err(writer.stop_after(error).await),
    };
    let finished = ended == Ended::Complete;
    if finished {
        // Workers ask for a lease once more and learn that the run is complete. Lost workers are not waited for.
        // Synchronizers wait for orders, of which there are no more: the last leases only measured.
        requests.notify_synchronizers();
        farewell.cancel();
        if let Ok(Err(error)) = tokio::time::timeout(GOODBYE_TIMEOUT, serving).await {
            return Err(writer.stop_after(error).await);
        }
    }
    requests.progress.finish();
    let traffic = server.traffic();
    server.close(if finished { RUN_COMPLETE } else { "the coordinator stops" }).await;
    // After the server: no new result arrives. A request that is still running is refused by the closed ledger, so the
    // writer's last write holds every change, and nothing is written after this function returns.
    requests.ledger().close();
    writer.stop().await?;
    // A request may have changed the ledger and not told of it yet.
    requests.note_progress();
    requests.progress.event(Event::CoordinatorStopped { wire_bytes: wire_bytes(traffic) });
    let time = requests.progress.worker_time();
    let ledger = requests.ledger();
    let paths = ledger.state().progress().paths.len() as u64;
    let steps_of_round = requests.intake.plan.train.inner_steps * paths;
    Ok(CoordinatorSummary {
        finished,
        at_boundary: ended == Ended::Boundary,
        rounds: ledger.rounds_done(),
        new_rounds: (inner_steps_taken(&ledger) - steps_before) as f64 / steps_of_round as f64,
        bytes_sent: traffic.udp_sent,
        bytes_received: traffic.udp_received,
        bytes_linked: requests.progress.linked(),
        inner_seconds: time.inner,
        waited_seconds: time.waited,
        seconds: requests.started.elapsed().as_secs_f64(),
    })
}

/// Bytes in datagrams, which users pay for.
fn wire_bytes(traffic: Traffic) -> WireBytes {
    WireBytes { sent: traffic.udp_sent, received: traffic.udp_received }
}

/// The parts of a coordinator that has taken its run over.
struct RunningCoordinator {
    requests: Arc<CoordinatorRequests>,
    /// Takes the outer steps of modules that no other process owns.
    synchronizer: Synchronizer,
    writer: WriterTask,
    leftovers: Leftovers,
    reroute: Option<Reroute>,
    /// Inner steps that all paths together had taken before.
    steps_before: u64,
}

impl RunningCoordinator {
    /// Takes the run over and starts the manifest writer.
    async fn take_over(options: CoordinatorOptions) -> Result<Self, CoordinatorError> {
        let CoordinatorOptions {
            config,
            store,
            started,
            shards,
            reroute,
            revocations,
            renew,
            clock,
            events,
            progress,
            observe: _,
        } = options;
        let begun = Instant::now();
        let leftovers = Leftovers { store: store.clone(), clock: clock.clone(), every: LOOK_FOR_LEFTOVERS };
        leftovers.remove().await;
        let topology = Topology::new(&config.topology, config.model.blocks)?;
        let plan = WorkerPlan::new(&config);
        let to_write = Arc::new(Notify::new());
        let stored = read_store(&store, started.manifest).await?;
        let ledger = Ledger::take_over(stored, topology.clone(), ledger_plan(&plan)?)?;
        let layout = Layout::of_plan(&plan, &topology)?;
        let steps_before = inner_steps_taken(&ledger);
        let total = u64::from(topology.paths()) * plan.total_steps();
        let (inner_steps, reached) = (plan.train.inner_steps, RunReach::of(&ledger));
        let progress = RunProgress::new(&progress, events, inner_steps, reached, steps_before, total);
        let ledger = Arc::new(Mutex::new(ledger));
        let written = Arc::<WrittenChanges>::default();
        let mut manifest_writer = ManifestWriter {
            ledger: ledger.clone(),
            store: store.clone(),
            sequence: started.sequence,
            changed: to_write.clone(),
            written: written.clone(),
            dropped: Vec::new(),
            clock,
        };
        // First of all: from the new incarnation on an older coordinator can't write, so nothing below races with it.
        manifest_writer.write_pending().await?;
        let writer = WriterTask::spawn(manifest_writer);
        let gradients = VerifiedGradients::default();
        let synchronizer =
            Synchronizer::new(store.clone(), layout.clone(), &plan, gradients.clone(), shards.clone());
        let uploads = Uploads::new(store.clone(), shards.clone());
        let links = LinkIssuer::new(&store, config.run.links);
        let intake = ResultIntake { store, plan, topology, layout, uploads, gradients, modules: None };
        let silence = Duration::from_secs(config.train.lease_seconds);
        let requests = Arc::new(CoordinatorRequests {
            ledger,
            intake: Arc::new(intake),
            links,
            checks: ObjectChecks::default(),
            to_write,
            standstill: Duration::from_secs(config.train.standstill_seconds),
            shards,
            changed: Arc::new(Notify::new()),
            deadlines: Arc::new(Notify::new()),
            written,
            revocations,
            reception: Arc::default(),
            waiting: WaitingRequests::default(),
            renew,
            contributed: watch::Sender::new(0),
            started: begun,
            looks: ClockLooks::new(silence, begun.elapsed()),
            progress: Arc::new(progress),
        });
        Ok(Self { requests, synchronizer, writer, leftovers, reroute, steps_before })
    }
}

/// The running manifest writer. It stops when this is dropped.
struct WriterTask {
    stop: CancellationToken,
    task: JoinHandle<Result<ManifestSequence, CoordinatorError>>,
    store: RunStore,
    _stop_on_drop: DropGuard,
}

impl WriterTask {
    /// Runs the writer on a thread of its own: encoding a large manifest takes long, and must not delay answers.
    fn spawn(writer: ManifestWriter) -> Self {
        let (stop, store) = (CancellationToken::new(), writer.store.clone());
        let (runtime, stopped) = (Handle::current(), stop.clone());
        let task = tokio::task::spawn_blocking(move || runtime.block_on(writer.run(stopped)));
        Self { _stop_on_drop: stop.clone().drop_guard(), stop, task, store }
    }

    /// Waits for the last write. Returns the sequence number of the last manifest.
    async fn stop(self) -> Result<ManifestSequence, CoordinatorError> {
        self.stop.cancel();
        self.task.await?
    }

    /// Waits for the last write after another part of the coordinator has failed. Returns the cause of the failure: if
    /// the writer failed, the other parts only know that it ended. If another coordinator has taken the run over, this is the
    /// cause: the other one has deleted what this one misses.
    async fn stop_after(self, error: CoordinatorError) -> CoordinatorError {
        // One look is enough: the failure had the patience of the store.
        let store = self.store.clone().with_patience(Patience::default());
        let stopped = match self.stop().await {
            Ok(sequence) => store.check_current(sequence).await.map_err(CoordinatorError::from),
            Err(cause) => Err(cause),
        };
        match (error, stopped) {
            (CoordinatorError::Stopped, Err(cause))
            | (_, Err(cause @ CoordinatorError::Core(TrainError::Store(StoreError::Conflict { .. })))) => {
                cause
            }
            (error, _) => error,
        }
    }
}

/// Inner steps that all paths together have taken.
fn inner_steps_taken(ledger: &Ledger) -> u64 {
    ledger.state().progress().paths.values().map(|path| path.steps).sum()
}

/// Reason for which a coordinator ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The run is complete.
    Complete,
    /// The next phase of routing begins, and the caller divides the text.
    Boundary,
    /// The user asked for it.
    Stopped,
}

/// Begins each phase of routing when the previous phase has ended, until the run is complete or `reroute` begins no phase.
async fn lead_phases(
    requests: &CoordinatorRequests,
    reroute: Option<&Reroute>,
) -> Result<Ended, CoordinatorError> {
    loop {
        // Registered before the ledger is read, so that no change in between is missed.
        let changed = requests.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let boundary = {
            let ledger = requests.ledger();
            if ledger.state().finished() {
                return Ok(Ended::Complete);
            }
            ledger.boundary()
        };
        let Some(PhaseBoundary { phase, round }) = boundary else {
            changed.await;
            continue;
        };
        // The program that divides the text reads the run from the disk.
        requests.on_disk().await?;
        let Some(reroute) = reroute else { return Ok(Ended::Boundary) };
        let begun = Instant::now();
        let divided = reroute(phase).await.map_err(|source| CoordinatorError::Reroute { source })?;
        let Some(shards) = divided else { return Ok(Ended::Boundary) };
        requests.begin_phase(shards).await?;
        let seconds = begun.elapsed().as_secs_f64();
        requests.progress.event(Event::PhaseStarted { phase, round: round.into(), seconds });
    }
}
