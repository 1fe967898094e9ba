//! A worker: asks for a path, trains it for a round, brings what came out, and asks again.

mod gradients;
mod heart;
mod shard;
mod weights;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dipaco_net::JoinToken;
use dipaco_store::ObjectRef;
use dipaco_sync::{Fence, Unit};
use dipaco_topology::{PathId, Topology};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::TrainError;
use crate::device::TrainDevice;
use crate::layout::Layout;
use crate::path_state::PathState;
use crate::path_weights::{Global, PathWeights};
use crate::protocol::{Item, Request, Response, UnitWeights, Work};
use crate::round::{PathData, Round, RoundWatch, train_round};
use crate::session::{FAREWELL, Identity, LONG_CALL, SHORT_CALL, Session};
use crate::synchronizer::blocking;
use crate::transfer::{Transfer, Under, answered};
use gradients::bring_gradients;
use heart::Heart;

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
    let mut worker = Worker {
        transfer: Arc::new(Transfer::new(session.clone(), options.bandwidth)),
        options,
        session,
        topology,
        layout,
        cancel,
        weights: BTreeMap::new(),
        held: Vec::new(),
        data: None,
        summary: WorkerSummary::default(),
        idle: Instant::now(),
    };
    let result = worker.run().await;
    let summary = worker.summary;
    worker.session.close().await;
    match result {
        Ok(()) | Err(TrainError::Cancelled | TrainError::Complete) => Ok(summary),
        Err(error) => Err(error),
    }
}

/// A number that no other process of the run has: time and process number are enough among one name's processes.
fn instance() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&now.as_nanos().to_le_bytes()).update(&std::process::id().to_le_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

struct Worker {
    options: WorkerOptions,
    session: Arc<Session>,
    transfer: Arc<Transfer>,
    topology: Topology,
    layout: Layout,
    cancel: CancellationToken,
    /// Global weights of the paths that are held, with their objects: those that did not change are not fetched again.
    weights: BTreeMap<Unit, (ObjectRef, Vec<f32>)>,
    /// The states of the paths that were trained last, the newest at the end, each with the lease that left it.
    held: Vec<(PathId, Fence, PathState)>,
    /// The shard of the last path, with its content hash.
    data: Option<(PathId, String, Arc<PathData>)>,
    summary: WorkerSummary,
    /// Since when no inner step is taken.
    idle: Instant,
}

impl Worker {
    async fn run(&mut self) -> Result<(), TrainError> {
        loop {
            let held = self.held.iter().map(|&(path, ..)| path).collect();
            let ask = Request::Lease { held, wait_ms: 15_000 };
            let (answer, _) = self.session.call(&ask, None, 0, SHORT_CALL).await?;
            let work = match answer {
                Response::Work(work) => *work,
                Response::Wait { reason } => {
                    tracing::debug!(reason, "waiting");
                    continue;
                }
                Response::Finished => return Ok(()),
                Response::Refused { reason } => return Err(TrainError::Refused { reason }),
                _ => return Err(TrainError::UnexpectedAnswer { request: "lease" }),
            };
            let (path, fence) = (work.path, work.fence);
            // The last lease of a path only measures its final weights.
            let trains = work.trains();
            match self.carry_out(work).await {
                Ok(()) => self.summary.rounds += u64::from(trains),
                Err(TrainError::LeaseLost { reason }) => {
                    tracing::warn!(%path, reason, "the lease is lost");
                    self.summary.lost += 1;
                }
                Err(error) => {
                    // Best effort on the way out: without it the lease ends by itself at its deadline.
                    let release = Request::Release { path, fence };
                    let client = self.session.client().await;
                    if let Err(error) = client.call::<_, Response>(&release, None, 0, FAREWELL).await {
                        tracing::debug!(%error, "the lease could not be given back");
                    }
                    return Err(error);
                }
            }
        }
    }

    async fn carry_out(&mut self, work: Work) -> Result<(), TrainError> {
        // Heartbeats cover the transfers too: on a slow link they may take longer than a lease.
        let watch = Arc::new(RoundWatch::default());
        let heart = Heart::start(self.session.clone(), &work, watch.clone());
        let data = self.data(&work).await?;
        let mut state = self.state(&work, &data, &watch).await?;
        self.fetch_weights(&work.weights).await?;
        let begins = work.from == work.phase_step || !work.trains();
        let weights = self.path_weights(work.path, &work.weights, &mut state, begins)?;
        let (plan, device) = (self.session.plan().clone(), self.options.device.clone());
        let (path, to, phase_step, own_watch) = (work.path, work.to, work.phase_step, watch.clone());
        let sends = work.sends.clone();
        let waited = self.idle.elapsed();
        let under = Under { path, fence: work.fence };
        // Everything that a lease sends fits: training never waits for the network.
        let (sent, gradients) = mpsc::channel(work.sends.len().max(1));
        let early = sent.clone();
        let training = blocking(move || {
            let round =
                Round { device: &device, plan: &plan, path, data: &data, phase_step, to, sends: &sends };
            // A closed channel means that the lease is lost: the round is cancelled.
            train_round(round, weights, state, &own_watch, |gradient| drop(early.try_send(gradient)))
        });
        let bringing = bring_gradients(self.transfer.clone(), under, gradients);
        tokio::pin!(training, bringing);
        let result = tokio::select! {
            result = &mut training => result??,
            brought = &mut bringing => {
                // Not before training is over, unless it failed.
                watch.cancel();
                training.await??;
                brought?;
                None
            }
            () = self.cancel.cancelled() => {
                watch.cancel();
                training.await??;
                return Err(TrainError::Cancelled);
            }
        };
        let Some(mut result) = result else {
            let reason = heart.stop().await.unwrap_or_else(|| "the round was given up".to_owned());
            return Err(TrainError::LeaseLost { reason });
        };
        result.report.waited_seconds = waited.as_secs_f64();
        if work.trains() {
            self.idle = Instant::now();
        }
        for gradient in result.last {
            drop(sent.try_send(gradient));
        }
        drop(sent);
        let state = result.state;
        let bringing_state = async {
            if !(work.trains() && work.brings_state) {
                return Ok(state);
            }
            let session = self.session.clone();
            let (state, encoded) = blocking(move || {
                let encoded = state.encode(&session.plan().model)?;
                Ok::<_, TrainError>((state, encoded))
            })
            .await??;
            self.transfer.bring(under, Item::State, encoded.into()).await?;
            Ok::<_, TrainError>(state)
        };
        let ((), state) = tokio::try_join!(bringing, bringing_state)?;
        let request = Request::Complete { path, fence: work.fence, report: result.report };
        answered(self.session.call(&request, None, 0, LONG_CALL).await?.0, "complete")?;
        drop(heart);
        if work.trains() {
            self.held.push((path, work.fence, state));
        }
        let excess = self.held.len().saturating_sub(self.session.plan().train.held_paths);
        drop(self.held.drain(..excess));
        self.forget_weights(&work);
        Ok(())
    }

    /// What a lease of a path begins with.
    fn path_weights(
        &self,
        path: PathId,
        weights: &[UnitWeights],
        state: &mut PathState,
        begins: bool,
    ) -> Result<PathWeights, TrainError> {
        let lacks = |unit: Unit| TrainError::ManifestLacks { what: format!("weights of {unit}") };
        let globals: Vec<Global<'_>> = weights
            .iter()
            .map(|weights| {
                let (_, values) = self.weights.get(&weights.unit).ok_or_else(|| lacks(weights.unit))?;
                let UnitWeights { unit, received, share, .. } = *weights;
                Ok::<_, TrainError>(Global { unit, values, received, share })
            })
            .collect::<Result<_, _>>()?;
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
            self.fetch_weights(&stretch.weights).await?;
            let begins = stretch.from == work.phase_step;
            let weights = self.path_weights(work.path, &stretch.weights, &mut state, begins)?;
            let (plan, device) = (self.session.plan().clone(), self.options.device.clone());
            let (path, phase_step, to, sends) =
                (work.path, work.phase_step, stretch.to, stretch.sends.clone());
            let (data, own_watch, before) = (data.clone(), watch.clone(), state);
            let again = blocking(move || {
                let round =
                    Round { device: &device, plan: &plan, path, data: &data, phase_step, to, sends: &sends };
                train_round(round, weights, before, &own_watch, drop)
            });
            tokio::pin!(again);
            let result = tokio::select! {
                result = &mut again => result??,
                () = self.cancel.cancelled() => {
                    watch.cancel();
                    again.await??;
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
