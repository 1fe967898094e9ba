//! A worker: asks for a path, trains it for a round, brings what came out, and asks again.

mod gradients;
mod heart;
mod shard;
mod weights;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dipaco_net::JoinToken;
use dipaco_sync::{Fence, units_of};
use dipaco_topology::{PathId, Topology};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::TrainError;
use crate::device::TrainDevice;
use crate::path_state::PathState;
use crate::path_weights::{Global, PathWeights};
use crate::protocol::{Item, Request, Response, UnitWeights, Work};
use crate::round::{OuterGradient, PathData, Round, RoundResult, RoundWatch, train_round};
use crate::session::{FAREWELL, Identity, LONG_CALL, Offer, Session, instance};
use crate::synchronizer::blocking;
use crate::transfer::{Transfer, Under, answered};
use gradients::bring_gradients;
use heart::Heart;
use weights::Weights;

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
    let layout = session.plan().layout(&topology)?;
    let transfer = Arc::new(Transfer::new(session.clone(), options.bandwidth));
    let weights = Arc::new(Weights::new(transfer.clone(), layout));
    let mut worker = Worker {
        transfer,
        options,
        session,
        topology,
        cancel,
        weights,
        held: Vec::new(),
        data: None,
        carried: [(PathId(0), Fence(0)); 2],
        completed: Arc::default(),
        lost: 0,
        idle: Instant::now(),
    };
    let result = worker.run().await;
    let summary = WorkerSummary { rounds: worker.completed.load(Ordering::Relaxed), lost: worker.lost };
    worker.transfer.routes.close().await;
    match result {
        Ok(()) | Err(TrainError::Cancelled | TrainError::Complete) => Ok(summary),
        Err(error) => Err(error),
    }
}

/// A part of a path's training, from where its state is.
struct Part {
    path: PathId,
    phase_step: u64,
    to: u64,
    sends: Vec<dipaco_sync::Send>,
}

impl Part {
    fn of(work: &Work, to: u64, sends: &[dipaco_sync::Send]) -> Self {
        Self { path: work.path, phase_step: work.phase_step, to, sends: sends.to_vec() }
    }
}

/// What goes on beside the training.
type Beside<T> = Pin<Box<dyn Future<Output = Result<T, TrainError>> + Send>>;

/// Outer gradients that are brought as they come.
struct Bringing {
    sent: mpsc::Sender<OuterGradient>,
    bringing: Beside<()>,
}

/// The lease that follows one that is trained.
enum Upcoming {
    Asked(Beside<Option<Box<Work>>>),
    Known(Option<Box<Work>>),
}

impl Upcoming {
    /// Waits until it is known; never ends when it is.
    async fn look(&mut self) -> Result<(), TrainError> {
        match self {
            Self::Asked(asking) => {
                let known = asking.await?;
                *self = Self::Known(known);
                Ok(())
            }
            Self::Known(_) => std::future::pending().await,
        }
    }

    /// The lease, when there is one.
    async fn next(&mut self) -> Result<Option<Box<Work>>, TrainError> {
        if let Self::Asked(_) = self {
            self.look().await?;
        }
        match self {
            Self::Known(known) => Ok(known.take()),
            Self::Asked(_) => Ok(None),
        }
    }
}

/// Waits for something that may be there.
async fn wait(beside: &mut Option<Beside<()>>) -> Result<(), TrainError> {
    match beside {
        Some(beside) => beside.await,
        None => Ok(()),
    }
}

struct Worker {
    options: WorkerOptions,
    session: Arc<Session>,
    transfer: Arc<Transfer>,
    topology: Topology,
    cancel: CancellationToken,
    weights: Arc<Weights>,
    /// The states of the paths that were trained last, the newest at the end, each with the lease that left it.
    held: Vec<(PathId, Fence, PathState)>,
    /// The shard of the last path, with its content hash.
    data: Option<(PathId, String, Arc<PathData>)>,
    /// The lease that was begun last, and the one before it, which may not be complete.
    carried: [(PathId, Fence); 2],
    /// Leases that were trained and are complete.
    completed: Arc<AtomicU64>,
    lost: u64,
    /// Since when no inner step is taken.
    idle: Instant,
}

impl Worker {
    async fn run(&mut self) -> Result<(), TrainError> {
        loop {
            let held = self.held.iter().map(|&(path, ..)| path).collect();
            let ask = Request::Lease { held, wait_ms: 15_000 };
            let work = match self.session.ask(&ask).await? {
                Offer::Work(work) => *work,
                Offer::Wait(reason) => {
                    tracing::debug!(reason, "waiting");
                    continue;
                }
                Offer::Finished => return Ok(()),
            };
            let path = work.path;
            self.carried = [(path, work.fence); 2];
            match self.carry_out(work).await {
                Ok(()) => {}
                Err(TrainError::LeaseLost { reason }) => {
                    tracing::warn!(%path, reason, "the lease is lost");
                    self.lost += 1;
                    self.give_back().await;
                }
                Err(error) => {
                    self.give_back().await;
                    return Err(error);
                }
            }
        }
    }

    /// Gives back what is carried. Best effort on the way out: without it a lease ends by itself at its deadline.
    async fn give_back(&self) {
        for (path, fence) in BTreeSet::from(self.carried) {
            let release = Request::Release { path, fence };
            let client = self.session.client().await;
            if let Err(error) = client.call::<_, Response>(&release, None, 0, FAREWELL).await {
                tracing::debug!(%error, "a lease could not be given back");
            }
        }
    }

    /// Carries out a lease and those that follow it. What a lease begins with is fetched while the one before is trained,
    /// and what it ends with is brought while the next one is.
    async fn carry_out(&mut self, mut work: Work) -> Result<(), TrainError> {
        let mut watch = Arc::new(RoundWatch::default());
        // Heartbeats cover the transfers too: on a slow link they may take longer than a lease.
        let mut heart = Heart::start(self.session.clone(), &work, watch.clone());
        let data = self.data(&work).await?;
        let mut state = self.state(&work, &data, &watch).await?;
        self.weights.fetch(&work.weights).await?;
        let mut before: Beside<()> = Box::pin(async { Ok(()) });
        loop {
            let mut upcoming = self.upcoming(&work);
            let trained = self.train(&work, &data, state, watch, before, &mut upcoming).await?;
            let Some((result, bringing)) = trained else {
                let reason = heart.stop().await.unwrap_or_else(|| "the round was given up".to_owned());
                return Err(TrainError::LeaseLost { reason });
            };
            let (kept, completing) = self.complete(&work, result, bringing, heart).await?;
            let mut completing = Some(completing);
            let following = loop {
                tokio::select! {
                    following = upcoming.next() => break following?,
                    completed = wait(&mut completing), if completing.is_some() => {
                        completed?;
                        completing = None;
                    }
                }
            };
            let Some(next) = following else {
                if let Some(completing) = completing {
                    completing.await?;
                }
                return self.rest(&work, kept).await;
            };
            watch = Arc::new(RoundWatch::default());
            heart = Heart::start(self.session.clone(), &next, watch.clone());
            self.carried = [(work.path, work.fence), (next.path, next.fence)];
            (work, state) = (*next, kept);
            before = completing.unwrap_or_else(|| Box::pin(async { Ok(()) }));
        }
    }

    /// Asks for the lease that follows this one, and fetches what it begins with.
    fn upcoming(&self, work: &Work) -> Upcoming {
        if !work.trains() || self.session.plan().sync.overlap_steps == 0 {
            return Upcoming::Known(None);
        }
        let (session, weights) = (self.session.clone(), self.weights.clone());
        let (path, fence) = (work.path, work.fence);
        Upcoming::Asked(Box::pin(async move {
            loop {
                let ask = Request::Follow { path, fence, wait_ms: 15_000 };
                match session.ask(&ask).await {
                    Ok(Offer::Work(next)) => {
                        weights.fetch(&next.weights).await?;
                        return Ok(Some(next));
                    }
                    Ok(Offer::Wait(reason)) => tracing::debug!(%path, reason, "what follows has to wait"),
                    // When the lease is lost, those who bring its results hear of it.
                    Ok(Offer::Finished) | Err(TrainError::LeaseLost { .. }) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
        }))
    }

    /// Trains a lease, while `before` ends and then its outer gradients are brought; returns what it made and what is
    /// still to be brought, or nothing when it was given up.
    async fn train(
        &mut self,
        work: &Work,
        data: &Arc<PathData>,
        mut state: PathState,
        watch: Arc<RoundWatch>,
        before: Beside<()>,
        upcoming: &mut Upcoming,
    ) -> Result<Option<(RoundResult, Bringing)>, TrainError> {
        let begins = work.from == work.phase_step || !work.trains();
        let weights = self.path_weights(work.path, &work.weights, &mut state, begins).await?;
        let waited = self.idle.elapsed();
        let under = Under { path: work.path, fence: work.fence };
        // Everything that a lease sends fits: training never waits for the network.
        let (sent, gradients) = mpsc::channel(work.sends.len().max(1));
        let early = sent.clone();
        let part = Part::of(work, work.to, &work.sends);
        // A closed channel means that the lease is lost: the round is cancelled.
        let early = move |gradient| drop(early.try_send(gradient));
        let mut training = self.training(part, data, weights, state, &watch, early);
        let transfer = self.transfer.clone();
        let mut bringing: Beside<()> = Box::pin(async move {
            before.await?;
            bring_gradients(transfer, under, gradients).await
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
                known = upcoming.look() => {
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
        Ok(Some((result, Bringing { sent, bringing })))
    }

    /// Trains a part of a path in a thread of its own; `early` gets what is sent before its end.
    fn training(
        &self,
        part: Part,
        data: &Arc<PathData>,
        weights: PathWeights,
        state: PathState,
        watch: &Arc<RoundWatch>,
        early: impl FnMut(OuterGradient) + Send + 'static,
    ) -> Beside<Option<RoundResult>> {
        let (plan, device) = (self.session.plan().clone(), self.options.device.clone());
        let (data, watch) = (data.clone(), watch.clone());
        Box::pin(async move {
            blocking(move || {
                let Part { path, phase_step, to, sends } = part;
                let round =
                    Round { device: &device, plan: &plan, path, data: &data, phase_step, to, sends: &sends };
                train_round(round, weights, state, &watch, early)
            })
            .await?
        })
    }

    /// Brings what a lease ends with and completes it, beside whatever comes next. Returns the path's state with what is
    /// still to be waited for.
    async fn complete(
        &self,
        work: &Work,
        result: RoundResult,
        brought: Bringing,
        heart: Heart,
    ) -> Result<(PathState, Beside<()>), TrainError> {
        let RoundResult { last, state, report } = result;
        let Bringing { sent, bringing } = brought;
        for gradient in last {
            drop(sent.try_send(gradient));
        }
        drop(sent);
        let (state, encoded) = if work.trains() && work.brings_state {
            let session = self.session.clone();
            blocking(move || {
                let encoded = state.encode(&session.plan().model)?;
                Ok::<_, TrainError>((state, Some(encoded)))
            })
            .await??
        } else {
            (state, None)
        };
        let (session, transfer, completed) =
            (self.session.clone(), self.transfer.clone(), self.completed.clone());
        let (under, trains) = (Under { path: work.path, fence: work.fence }, work.trains());
        let completing: Beside<()> = Box::pin(async move {
            let bringing_state = async {
                match encoded {
                    Some(encoded) => transfer.bring(under, Item::State, encoded.into()).await,
                    None => Ok(()),
                }
            };
            tokio::try_join!(bringing, bringing_state)?;
            let Under { path, fence } = under;
            let request = Request::Complete { path, fence, report };
            answered(session.call(&request, None, LONG_CALL).await?, "complete")?;
            drop(heart);
            completed.fetch_add(u64::from(trains), Ordering::Relaxed);
            Ok(())
        });
        Ok((state, completing))
    }

    /// Keeps what a complete lease leaves, when no other follows it at once.
    async fn rest(&mut self, work: &Work, state: PathState) -> Result<(), TrainError> {
        if work.trains() {
            self.held.push((work.path, work.fence, state));
        }
        let excess = self.held.len().saturating_sub(self.session.plan().train.held_paths);
        drop(self.held.drain(..excess));
        let fragments = self.session.plan().sync.fragments;
        let paths = self.held.iter().map(|&(path, ..)| path).chain([work.path]);
        let used = paths.flat_map(|path| units_of(&self.topology, fragments, path)).collect();
        self.weights.keep(&used).await;
        Ok(())
    }

    /// What a lease of a path begins with.
    async fn path_weights(
        &self,
        path: PathId,
        weights: &[UnitWeights],
        state: &mut PathState,
        begins: bool,
    ) -> Result<PathWeights, TrainError> {
        let mut values = Vec::with_capacity(weights.len());
        for weights in weights {
            values.push(self.weights.get(weights.unit).await?);
        }
        let globals: Vec<Global<'_>> = weights
            .iter()
            .zip(&values)
            .map(|(&UnitWeights { unit, received, share, .. }, values)| Global {
                unit,
                values,
                received,
                share,
            })
            .collect();
        PathWeights::new(self.session.plan(), path, &globals, state, begins)
    }

    /// The state with which a lease begins: what this worker holds, or the last one that was brought, with the leases
    /// since then trained again.
    async fn state(
        &mut self,
        work: &Work,
        data: &Arc<PathData>,
        watch: &Arc<RoundWatch>,
    ) -> Result<PathState, TrainError> {
        let held = self.held.iter().position(|&(path, ..)| path == work.path).map(|at| self.held.remove(at));
        if let Some((_, fence, state)) = held
            && work.made_by == Some(fence)
        {
            return Ok(state);
        }
        let mut state = self.fetch_state(work).await?;
        if !work.tail.is_empty() {
            let (path, steps) = (work.path, work.from - state.step.min(work.from));
            tracing::info!(%path, steps, "the path is taken over; what came after its last state is trained again");
        }
        for stretch in &work.tail {
            self.weights.fetch(&stretch.weights).await?;
            let begins = stretch.from == work.phase_step;
            let weights = self.path_weights(work.path, &stretch.weights, &mut state, begins).await?;
            let part = Part::of(work, stretch.to, &stretch.sends);
            let mut again = self.training(part, data, weights, state, watch, drop);
            let result = tokio::select! {
                result = &mut again => result?,
                () = self.cancel.cancelled() => {
                    watch.cancel();
                    again.await?;
                    return Err(TrainError::Cancelled);
                }
            };
            match result {
                Some(result) => state = result.state,
                None => return Err(TrainError::LeaseLost { reason: "the round was given up".to_owned() }),
            }
        }
        Ok(state)
    }

    /// The last state that was brought, or that before the first step.
    async fn fetch_state(&self, work: &Work) -> Result<PathState, TrainError> {
        let session = self.session.clone();
        let Some(object) = &work.state else {
            let parameters = dipaco_model::parameters(&dipaco_model::path_specs(&session.plan().model));
            return Ok(PathState::start(parameters));
        };
        let bytes = self.transfer.object(object).await?;
        blocking(move || PathState::decode(&bytes, &session.plan().model)).await?
    }
}
