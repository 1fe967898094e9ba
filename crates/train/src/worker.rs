//! A worker: asks for a path, trains it for a round, brings what came out, and asks again.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dipaco_model::{ModuleWeights, level_specs};
use dipaco_net::{Client, JoinToken};
use dipaco_shards::TokenFile;
use dipaco_store::{ObjectRef, ShardRecord};
use dipaco_topology::{ModuleId, PathId, Topology};
use tokio_util::sync::CancellationToken;

use crate::device::TrainDevice;
use crate::path_state::PathState;
use crate::protocol::{Item, Request, Response, SHARD_PIECE_BYTES, Work};
use crate::round::{PathData, Round, RoundResult, RoundWatch, open_shard, train_round};
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
    /// Rounds of paths that were trained and counted.
    pub rounds: u64,
    /// Rounds of paths whose lease was lost.
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
    let mut worker = Worker {
        options,
        session,
        topology,
        cancel,
        modules: BTreeMap::new(),
        state: None,
        data: None,
        summary: WorkerSummary::default(),
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
    cancel: CancellationToken,
    /// The modules of the last lease by their object: those that did not change are not fetched again.
    modules: BTreeMap<ModuleId, (ObjectRef, ModuleWeights)>,
    /// The state of the last path, and the object that it is equal to.
    state: Option<(PathId, ObjectRef, PathState)>,
    /// The shard of the last path, with its content hash.
    data: Option<(PathId, String, Arc<PathData>)>,
    summary: WorkerSummary,
}

/// How a lease ended.
enum Outcome {
    Counted,
    Lost(String),
}

impl Worker {
    async fn run(&mut self) -> Result<(), TrainError> {
        loop {
            let held = self.state.iter().map(|&(path, ..)| path).collect();
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
            let trains = work.inner_steps > 0;
            match self.carry_out(work).await {
                Ok(Outcome::Counted) => self.summary.rounds += u64::from(trains),
                Ok(Outcome::Lost(reason)) => {
                    tracing::warn!(%path, reason, "the lease is lost");
                    self.summary.lost += 1;
                    self.state = None;
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
        let modules = match self.fetch_modules(&work).await? {
            Ok(modules) => modules,
            Err(reason) => return Ok(Outcome::Lost(reason)),
        };
        let state = match self.fetch_state(&work).await? {
            Ok(state) => state,
            Err(reason) => return Ok(Outcome::Lost(reason)),
        };
        let data = match self.data(&work).await? {
            Ok(data) => data,
            Err(reason) => return Ok(Outcome::Lost(reason)),
        };
        let (plan, topology) = (self.session.plan().clone(), self.topology.clone());
        let device = self.options.device.clone();
        let (path, steps, phase_step, own_watch) =
            (work.path, work.inner_steps, work.phase_step, watch.clone());
        let training = blocking(move || {
            let round = Round {
                device: &device,
                plan: &plan,
                topology: &topology,
                path,
                modules: &modules,
                data: &data,
                phase_step,
                inner_steps: steps,
            };
            train_round(round, state, &own_watch)
        });
        tokio::pin!(training);
        let result = tokio::select! {
            result = &mut training => result??,
            () = self.cancel.cancelled() => {
                watch.cancel();
                training.await??;
                return Err(TrainError::Cancelled);
            }
        };
        if let Some(reason) = heart.stop().await {
            return Ok(Outcome::Lost(reason));
        }
        match result {
            Some(result) => self.bring(&work, result).await,
            None => Ok(Outcome::Lost("the round was given up".to_owned())),
        }
    }

    /// Brings the results of a lease and completes it.
    async fn bring(&mut self, work: &Work, result: RoundResult) -> Result<Outcome, TrainError> {
        let (path, round, fence) = (work.path, work.round, work.fence);
        let heart =
            Heart::start(self.session.client(), work, Arc::new(RoundWatch::finished(work.inner_steps)));
        let mut items = Vec::new();
        let mut state = None;
        if work.inner_steps > 0 {
            for (&(module, _), gradient) in work.modules.iter().zip(&result.outer_gradients) {
                let encoded = dipaco_codec::encode(&gradient.values, self.session.plan().compression)
                    .map_err(|why| TrainError::OuterGradient { module, path, why })?;
                items.push((Item::OuterGradient(module), encoded.into()));
            }
            let encoded = bytes::Bytes::from(result.state.encode(&self.session.plan().model)?);
            let object = ObjectRef::of(dipaco_store::names::path_state(path, round, fence.0), &encoded);
            items.push((Item::State, encoded));
            state = Some((path, object, result.state));
        }
        for (item, payload) in items {
            let request = Request::Submit { path, round, fence, item };
            let (answer, _) = self.session.call(&request, Some(payload), 0, LONG_CALL).await?;
            match answer {
                Response::Done => {}
                Response::Lost { reason } => return Ok(Outcome::Lost(reason)),
                Response::Refused { reason } => return Err(TrainError::Refused { reason }),
                _ => return Err(TrainError::UnexpectedAnswer { request: "submit" }),
            }
        }
        let request = Request::Complete { path, round, fence, report: result.report };
        let (answer, _) = self.session.call(&request, None, 0, LONG_CALL).await?;
        drop(heart);
        match answer {
            Response::Done => {
                self.state = state;
                Ok(Outcome::Counted)
            }
            Response::Lost { reason } => Ok(Outcome::Lost(reason)),
            Response::Refused { reason } => Err(TrainError::Refused { reason }),
            _ => Err(TrainError::UnexpectedAnswer { request: "complete" }),
        }
    }

    /// The modules of a lease, fetched only when they changed since the last one.
    async fn fetch_modules(&mut self, work: &Work) -> Result<Result<Vec<ModuleWeights>, String>, TrainError> {
        let mut modules = BTreeMap::new();
        let mut weights = Vec::with_capacity(work.modules.len());
        for (module, object) in &work.modules {
            let held = self.modules.remove(module).filter(|(held, _)| held.hash == object.hash);
            let (object, module_weights) = match held {
                Some(held) => held,
                None => {
                    let bytes = match self.fetch(object).await? {
                        Ok(bytes) => bytes,
                        Err(reason) => return Ok(Err(reason)),
                    };
                    let level = usize::from(module.level);
                    let specs: Arc<[_]> =
                        level_specs(&self.session.plan().model, &self.topology, level).into();
                    (object.clone(), module_files::decode(&object.name, &bytes, specs)?)
                }
            };
            weights.push(module_weights.clone());
            modules.insert(*module, (object, module_weights));
        }
        self.modules = modules;
        Ok(Ok(weights))
    }

    async fn fetch_state(&mut self, work: &Work) -> Result<Result<PathState, String>, TrainError> {
        let model = &self.session.plan().model;
        let Some(object) = &work.state else {
            let parameters = dipaco_model::parameters(&dipaco_model::path_specs(model));
            return Ok(Ok(PathState::start(parameters)));
        };
        if let Some((_, held, state)) = self.state.take()
            && held.hash == object.hash
        {
            return Ok(Ok(state));
        }
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
