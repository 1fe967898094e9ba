//! A worker: asks for a path, trains it for a round, brings what came out, and asks again.

mod fragment_cache;
mod gradients;
mod heartbeat;
mod next_lease;
mod prefetch;
mod shard_cache;
mod state;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dipaco_net::JoinToken;
use dipaco_sync::{Fence, fragment_ids_of};
use dipaco_topology::{PathId, Topology};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::TrainError;
use crate::blocking::blocking;
use crate::client::{GOODBYE_TIMEOUT, Identity, LONG_CALL_TIMEOUT, Session, instance};
use crate::client::{LeaseKey, Transfer, answered};
use dipaco_path::PathState;
use dipaco_path::PathWeights;
use dipaco_path::TrainDevice;
use dipaco_path::{LeaseTraining, LeaseWatch, OuterGradient, PathData, TrainedLease, train_lease};
use dipaco_protocol::{GrantedLease, LeaseResult, Request, Response};
use fragment_cache::FragmentCache;
use gradients::upload_gradients;
use heartbeat::Heartbeat;
use next_lease::{Background, NextLease, nothing, wait};
use prefetch::{Prefetch, PrefetchedLease, near_the_end};
use shard_cache::ShardCache;

/// How a worker is set up.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// What the coordinator gave out.
    pub token: JoinToken,
    /// The worker's name, unique in the run.
    pub name: String,
    /// The run's routing folder or a copy, where shards may already lie, as on the coordinator's own machine.
    pub shards: Option<PathBuf>,
    /// Where shards that were fetched are kept.
    pub cache: PathBuf,
    /// How long to try when the coordinator can't be reached.
    pub patience: Duration,
    /// The bandwidth that transfers may use in each direction, in megabits per second; 0 is no limit.
    pub bandwidth: u32,
    /// Where to train.
    pub device: TrainDevice,
}

/// What a worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerSummary {
    /// Leases that were trained and counted: rounds of paths when nothing overlaps.
    pub rounds: u64,
    /// Leases that were lost.
    pub lost: u64,
}

/// Works until the run is complete or `cancel` is triggered; a lease that is held then is given back.
///
/// # Errors
/// When the coordinator can't be reached for longer than the options allow or refuses the worker, when a shard can't be
/// had, or when training diverges.
pub async fn work(options: WorkerOptions, cancel: CancellationToken) -> Result<WorkerSummary, TrainError> {
    let identity = Identity {
        token: options.token.clone(),
        worker: options.name.clone(),
        instance: instance(),
        patience: options.patience,
    };
    let session = match Session::open(identity, cancel.clone()).await {
        Ok(session) => Arc::new(session),
        Err(TrainError::Cancelled) => return Ok(WorkerSummary::default()),
        Err(error) => return Err(error),
    };
    let topology = session.plan().topology()?;
    let layout = dipaco_path::Layout::of_plan(session.plan(), &topology)?;
    let transfer = Arc::new(Transfer::new(session.clone(), options.bandwidth));
    let shards = ShardCache::new(session.clone(), transfer.clone(), options.shards, options.cache);
    let weights = FragmentCache::new(transfer.clone(), layout);
    let mut worker = Worker {
        prefetch: Arc::new(Prefetch { session, transfer, weights, shards }),
        device: options.device,
        topology,
        cancel,
        held: Vec::new(),
        fetching: Duration::ZERO,
        completed: Arc::default(),
        lost: Arc::default(),
        idle: Instant::now(),
    };
    let result = worker.run().await;
    let summary = WorkerSummary {
        rounds: worker.completed.load(Ordering::Relaxed),
        lost: worker.lost.load(Ordering::Relaxed),
    };
    worker.prefetch.transfer.routes.close().await;
    match result {
        Ok(()) | Err(TrainError::Cancelled | TrainError::Complete) => Ok(summary),
        Err(error) => Err(error),
    }
}

/// A part of a path's training, from where its state is.
struct TrainingSpan {
    path: PathId,
    phase_step: u64,
    to: u64,
    sends: Vec<dipaco_sync::ScheduledSend>,
}

impl TrainingSpan {
    fn of(work: &GrantedLease, to: u64, sends: &[dipaco_sync::ScheduledSend]) -> Self {
        Self { path: work.path, phase_step: work.phase_step, to, sends: sends.to_vec() }
    }
}

/// Outer gradients that are brought as they come.
struct GradientUpload {
    sent: mpsc::Sender<OuterGradient>,
    bringing: Background<()>,
    /// Triggered when the lease before is complete: not before that anything of this one may be brought.
    begun: CancellationToken,
}

struct Worker {
    prefetch: Arc<Prefetch>,
    device: TrainDevice,
    topology: Topology,
    cancel: CancellationToken,
    /// The states of the paths that were trained last, the newest at the end, each with the lease that left it.
    held: Vec<(PathId, Fence, PathState)>,
    /// How long it took last to fetch what a lease begins with.
    fetching: Duration,
    /// Leases that were trained and are complete.
    completed: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
    /// Since when no inner step is taken.
    idle: Instant,
}

impl Worker {
    async fn run(&mut self) -> Result<(), TrainError> {
        let (mut next, mut before) = (None, nothing());
        loop {
            let prefetched = match next.take() {
                Some(prefetched) => prefetched,
                None => match self.first(&mut before).await? {
                    Some(prefetched) => prefetched,
                    None => return before.await,
                },
            };
            let path = prefetched.work.path;
            match self.carry_out(prefetched, before).await {
                Ok(after) => (next, before) = after,
                Err(TrainError::LeaseLost { reason }) => {
                    tracing::warn!(%path, reason, "the lease is lost");
                    self.lost.fetch_add(1, Ordering::Relaxed);
                    self.give_back().await;
                    (next, before) = (None, nothing());
                }
                Err(error) => {
                    self.give_back().await;
                    return Err(error);
                }
            }
        }
    }

    /// Gives back every lease that this worker has. Best effort on the way out: without it a lease ends by itself at its
    /// deadline.
    async fn give_back(&self) {
        let client = self.prefetch.session.client().await;
        if let Err(error) = client.call::<_, Response>(&Request::Release, None, 0, GOODBYE_TIMEOUT).await {
            tracing::debug!(%error, "leases could not be given back");
        }
    }

    /// A lease when none was asked for in advance, while `before` ends; nothing when the run is complete.
    async fn first(&self, before: &mut Background<()>) -> Result<Option<PrefetchedLease>, TrainError> {
        let held = self.holds();
        let asking = self.prefetch.lease(&held);
        tokio::pin!(asking);
        tokio::select! {
            prefetched = &mut asking => return prefetched,
            ended = &mut *before => ended?,
        }
        *before = nothing();
        asking.await
    }

    /// The paths whose states are held, with the leases that left them.
    fn holds(&self) -> Vec<(PathId, Fence)> {
        self.held.iter().map(|&(path, fence, _)| (path, fence)).collect()
    }

    /// Carries out a lease, while what the one before it ends with is brought and what the next one begins with is fetched.
    /// Returns the next one, if there is one, and what is still to be brought.
    async fn carry_out(
        &mut self,
        prefetched: PrefetchedLease,
        before: Background<()>,
    ) -> Result<(Option<PrefetchedLease>, Background<()>), TrainError> {
        let PrefetchedLease { work, data, after, state, watch, heartbeat, took } = prefetched;
        self.fetching = took;
        let state = self.state(&work, &data, (after, state), &watch).await?;
        let trained = CancellationToken::new();
        let mut next_lease = self.next_lease(&work, watch.clone(), trained.clone());
        let result = self.train(&work, &data, state, watch, before, &mut next_lease).await?;
        trained.cancel();
        let Some((result, bringing)) = result else {
            let reason = heartbeat.stop().await.unwrap_or_else(|| "the round was given up".to_owned());
            return Err(TrainError::LeaseLost { reason });
        };
        let (kept, completing) = self.complete(&work, result, bringing, heartbeat).await?;
        let mut completing = Some(completing);
        let next = loop {
            tokio::select! {
                next = next_lease.next() => break next?,
                completed = wait(&mut completing), if completing.is_some() => {
                    completed?;
                    completing = None;
                }
            }
        };
        self.rest(&work, kept, next.as_ref()).await;
        let follows = next.as_ref().is_some_and(|next| next.work.path == work.path);
        let (path, lost) = (work.path, self.lost.clone());
        let completing = completing.unwrap_or_else(nothing);
        let completing: Background<()> = Box::pin(async move {
            match completing.await {
                // What follows on a path is lost with what it goes on from; other paths have nothing to do with it.
                Err(TrainError::LeaseLost { reason }) if !follows => {
                    tracing::warn!(%path, reason, "the lease is lost");
                    lost.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
                completed => completed,
            }
        });
        Ok((next, completing))
    }

    /// Asks for the lease that comes after this one, and fetches what it begins with: one that follows on the same path as
    /// soon as there is one, and otherwise another one when this one ends sooner than that can be fetched, so that no lease
    /// lies idle for long while other workers look for one.
    fn next_lease(
        &self,
        work: &GrantedLease,
        watch: Arc<LeaseWatch>,
        trained: CancellationToken,
    ) -> NextLease {
        let follows = work.trains() && self.prefetch.session.plan().sync.overlap_steps > 0;
        let (prefetch, lead) = (self.prefetch.clone(), self.fetching * 2);
        let (path, fence, steps) = (work.path, work.fence, work.to - work.from);
        let held: Vec<_> = self.holds().into_iter().chain([(path, fence)]).collect();
        NextLease::Asked(Box::pin(async move {
            if follows && let Some(next) = prefetch.follow(path, fence).await? {
                return Ok(Some(next));
            }
            tokio::select! {
                () = near_the_end(&watch, steps, lead) => {}
                () = trained.cancelled() => {}
            }
            prefetch.lease(&held).await
        }))
    }

    /// Trains a lease, while `before` ends and then its outer gradients are brought; returns what it made and what is
    /// still to be brought, or nothing when it was given up.
    async fn train(
        &mut self,
        work: &GrantedLease,
        data: &Arc<PathData>,
        mut state: PathState,
        watch: Arc<LeaseWatch>,
        before: Background<()>,
        next_lease: &mut NextLease,
    ) -> Result<Option<(TrainedLease, GradientUpload)>, TrainError> {
        let begins = work.from == work.phase_step || !work.trains();
        let weights = self.path_weights(work.path, &work.weights, &mut state, begins).await?;
        let waited = self.idle.elapsed();
        let under = LeaseKey { path: work.path, fence: work.fence };
        // Everything that a lease sends fits: training never waits for the network.
        let (sent, gradients) = mpsc::channel(work.sends.len().max(1));
        let early = sent.clone();
        let part = TrainingSpan::of(work, work.to, &work.sends);
        // A closed channel means that the lease is lost: the round is cancelled.
        let early = move |gradient| drop(early.try_send(gradient));
        let mut training = self.training(part, data, weights, state, &watch, early);
        let transfer = self.prefetch.transfer.clone();
        let begun = CancellationToken::new();
        let complete_before = begun.clone();
        let mut bringing: Background<()> = Box::pin(async move {
            before.await?;
            complete_before.cancel();
            upload_gradients(transfer, under, gradients).await
        });
        let cancel = self.cancel.clone();
        let result = loop {
            tokio::select! {
                result = &mut training => break result?,
                brought = &mut bringing => {
                    // Not before training is over, unless it failed.
                    watch.cancel();
                    training.await?;
                    brought?;
                    return Ok(None);
                }
                known = next_lease.look() => {
                    if let Err(error) = known {
                        watch.cancel();
                        training.await?;
                        return Err(error);
                    }
                }
                () = cancel.cancelled() => {
                    watch.cancel();
                    training.await?;
                    return Err(TrainError::Cancelled);
                }
            }
        };
        let Some(mut result) = result else { return Ok(None) };
        result.report.waited_seconds = waited.as_secs_f64();
        if work.trains() {
            self.idle = Instant::now();
        }
        Ok(Some((result, GradientUpload { sent, bringing, begun })))
    }

    /// Trains a part of a path in a thread of its own; `early` gets what is sent before its end.
    fn training(
        &self,
        part: TrainingSpan,
        data: &Arc<PathData>,
        weights: PathWeights,
        state: PathState,
        watch: &Arc<LeaseWatch>,
        early: impl FnMut(OuterGradient) + Send + 'static,
    ) -> Background<Option<TrainedLease>> {
        let (plan, device) = (self.prefetch.session.plan().clone(), self.device.clone());
        let (data, watch) = (data.clone(), watch.clone());
        Box::pin(async move {
            blocking(move || {
                let TrainingSpan { path, phase_step, to, sends } = part;
                let training = LeaseTraining {
                    device: &device,
                    plan: &plan,
                    path,
                    data: &data,
                    phase_step,
                    to,
                    sends: &sends,
                };
                train_lease(training, weights, state, &watch, early)
            })
            .await?
            .map_err(TrainError::from)
        })
    }

    /// Brings what a lease ends with and completes it, beside whatever comes next. Returns the path's state with what is
    /// still to be waited for.
    async fn complete(
        &self,
        work: &GrantedLease,
        result: TrainedLease,
        brought: GradientUpload,
        heartbeat: Heartbeat,
    ) -> Result<(PathState, Background<()>), TrainError> {
        let TrainedLease { last, state, report } = result;
        let GradientUpload { sent, bringing, begun } = brought;
        for gradient in last {
            drop(sent.try_send(gradient));
        }
        drop(sent);
        let (state, encoded) = if work.trains() && work.uploads_state {
            let session = self.prefetch.session.clone();
            blocking(move || {
                let encoded = state.encode(&session.plan().model)?;
                Ok::<_, TrainError>((state, Some(encoded)))
            })
            .await??
        } else {
            (state, None)
        };
        let (prefetch, completed) = (self.prefetch.clone(), self.completed.clone());
        let (under, trains) = (LeaseKey { path: work.path, fence: work.fence }, work.trains());
        let completing: Background<()> = Box::pin(async move {
            let bringing_state = async {
                begun.cancelled().await;
                match encoded {
                    Some(encoded) => {
                        prefetch.transfer.upload(under, LeaseResult::State, encoded.into()).await
                    }
                    None => Ok(()),
                }
            };
            tokio::try_join!(bringing, bringing_state)?;
            let LeaseKey { path, fence } = under;
            let request = Request::Complete { path, fence, report };
            answered(prefetch.session.call(&request, None, LONG_CALL_TIMEOUT).await?, "complete")?;
            drop(heartbeat);
            completed.fetch_add(u64::from(trains), Ordering::Relaxed);
            Ok(())
        });
        Ok((state, completing))
    }

    /// Keeps what a lease leaves, and what the next one begins with.
    async fn rest(&mut self, work: &GrantedLease, state: PathState, next: Option<&PrefetchedLease>) {
        if work.trains() {
            self.held.push((work.path, work.fence, state));
        }
        let plan = self.prefetch.session.plan();
        let next = next.map(|next| next.work.path);
        while self.held.len() > plan.train.held_paths
            && let Some(oldest) = self.held.iter().position(|&(path, ..)| Some(path) != next)
        {
            drop(self.held.remove(oldest));
        }
        let paths = self.held.iter().map(|&(path, ..)| path).chain([work.path]).chain(next);
        let used =
            paths.flat_map(|path| fragment_ids_of(&self.topology, plan.sync.fragments, path)).collect();
        self.prefetch.weights.keep(&used).await;
    }
}
