//! A worker: asks for a lease, trains the path, uploads the results, and asks again.
//!
//! # States of a lease
//!
//! ```text
//!           granted           inputs fetched        last inner step       all results stored
//!  asked ────────────▶ prefetching ────────▶ training ─────────▶ uploading ─────────▶ completed
//!                           │                   │                    │
//!                           └───────────────────┴────────────────────┴──▶ lost
//! ```
//!
//! | state | the worker | file |
//! |---|---|---|
//! | asked | waits for the coordinator's answer to `Lease` or `Follow` | `next_lease.rs`, `prefetch.rs` |
//! | prefetching | downloads shard, state and global weights | `prefetch.rs`, `shard_cache.rs`, `fragment_cache.rs` |
//! | training | takes inner steps on a thread of their own, after repeating steps that no stored state covers | `start_state.rs`, `training.rs` |
//! | uploading | uploads the outer gradients of the lease's end, and the state if the lease asks for it | `completion.rs`, `gradients.rs` |
//! | completed | has told the coordinator `Complete`; keeps the state for the path's next lease | `completion.rs`, `kept_states.rs` |
//! | lost | drops the results and gives all leases back | this file |
//! | diverged | tells the coordinator, and goes on with another path or ends | this file |
//!
//! Heartbeats (`heartbeat.rs`) renew the lease from the grant to the completion. The answer to a heartbeat can declare the
//! lease lost, which cancels its training.
//!
//! # Overlap
//!
//! The worker has at most three leases in different states. While lease n trains, lease n−1 uploads and lease n+1 is asked
//! for and prefetched:
//!
//! ```text
//!  lease n−1  … training │ uploading ──────────▶ completed
//!  lease n    … prefetch │ training ──────────────────────────────│ uploading ──▶ completed
//!                        │                      └ early gradients │
//!  lease n+1             │          asked ── prefetching ──▶ wait │ training …
//! ```
//!
//! - Outer gradients that lease n sends before its end wait for the completion of lease n−1. On one path, lease n counts
//!   only from then on.
//! - Lease n+1 of the same path (`Follow`, with `sync.overlap_steps`) is asked for at once. Another lease is asked for
//!   when the rest of lease n takes about as long as a prefetch, so that no lease waits here while other workers want it.
//! - If lease n−1 is lost while lease n of the same path trains, lease n is lost too: its weights continue those of lease
//!   n−1. Leases of other paths go on.
//!
//! One future each stands for "lease n−1 uploads" and "lease n+1 is prefetched". The code that waits for training polls both.
//! Lease n may have to repeat steps before it trains. Lease n+1 is not asked for then, and the upload alone is polled.
//! Dropping the futures is safe at any time: requests may be repeated, and a lease without heartbeats ends at its deadline.

mod background;
mod cached_fragments;
mod carry_out;
mod completion;
mod error;
mod fragment_cache;
mod gradients;
mod heartbeat;
mod kept_states;
mod next_lease;
mod observer;
mod partial_downloads;
mod prefetch;
mod shard_cache;
mod start_state;
mod state_file;
mod training;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dipaco_net::{Clock, JoinToken};
use dipaco_topology::Topology;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::TrainError;
use crate::client::{
    ClientError, GOODBYE_TIMEOUT, Identity, LONG_CALL_TIMEOUT, LeaseKey, Moved, Session, TokenSource,
    Transfer, expect_done, instance,
};
use background::{Background, beside, nothing};
use carry_out::CarriedOut;
use dipaco_path::{Layout, MomentSpecs, PathError, TrainDevice, TrainerMemory, numerics};
use dipaco_protocol::{Request, Response};
pub use error::WorkerError;
use fragment_cache::FragmentCache;
use kept_states::KeptStates;
pub use observer::{LeaseMoment, LeaseObserver, LeaseStage};
use partial_downloads::remove_partial_downloads;
use prefetch::{Prefetch, PrefetchedLease};
use shard_cache::ShardCache;
use state_file::StateFolder;

/// Settings of a worker.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Join token from the coordinator.
    pub token: JoinToken,
    /// Where the token is read again when the coordinator can't be reached.
    pub source: TokenSource,
    /// Name of the worker, unique in the run.
    pub name: String,
    /// The run's routing folder or a copy, where shards may already lie, as on the coordinator's own machine.
    pub shards: Option<PathBuf>,
    /// Folder for downloaded shards.
    pub cache: PathBuf,
    /// Time to keep trying while the coordinator can't be reached.
    pub patience: Duration,
    /// Bandwidth that transfers may use in each direction, in megabits per second; 0 means no limit.
    pub bandwidth: u32,
    /// Bytes of weights that stay in memory besides those of the next lease. Others that come back lie on the disk of `cache`.
    pub weights_in_memory: usize,
    /// Device to train on.
    pub device: TrainDevice,
    /// Hears of the stages of each lease, for measurements.
    pub observer: Option<LeaseObserver>,
}

/// [`WorkerOptions::weights_in_memory`] of the program: 128 MiB.
pub const WEIGHTS_IN_MEMORY: usize = 128 << 20;

/// Counts of a worker's leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerSummary {
    /// Leases that were trained and completed: rounds of paths when no lease overlaps another.
    pub leases: u64,
    /// Leases that were lost.
    pub lost: u64,
}

/// Works until the run is complete or `cancel` is triggered. A lease that the worker holds at that time is given back.
///
/// # Errors
/// When the coordinator refuses the worker or can't be reached for longer than the options allow, when a shard can't be
/// read or downloaded, or when training diverges.
pub async fn work(options: WorkerOptions, cancel: CancellationToken) -> Result<WorkerSummary, WorkerError> {
    let clock = Clock::system();
    let identity = Identity {
        token: options.token.clone(),
        source: options.source.clone(),
        worker: options.name.clone(),
        instance: instance(),
        patience: options.patience,
        clock: clock.clone(),
        numerics: numerics(&options.device)?,
        server: None,
    };
    let session = match Session::open(identity, cancel.clone()).await {
        Ok(session) => Arc::new(session),
        Err(ClientError::Core(TrainError::Cancelled)) => return Ok(WorkerSummary::default()),
        Err(error) => return Err(error.into()),
    };
    let plan = session.plan();
    let topology = plan.topology()?;
    let layout = Layout::of_plan(plan, &topology)?;
    let folder = StateFolder::new(options.cache.clone(), MomentSpecs::of_plan(plan)?);
    let states = KeptStates::new(plan.train.held_paths, folder);
    let transfer = Arc::new(Transfer::new(session.clone(), options.bandwidth));
    let weights =
        FragmentCache::new(transfer.clone(), layout, options.cache.clone(), options.weights_in_memory);
    remove_partial_downloads(options.cache.clone(), clock.now()).await;
    let shards = ShardCache::new(transfer.clone(), options.shards, options.cache);
    let mut worker = Worker {
        prefetch: Arc::new(Prefetch { session, transfer, weights, shards, observer: options.observer }),
        device: options.device,
        topology,
        cancel,
        states,
        memory: TrainerMemory::default(),
        prefetch_time: Duration::ZERO,
        counts: Arc::default(),
        idle_since: Instant::now(),
    };
    let result = worker.run().await;
    let summary = WorkerSummary {
        leases: worker.counts.completed.load(Ordering::Relaxed),
        lost: worker.counts.lost.load(Ordering::Relaxed),
    };
    let Moved { down, linked, up } = worker.prefetch.transfer.moved();
    tracing::info!(downloaded = down, from_the_store = linked, uploaded = up, "bytes of this worker");
    worker.prefetch.transfer.routes.close().await;
    match result {
        Ok(())
        | Err(WorkerError::Core(TrainError::Cancelled) | WorkerError::Client(ClientError::Complete)) => {
            Ok(summary)
        }
        Err(error) => Err(error),
    }
}

/// Counts of leases. Completions that run in the background share them with the worker.
#[derive(Default)]
struct Counts {
    /// Leases that were trained and are complete.
    completed: AtomicU64,
    /// Leases that were lost.
    lost: AtomicU64,
}

struct Worker {
    prefetch: Arc<Prefetch>,
    device: TrainDevice,
    topology: Topology,
    cancel: CancellationToken,
    states: KeptStates,
    /// Memory of the last training, for the next one.
    memory: TrainerMemory,
    /// Duration of the last prefetch.
    prefetch_time: Duration,
    counts: Arc<Counts>,
    /// Time of the last inner step.
    idle_since: Instant,
}

impl Worker {
    /// Carries out leases until the run is complete.
    async fn run(&mut self) -> Result<(), WorkerError> {
        let (mut next, mut uploading) = (None, nothing());
        loop {
            // Every stage of a lease may learn that the lease is lost, and none of them ends the worker.
            match self.one_lease(next.take(), uploading).await {
                Ok(Some(CarriedOut { next: following, uploading: results })) => {
                    (next, uploading) = (following, results);
                }
                Ok(None) => return Ok(()),
                Err(WorkerError::LeaseLost { reason }) => {
                    tracing::warn!(reason, "a lease is lost");
                    self.counts.lost.fetch_add(1, Ordering::Relaxed);
                    // The next lease, if one was prefetched, was dropped with its heartbeat: give it back too.
                    self.give_back().await;
                    (next, uploading) = (None, nothing());
                }
                Err(WorkerError::Diverged { lease, step, source }) => {
                    let reported = self.report_divergence(lease, step, source).await;
                    self.counts.lost.fetch_add(1, Ordering::Relaxed);
                    self.give_back().await;
                    reported?;
                    (next, uploading) = (None, nothing());
                }
                Err(error) => {
                    self.give_back().await;
                    return Err(error);
                }
            }
        }
    }

    /// Carries out the prefetched lease, or asks for one first. Returns `None` when the run is complete.
    async fn one_lease(
        &mut self,
        prefetched: Option<PrefetchedLease>,
        mut uploading: Background<()>,
    ) -> Result<Option<CarriedOut>, WorkerError> {
        let prefetched = match prefetched {
            Some(prefetched) => Some(prefetched),
            None => self.first_lease(&mut uploading).await?,
        };
        match prefetched {
            Some(prefetched) => {
                let lease = prefetched.active.key();
                let carried_out = self.carry_out(prefetched, uploading).await;
                carried_out.map(Some).map_err(|error| error.of_lease(lease))
            }
            // No lease is left, but the results of the last one may still be on their way.
            None => uploading.await.map(|()| None),
        }
    }

    /// Reports a divergence. This worker goes on if another worker can try the path, or nobody trains it any more.
    ///
    /// # Errors
    /// The divergence, when no other worker is known, and when the coordinator can't be reached.
    async fn report_divergence(
        &mut self,
        lease: LeaseKey,
        step: u64,
        source: PathError,
    ) -> Result<(), WorkerError> {
        tracing::warn!(path = %lease.path, %source, "the training of a path diverged");
        // The kept state may be the reason.
        self.states.remove(lease.path);
        let request = Request::Diverged { lease, step };
        match self.prefetch.session.call(&request, None, LONG_CALL_TIMEOUT).await? {
            Response::Refused { reason } => {
                tracing::error!(reason, "the worker ends");
                Err(WorkerError::Diverged { lease, step, source })
            }
            Response::Lost { .. } => Ok(()),
            answer => Ok(expect_done(answer, "diverged")?),
        }
    }

    /// Gives back every lease of this worker. An error is no reason to fail: without the request, each lease ends at its
    /// deadline.
    async fn give_back(&self) {
        let client = self.prefetch.session.client().await;
        if let Err(error) = client.call::<_, Response>(&Request::Release, None, 0, GOODBYE_TIMEOUT).await {
            tracing::debug!(%error, "leases could not be given back");
        }
    }

    /// Asks for a lease when none was asked for in advance, and drives `uploading` meanwhile. Returns `None` when the run
    /// is complete.
    async fn first_lease(
        &self,
        uploading: &mut Background<()>,
    ) -> Result<Option<PrefetchedLease>, WorkerError> {
        let held = self.states.leases();
        // The coordinator may hold its answer back until this upload is complete. If the answer comes first, the caller
        // drives the upload during the lease.
        beside(uploading, self.prefetch.lease(&held)).await
    }
}
