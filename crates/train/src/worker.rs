//! A worker: asks for a path, trains it for a round, brings what came out, and asks again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dipaco_model::ModuleWeights;
use dipaco_net::{Client, JoinToken};
use dipaco_shards::TokenFile;
use dipaco_store::{ObjectRef, ShardRecord};
use dipaco_sync::{Fence, Unit, units_of};
use dipaco_topology::{PathId, Topology};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::device::TrainDevice;
use crate::layout::Layout;
use crate::path_state::PathState;
use crate::path_weights::{Global, PathWeights};
use crate::protocol::{Item, Request, Response, SHARD_PIECE_BYTES, UnitWeights, Work};
use crate::round::{OuterGradient, PathData, Round, RoundResult, RoundWatch, open_shard, train_round};
use crate::session::{FAREWELL, Identity, LONG_CALL, SHORT_CALL, Session};
use crate::synchronizer::blocking;
use crate::{TrainError, module_files};

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
        Ok(session) => session,
        Err(TrainError::Cancelled) => return Ok(WorkerSummary::default()),
        Err(error) => return Err(error),
    };
    let topology = session.plan().topology()?;
    let layout = session.plan().layout(&topology)?;
    let mut worker = Worker {
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
    session: Session,
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

/// How a lease ended.
enum Outcome {
    Counted,
    Lost(String),
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
                Ok(Outcome::Counted) => self.summary.rounds += u64::from(trains),
                Ok(Outcome::Lost(reason)) => {
                    tracing::warn!(%path, reason, "the lease is lost");
                    self.summary.lost += 1;
                }
                Err(error) => {
                    // Best effort on the way out: without it the lease ends by itself at its deadline.
                    let release = Request::Release { path, fence };
                    if let Err(error) =
                        self.session.client().call::<_, Response>(&release, None, 0, FAREWELL).await
                    {
                        tracing::debug!(%error, "the lease could not be given back");
                    }
                    return Err(error);
                }
            }
        }
    }

    async fn carry_out(&mut self, work: Work) -> Result<Outcome, TrainError> {
        // Heartbeats cover the transfers too: on a slow link they may take longer than a lease.
        let watch = Arc::new(RoundWatch::default());
        let heart = Heart::start(self.session.client(), &work, watch.clone());
        let data = match self.data(&work).await? {
            Ok(data) => data,
            Err(reason) => return Ok(Outcome::Lost(reason)),
        };
        let mut state = match self.state(&work, &data, &watch).await? {
            Ok(state) => state,
            Err(reason) => return Ok(Outcome::Lost(reason)),
        };
        if let Err(reason) = self.fetch_weights(&work.weights).await? {
            return Ok(Outcome::Lost(reason));
        }
        let begins = work.from == work.phase_step || !work.trains();
        let weights = self.path_weights(work.path, &work.weights, &mut state, begins)?;
        let (plan, device) = (self.session.plan().clone(), self.options.device.clone());
        let (path, to, phase_step, own_watch) = (work.path, work.to, work.phase_step, watch.clone());
        let sends = work.sends.clone();
        let waited = self.idle.elapsed();
        // Everything that a lease sends early fits: training never waits for the network.
        let (early, mut outgoing) = mpsc::channel(work.sends.len().max(1));
        let training = blocking(move || {
            let round =
                Round { device: &device, plan: &plan, path, data: &data, phase_step, to, sends: &sends };
            // A closed channel means that the lease is lost: the round is cancelled.
            train_round(round, weights, state, &own_watch, |gradient| drop(early.try_send(gradient)))
        });
        tokio::pin!(training);
        let cancel = self.cancel.clone();
        let mut lost = None;
        let result = loop {
            tokio::select! {
                result = &mut training => break result??,
                Some(gradient) = outgoing.recv(), if lost.is_none() => {
                    lost = self.bring_gradient(&work, gradient).await?;
                    if lost.is_some() {
                        watch.cancel();
                    }
                }
                () = cancel.cancelled() => {
                    watch.cancel();
                    training.await??;
                    return Err(TrainError::Cancelled);
                }
            }
        };
        while lost.is_none()
            && let Some(gradient) = outgoing.recv().await
        {
            lost = self.bring_gradient(&work, gradient).await?;
        }
        if let Some(reason) = heart.stop().await.or(lost) {
            return Ok(Outcome::Lost(reason));
        }
        match result {
            Some(mut result) => {
                result.report.waited_seconds = waited.as_secs_f64();
                self.bring(&work, result).await
            }
            None => Ok(Outcome::Lost("the round was given up".to_owned())),
        }
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

    /// Brings an outer gradient; returns why the lease is lost, if it is.
    async fn bring_gradient(
        &mut self,
        work: &Work,
        gradient: OuterGradient,
    ) -> Result<Option<String>, TrainError> {
        let OuterGradient { send, encoded, tokens } = gradient;
        let item = Item::OuterGradient { unit: send.unit, number: send.number, tokens };
        self.bring_item(work, item, encoded.into()).await
    }

    async fn bring_item(
        &mut self,
        work: &Work,
        item: Item,
        payload: bytes::Bytes,
    ) -> Result<Option<String>, TrainError> {
        let request = Request::Submit { path: work.path, fence: work.fence, item };
        let (answer, _) = self.session.call(&request, Some(payload), 0, LONG_CALL).await?;
        match answer {
            Response::Done => Ok(None),
            Response::Lost { reason } => Ok(Some(reason)),
            Response::Refused { reason } => Err(TrainError::Refused { reason }),
            _ => Err(TrainError::UnexpectedAnswer { request: "submit" }),
        }
    }

    /// Brings the results of a lease and completes it.
    async fn bring(&mut self, work: &Work, result: RoundResult) -> Result<Outcome, TrainError> {
        let (path, fence) = (work.path, work.fence);
        let steps = work.to - work.from;
        let heart = Heart::start(self.session.client(), work, Arc::new(RoundWatch::finished(steps)));
        let mut state = None;
        if work.trains() {
            for gradient in result.last {
                if let Some(reason) = self.bring_gradient(work, gradient).await? {
                    return Ok(Outcome::Lost(reason));
                }
            }
            if work.brings_state {
                let encoded = result.state.encode(&self.session.plan().model)?;
                if let Some(reason) = self.bring_item(work, Item::State, encoded.into()).await? {
                    return Ok(Outcome::Lost(reason));
                }
            }
            state = Some((path, fence, result.state));
        }
        let request = Request::Complete { path, fence, report: result.report };
        let (answer, _) = self.session.call(&request, None, 0, LONG_CALL).await?;
        drop(heart);
        match answer {
            Response::Done => {
                self.held.extend(state);
                let excess = self.held.len().saturating_sub(self.session.plan().train.held_paths);
                drop(self.held.drain(..excess));
                self.forget_weights(work);
                Ok(Outcome::Counted)
            }
            Response::Lost { reason } => Ok(Outcome::Lost(reason)),
            Response::Refused { reason } => Err(TrainError::Refused { reason }),
            _ => Err(TrainError::UnexpectedAnswer { request: "complete" }),
        }
    }

    /// Forgets the global weights that neither the lease nor a path that is held uses.
    fn forget_weights(&mut self, work: &Work) {
        let fragments = self.session.plan().sync.fragments;
        let paths = self.held.iter().map(|&(path, ..)| path).chain([work.path]);
        let used: BTreeSet<Unit> = paths.flat_map(|path| units_of(&self.topology, fragments, path)).collect();
        self.weights.retain(|unit, _| used.contains(unit));
    }

    /// Fetches the global weights of a lease, but for those that did not change since an earlier one. The inner error is
    /// why the lease is lost.
    async fn fetch_weights(&mut self, weights: &[UnitWeights]) -> Result<Result<(), String>, TrainError> {
        for weights in weights {
            let UnitWeights { unit, object, .. } = weights;
            if self.weights.get(unit).is_some_and(|(held, _)| held.hash == object.hash) {
                continue;
            }
            match self.change_weights(weights).await? {
                Ok(true) => continue,
                Ok(false) => {}
                Err(reason) => return Ok(Err(reason)),
            }
            let bytes = match self.fetch(object).await? {
                Ok(bytes) => bytes,
                Err(reason) => return Ok(Err(reason)),
            };
            let specs = self.layout.fragment(unit.module.level, unit.fragment)?.specs.clone();
            let module = module_files::decode(&object.name, &bytes, specs)?;
            self.weights.insert(*unit, (object.clone(), module.values));
        }
        Ok(Ok(()))
    }

    /// Adds to weights that are held the changes that lead to others. Returns false when none of them is a change of what
    /// is held; the inner error is why the lease is lost.
    async fn change_weights(&mut self, wanted: &UnitWeights) -> Result<Result<bool, String>, TrainError> {
        let UnitWeights { unit, object, changes, .. } = wanted;
        let Some((held, values)) = self.weights.get(unit) else { return Ok(Ok(false)) };
        let Some(first) = changes.iter().position(|change| change.from == held.hash) else {
            return Ok(Ok(false));
        };
        let mut values = values.clone();
        for change in &changes[first..] {
            let bytes = match self.fetch(&change.object).await? {
                Ok(bytes) => bytes,
                Err(reason) => return Ok(Err(reason)),
            };
            let decoded = dipaco_codec::decode(&bytes, values.len())
                .map_err(|why| TrainError::Broadcast { module: unit.module, why })?;
            values.iter_mut().zip(decoded).for_each(|(value, change)| *value += change);
        }
        let specs = self.layout.fragment(unit.module.level, unit.fragment)?.specs.clone();
        let module = ModuleWeights { specs, values };
        // The sum must be what the store holds, bit for bit.
        if ObjectRef::of(object.name.as_str(), &module_files::encode(&module)?) != *object {
            tracing::warn!(%unit, "the changes do not lead to the weights; these are fetched whole");
            return Ok(Ok(false));
        }
        self.weights.insert(*unit, (object.clone(), module.values));
        Ok(Ok(true))
    }

    /// The state with which a lease begins: what this worker holds, or the last one that was brought, with the leases
    /// since then trained again.
    async fn state(
        &mut self,
        work: &Work,
        data: &Arc<PathData>,
        watch: &Arc<RoundWatch>,
    ) -> Result<Result<PathState, String>, TrainError> {
        let held = self.held.iter().position(|&(path, ..)| path == work.path).map(|at| self.held.remove(at));
        if let Some((_, fence, state)) = held
            && work.made_by == Some(fence)
        {
            return Ok(Ok(state));
        }
        let mut state = match self.fetch_state(work).await? {
            Ok(state) => state,
            Err(reason) => return Ok(Err(reason)),
        };
        if !work.tail.is_empty() {
            let (path, steps) = (work.path, work.from - state.step.min(work.from));
            tracing::info!(%path, steps, "the path is taken over; what came after its last state is trained again");
        }
        for stretch in &work.tail {
            if let Err(reason) = self.fetch_weights(&stretch.weights).await? {
                return Ok(Err(reason));
            }
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
                None => return Ok(Err("the round was given up".to_owned())),
            }
        }
        Ok(Ok(state))
    }

    /// The last state that was brought, or that before the first step.
    async fn fetch_state(&mut self, work: &Work) -> Result<Result<PathState, String>, TrainError> {
        let model = &self.session.plan().model;
        let Some(object) = &work.state else {
            let parameters = dipaco_model::parameters(&dipaco_model::path_specs(model));
            return Ok(Ok(PathState::start(parameters)));
        };
        Ok(match self.fetch(object).await? {
            Ok(bytes) => Ok(PathState::decode(&bytes, &self.session.plan().model)?),
            Err(reason) => Err(reason),
        })
    }

    async fn fetch(&mut self, object: &ObjectRef) -> Result<Result<bytes::Bytes, String>, TrainError> {
        let request = Request::Fetch { object: object.clone() };
        let (answer, payload) = self.session.call(&request, None, object.bytes, LONG_CALL).await?;
        match (answer, payload) {
            (Response::Done, Some(payload)) => {
                if ObjectRef::of(object.name.as_str(), &payload) != *object {
                    return Err(TrainError::OtherObject { name: object.name.clone() });
                }
                Ok(Ok(payload))
            }
            (Response::Lost { reason }, _) => Ok(Err(reason)),
            (Response::Refused { reason }, _) => Err(TrainError::Refused { reason }),
            _ => Err(TrainError::UnexpectedAnswer { request: "fetch" }),
        }
    }

    /// The shard of a lease: the last one, one that lies in the folder of the options, or a fetched one.
    async fn data(&mut self, work: &Work) -> Result<Result<Arc<PathData>, String>, TrainError> {
        if let Some((path, hash, data)) = &self.data
            && *path == work.path
            && *hash == work.shard.hash
        {
            return Ok(Ok(data.clone()));
        }
        let file = match self.shard_file(work.path, &work.shard).await? {
            Ok(file) => file,
            Err(reason) => return Ok(Err(reason)),
        };
        let (path, plan) = (work.path, self.session.plan().clone());
        let data = Arc::new(blocking(move || PathData::open(file, path, &plan)).await??);
        self.data = Some((path, work.shard.hash.clone(), data.clone()));
        Ok(Ok(data))
    }

    /// Opens a shard; the inner error is why the lease is lost.
    async fn shard_file(
        &mut self,
        path: PathId,
        shard: &ShardRecord,
    ) -> Result<Result<Arc<TokenFile>, String>, TrainError> {
        if let Some(folder) = &self.options.shards {
            let file = folder.join(&shard.file);
            if file.exists() {
                return open_shard(&file, &shard.hash).map(Ok);
            }
        }
        // Named by its hash: another run's shard of the same path is another file.
        let file = self.options.cache.join(format!("{}.h5", shard.hash));
        if file.exists() {
            return open_shard(&file, &shard.hash).map(Ok);
        }
        let fetched = match self.fetch_shard(path, &shard.hash, &file).await? {
            Ok(fetched) => fetched,
            Err(reason) => return Ok(Err(reason)),
        };
        // Verified before it gets its name: a wrong one must not stand in the way of the right one.
        let verified = open_shard(fetched.path(), &shard.hash)?;
        blocking(move || verified.verify()).await??;
        fetched.persist(&file).map_err(|error| TrainError::Io {
            action: "name",
            file: file.clone(),
            source: error.error,
        })?;
        open_shard(&file, &shard.hash).map(Ok)
    }

    /// Fetches a shard into a temporary file beside `file`.
    async fn fetch_shard(
        &mut self,
        path: PathId,
        hash: &str,
        file: &FilePath,
    ) -> Result<Result<tempfile::NamedTempFile, String>, TrainError> {
        let io = |action| move |source| TrainError::Io { action, file: file.to_owned(), source };
        std::fs::create_dir_all(&self.options.cache).map_err(io("create the folder of"))?;
        let mut temporary = tempfile::NamedTempFile::new_in(&self.options.cache).map_err(io("create"))?;
        let mut offset = 0;
        loop {
            let request = Request::FetchShard { path, hash: hash.to_owned(), offset };
            let (answer, piece) = self.session.call(&request, None, SHARD_PIECE_BYTES, LONG_CALL).await?;
            let (total, piece) = match (answer, piece) {
                (Response::ShardPiece { total }, Some(piece)) if !piece.is_empty() => (total, piece),
                (Response::Lost { reason }, _) => return Ok(Err(reason)),
                (Response::Refused { reason }, _) => return Err(TrainError::Refused { reason }),
                _ => return Err(TrainError::UnexpectedAnswer { request: "fetch of a shard" }),
            };
            temporary.write_all(&piece).map_err(io("write"))?;
            offset += piece.len() as u64;
            if offset >= total {
                break;
            }
        }
        temporary.as_file().sync_all().map_err(io("write"))?;
        Ok(Ok(temporary))
    }
}

/// Renews a lease in the background while its holder computes or transfers.
struct Heart {
    task: tokio::task::JoinHandle<Option<String>>,
    stop: CancellationToken,
}

impl Heart {
    fn start(client: Arc<Client>, work: &Work, watch: Arc<RoundWatch>) -> Self {
        let stop = CancellationToken::new();
        let (path, fence, stopped) = (work.path, work.fence, stop.clone());
        let beat = Duration::from_millis((work.lease_ms / 4).clamp(100, 1_000));
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(beat);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = stopped.cancelled() => return None,
                }
                let (step, loss) = watch.read();
                let request = Request::Heartbeat { path, fence, step, loss };
                let answer = tokio::select! {
                    answer = client.call::<_, Response>(&request, None, 0, SHORT_CALL) => answer,
                    () = stopped.cancelled() => return None,
                };
                match answer {
                    Ok((Response::Lost { reason }, _)) => {
                        watch.cancel();
                        return Some(reason);
                    }
                    Ok(_) => {}
                    // The next request of the session connects again; until then the round goes on.
                    Err(error) => tracing::debug!(%error, "a heartbeat did not get through"),
                }
            }
        });
        Self { task, stop }
    }

    /// Stops beating; returns why the lease was lost, if it was.
    async fn stop(mut self) -> Option<String> {
        self.stop.cancel();
        (&mut self.task).await.unwrap_or(None)
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
