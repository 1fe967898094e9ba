//! The coordinator's answers, one function per request. Knows no sockets, so that it can be driven by anything.

use std::future::Future;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dipaco_model::{parameters, path_specs};
use dipaco_optim::squared_norm;
use dipaco_store::{ObjectRef, RunStore, ShardRecord, names};
use dipaco_sync::{Fence, Grant, Guard, Lease, LeaseError, Rounds, Task, Unit, merge_weights, units_of};
use dipaco_telemetry::Event;
use dipaco_topology::{PathId, Topology};
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::Instant;

use crate::TrainError;
use crate::layout::Layout;
use crate::ledger::{Completed, Ledger, shard_tokens};
use crate::module_files::{check_state, decode_gradient};
use crate::path_state::KEPT_PARTS;
use crate::plan::WorkerPlan;
use crate::protocol::{
    Change, Item, PIECE_BYTES, Report, Request, Response, Source, Stretch, UnitWeights, Whole, Work,
};
use crate::revocations::Revocations;
use crate::run_progress::RunProgress;
use crate::synchronizer::blocking;
use crate::uploads::{Complete, Taken, Uploads};

/// The longest time that a question for work stays open.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Everything that answering needs.
pub(crate) struct Desk {
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) store: RunStore,
    pub(crate) plan: WorkerPlan,
    pub(crate) topology: Topology,
    pub(crate) layout: Layout,
    pub(crate) lease: Duration,
    /// The routing folder, in which the shards of all phases are.
    pub(crate) shards: PathBuf,
    /// Results that are being brought.
    pub(crate) uploads: Uploads,
    /// Woken when work may have become available.
    pub(crate) changed: Arc<Notify>,
    /// Woken when there is another deadline to watch: of a lease, or of a grace period.
    pub(crate) deadlines: Arc<Notify>,
    /// The number of the last change of the books that is on the disk.
    pub(crate) written: watch::Receiver<u64>,
    /// Tokens that may not be used any more.
    pub(crate) revocations: Revocations,
    /// Refuses outer gradients that are out of all proportion.
    pub(crate) guard: Mutex<Guard>,
    /// Wakes the synchronizer: something has been contributed, or a grace period is over.
    pub(crate) contributed: Arc<Notify>,
    pub(crate) started: Instant,
    pub(crate) progress: Arc<RunProgress>,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Guest {
    /// The name that leases are given to.
    pub(crate) worker: String,
    /// Tells a process from its successor under the same name.
    pub(crate) instance: u64,
    /// The name in its token.
    pub(crate) token: String,
}

type Answer = (Response, Option<Bytes>);

fn refused(reason: impl Into<String>) -> Answer {
    (Response::Refused { reason: reason.into() }, None)
}

fn outdated(object: &ObjectRef) -> Answer {
    let reason = format!("{} is not current any more; drop the work and ask for a new lease", object.name);
    (Response::Lost { reason }, None)
}

impl Desk {
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The largest payload, in bytes, that a request may bring.
    pub(crate) fn payload_limit(&self, request: &Request) -> u64 {
        match request {
            Request::Submit { path, item, whole, .. } if whole.bytes <= self.item_limit(*path, *item) => {
                whole.bytes.min(PIECE_BYTES)
            }
            _ => 0,
        }
    }

    /// The largest length of an item in bytes; 0 when the path has none like it.
    fn item_limit(&self, path: PathId, item: Item) -> u64 {
        match item {
            Item::OuterGradient { unit, .. } => {
                let values = self.values(path, unit).unwrap_or(0) as u64;
                let bytes = dipaco_codec::encoded_len(values, self.plan.outer.compression);
                if values == 0 { 0 } else { bytes.unwrap_or(0) }
            }
            Item::State => {
                let specs = path_specs(&self.plan.model);
                let fragments = self.topology.levels() * self.plan.sync.fragments as usize;
                // Two moments and what else a path keeps of its fragments, of four bytes a value, and a safetensors header
                // of well under 512 bytes a tensor.
                let tensors = 2 * specs.len() + KEPT_PARTS * fragments;
                (2 + KEPT_PARTS as u64) * (parameters(&specs) as u64 * 4) + tensors as u64 * 512 + 4096
            }
        }
    }

    /// How many values a fragment has; `None` when the path does not go through it.
    fn values(&self, path: PathId, unit: Unit) -> Option<usize> {
        let through = path.0 < self.topology.paths() && self.topology.goes_through(path, unit.module);
        let fragment = self.layout.fragment(unit.module.level, unit.fragment).ok()?;
        through.then(|| fragment.values())
    }

    /// Answers one request.
    ///
    /// # Errors
    /// Only for what ends the coordinator: the store or the event file can't be written.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        guest: &Guest,
        request: Request,
        payload: Option<Bytes>,
    ) -> Result<Answer, TrainError> {
        match request {
            Request::Hello { .. } => Ok(refused("this connection has said hello before")),
            Request::Lease { held, wait_ms } => {
                self.lease(guest, &held, Duration::from_millis(wait_ms)).await
            }
            Request::Follow { path, fence, wait_ms } => {
                self.follow(guest, path, fence, Duration::from_millis(wait_ms)).await
            }
            Request::Heartbeat { path, fence, step, loss } => {
                let renewed = self.ledger.lock().await.heartbeat(self.now(), path, fence);
                Ok(match renewed {
                    Ok(()) => {
                        self.progress.running(path, fence, step.min(self.plan.train.inner_steps), loss);
                        (Response::Done, None)
                    }
                    Err(error) => (Response::Lost { reason: error.to_string() }, None),
                })
            }
            Request::Fetch { source: Source::Object(object), offset } => {
                self.object_piece(&object, offset).await
            }
            Request::Fetch { source: Source::Shard { path, hash }, offset } => {
                self.shard_piece(path, &hash, offset).await
            }
            Request::Check { object } => self.check(&object).await,
            Request::Submit { item: Item::OuterGradient { unit, .. }, path, .. }
                if self.values(path, unit).is_none() =>
            {
                Ok(refused(format!(
                    "path {path} does not go through fragment {} of module {}",
                    unit.fragment, unit.module
                )))
            }
            Request::Submit { path, item, whole, .. } if whole.bytes > self.item_limit(path, item) => {
                let (name, limit) = (item.name(), self.item_limit(path, item));
                Ok(refused(format!("{name} has at most {limit} bytes here, not {}", whole.bytes)))
            }
            Request::Submit { path, fence, item, whole, offset } => {
                let piece = payload.unwrap_or_default();
                self.to_its_end(move |desk| async move {
                    desk.take((path, fence), item, whole, offset, piece).await.map(|answer| (answer, None))
                })
                .await
            }
            Request::Complete { path, fence, report } => {
                let guest = guest.clone();
                self.to_its_end(move |desk| async move { desk.complete(&guest, path, fence, report).await })
                    .await
            }
            Request::Release { path, fence } => {
                self.to_its_end(move |desk| async move { desk.release(path, fence).await }).await?;
                Ok((Response::Done, None))
            }
        }
    }

    /// Runs what changes the books and the store to its end, even when the one who asked is gone: a connection that
    /// breaks in the middle must not leave the books ahead of the disk.
    async fn to_its_end<T, F>(self: &Arc<Self>, change: impl FnOnce(Arc<Self>) -> F) -> Result<T, TrainError>
    where
        F: Future<Output = Result<T, TrainError>> + Send + 'static,
        T: Send + 'static,
    {
        tokio::spawn(change(self.clone())).await.map_err(|source| TrainError::Thread { source })?
    }

    /// Waits until everything that is in the books now is on the disk.
    pub(crate) async fn on_disk(&self) -> Result<(), TrainError> {
        let changes = self.ledger.lock().await.changes();
        // It ends when the coordinator does.
        let written = self.written.clone().wait_for(|written| *written >= changes).await.map(|_| ());
        written.map_err(|_| TrainError::Cancelled)
    }

    /// Why a token may not be used, if that is so.
    pub(crate) async fn revoked(&self, token: &str) -> Result<Option<String>, TrainError> {
        let revocations = self.revocations.clone();
        let names = blocking(move || revocations.names()).await??;
        Ok(names.contains(token).then(|| {
            format!("the token {token:?} has been revoked: ask whoever leads the run for another one")
        }))
    }

    /// Ends the leases of a worker.
    pub(crate) async fn expel(&self, guest: &Guest) -> Result<(), TrainError> {
        let leases: Vec<_> = {
            let ledger = self.ledger.lock().await;
            let own = ledger.rounds().leases().filter(|lease| lease.worker == guest.worker);
            own.map(|lease| (lease.path, lease.fence)).collect()
        };
        for (path, fence) in leases {
            self.release(path, fence).await?;
        }
        Ok(())
    }

    /// Ends a lease unfinished, if it is out.
    pub(crate) async fn release(&self, path: PathId, fence: Fence) -> Result<(), TrainError> {
        if self.ledger.lock().await.release(path, fence).await? {
            self.drop_uploads().await;
            self.progress.lost(path, fence);
            self.changed.notify_waiters();
        }
        Ok(())
    }

    /// Welcomes a process. Leases of an earlier process under its name are free again: that process is gone.
    pub(crate) async fn welcome(&self, guest: &Guest, returning: bool) -> Result<Answer, TrainError> {
        if !returning {
            self.expel(guest).await?;
            self.progress.event(Event::WorkerJoined { worker: guest.worker.clone() })?;
        }
        let run = self.ledger.lock().await.run().to_owned();
        let plan = serde_json::to_string(&self.plan).map_err(|source| TrainError::Json { source })?;
        Ok((Response::Welcome { run, plan }, None))
    }

    async fn lease(&self, guest: &Guest, held: &[PathId], wait: Duration) -> Result<Answer, TrainError> {
        // Of all that are woken only those look closer for which there may be something.
        let worth = |rounds: &Rounds| rounds.has_work() || rounds.finished();
        let ask = |ledger: &mut Ledger, now| Ok(ledger.grant(now, &guest.worker, held));
        self.offer(guest, wait, worth, ask).await
    }

    /// The lease that comes after one that is out, as soon as what it begins with is there.
    async fn follow(
        &self,
        guest: &Guest,
        path: PathId,
        fence: Fence,
        wait: Duration,
    ) -> Result<Answer, TrainError> {
        self.offer(guest, wait, |_| true, |ledger, now| ledger.follow(now, path, fence)).await
    }

    /// Keeps a question for work open until `ask` has a lease for it; after a change it is asked again when that is worth
    /// it.
    async fn offer(
        &self,
        guest: &Guest,
        wait: Duration,
        worth: impl Fn(&Rounds) -> bool,
        ask: impl Fn(&mut Ledger, Duration) -> Result<Grant, LeaseError>,
    ) -> Result<Answer, TrainError> {
        let deadline = Instant::now() + wait.min(LONGEST_WAIT);
        let mut first = true;
        loop {
            // Registered before the books are read, so that a change in between is not missed.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let last = Instant::now() >= deadline;
            {
                let mut ledger = self.ledger.lock().await;
                if std::mem::take(&mut first) || last || worth(ledger.rounds()) {
                    match ask(&mut ledger, self.now()) {
                        Ok(Grant::Lease(lease)) => {
                            self.deadlines.notify_one();
                            return self.leased(guest, &ledger, &lease);
                        }
                        Ok(Grant::Finished) => return Ok((Response::Finished, None)),
                        Ok(Grant::Wait(reason)) if last => {
                            return Ok((Response::Wait { reason: reason.to_string() }, None));
                        }
                        Ok(Grant::Wait(_)) => {}
                        Err(error) => return Ok((Response::Lost { reason: error.to_string() }, None)),
                    }
                }
            }
            // At the deadline it is asked once more, for a reason that holds then.
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    fn leased(&self, guest: &Guest, ledger: &Ledger, lease: &Lease) -> Result<Answer, TrainError> {
        let work = self.work(ledger, lease)?;
        if lease.task == Task::Train {
            self.progress.leased(lease.from)?;
        }
        let Lease { path, from, to, fence, .. } = lease;
        tracing::debug!(%path, from, to, %fence, worker = guest.worker, "lease");
        Ok((Response::Work(Box::new(work)), None))
    }

    fn work(&self, ledger: &Ledger, lease: &Lease) -> Result<Work, TrainError> {
        let training = ledger.training()?;
        let lacks = |what: String| TrainError::ManifestLacks { what };
        let path = training.path(lease.path).ok_or_else(|| lacks(format!("path {}", lease.path)))?;
        let units = units_of(&self.topology, self.plan.sync.fragments, lease.path);
        let shards = shard_tokens(training);
        let shares = units.iter().map(|&unit| self.share(&shards, unit, lease.path));
        let shares = shares.collect::<Result<Vec<_>, _>>()?;
        let weights = |versions: &[u32], received: &[bool], with_changes: bool| {
            let of = |(((&unit, &share), &version), &received): (((&Unit, &f32), &u32), &bool)| {
                let fragment = training.fragment(unit.module, unit.fragment);
                let object = fragment.and_then(|fragment| fragment.weights_at(version));
                let object = object.ok_or_else(|| lacks(format!("version {version} of {unit}")))?.clone();
                let changes = fragment.into_iter().flat_map(|fragment| &fragment.changes);
                let changes = changes
                    .filter(|change| with_changes && change.version <= version)
                    .map(|change| Change { from: change.from.clone(), object: change.object.clone() })
                    .collect();
                Ok::<_, TrainError>(UnitWeights { unit, object, changes, received, share })
            };
            units.iter().zip(&shares).zip(versions).zip(received).map(of).collect::<Result<Vec<_>, _>>()
        };
        let mut tail = Vec::with_capacity(path.tail.len());
        for stretch in &path.tail {
            tail.push(Stretch {
                from: stretch.from,
                to: stretch.to,
                weights: weights(&stretch.versions, &stretch.received, false)?,
                sends: ledger.rounds().sends(lease.path, stretch.from, stretch.to),
            });
        }
        let now = ledger.stretch(lease)?;
        Ok(Work {
            path: lease.path,
            fence: lease.fence,
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
            from: lease.from,
            to: lease.to,
            phase_step: training.phase_begin_step(),
            weights: weights(&now.versions, &now.received, true)?,
            sends: lease.sends.clone(),
            state: path.state.clone(),
            tail,
            made_by: path.fence.map(Fence),
            brings_state: ledger.needs_state(lease)?,
            shard: self.shard(ledger, lease.path)?.clone(),
        })
    }

    /// A path's factor in the merged outer gradient of a unit: its weight times what the mean is rescaled by.
    fn share(&self, shards: &[u64], unit: Unit, path: PathId) -> Result<f32, TrainError> {
        let tokens = |path: PathId| (path, shards.get(path.index()).copied().unwrap_or(0));
        let sizes: Vec<_> = self.topology.paths_through(unit.module).map(tokens).collect();
        let weights = merge_weights(self.plan.outer.weighting, &sizes)?;
        let own = weights.iter().find(|(other, _)| *other == path).map_or(0.0, |&(_, weight)| weight);
        Ok(own * self.plan.outer.rescale.factor(sizes.len()))
    }

    fn shard<'a>(&self, ledger: &'a Ledger, path: PathId) -> Result<&'a ShardRecord, TrainError> {
        let shards = &ledger.training()?.shards;
        shards
            .get(path.index())
            .ok_or_else(|| TrainError::ManifestLacks { what: format!("the shard of path {path}") })
    }

    /// Sends a piece of an object that a worker may ask for: weights that some path needs and path states, nothing else
    /// of the store.
    async fn object_piece(&self, object: &ObjectRef, offset: u64) -> Result<Answer, TrainError> {
        if !self.is_current(object).await? {
            return Ok(outdated(object));
        }
        if offset > object.bytes || !offset.is_multiple_of(PIECE_BYTES) {
            return Ok(refused(format!("no piece of {} begins at byte {offset}", object.name)));
        }
        let end = object.bytes.min(offset.saturating_add(PIECE_BYTES));
        match self.store.get_range(object, offset..end).await {
            Ok(piece) => Ok((Response::Piece { total: object.bytes }, Some(piece))),
            // Superseded and deleted since it was looked up.
            Err(_) if !self.is_current(object).await? => Ok(outdated(object)),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads an object that did not arrive as it should.
    async fn check(&self, object: &ObjectRef) -> Result<Answer, TrainError> {
        if !self.is_current(object).await? {
            return Ok(outdated(object));
        }
        match self.store.get(object).await {
            Ok(_) => Ok((Response::Done, None)),
            Err(_) if !self.is_current(object).await? => Ok(outdated(object)),
            Err(error) => Err(error.into()),
        }
    }

    async fn is_current(&self, object: &ObjectRef) -> Result<bool, TrainError> {
        let ledger = self.ledger.lock().await;
        let training = ledger.training()?;
        let fragments = training.modules.iter().flat_map(|module| &module.fragments);
        let mut weights = fragments.flat_map(|fragment| {
            let kept = fragment.kept.iter().map(|kept| &kept.weights);
            kept.chain([&fragment.weights]).chain(fragment.changes.iter().map(|change| &change.object))
        });
        Ok(weights.any(|weights| weights == object)
            || training.paths.iter().any(|record| record.state.as_ref() == Some(object)))
    }

    async fn shard_piece(&self, path: PathId, hash: &str, offset: u64) -> Result<Answer, TrainError> {
        let file = match self.shard(&*self.ledger.lock().await, path) {
            Ok(shard) if shard.hash != hash => {
                let reason = format!("the shard of path {path} is that of an earlier phase");
                return Ok((Response::Lost { reason }, None));
            }
            Ok(shard) => self.shards.join(&shard.file),
            Err(error) => return Ok(refused(error.to_string())),
        };
        let name = file.clone();
        let read = blocking(move || {
            let mut source = std::fs::File::open(&file)?;
            let total = source.metadata()?.len();
            source.seek(SeekFrom::Start(offset))?;
            let mut piece = Vec::new();
            source.take(PIECE_BYTES).read_to_end(&mut piece)?;
            Ok::<_, std::io::Error>((total, piece))
        })
        .await?;
        Ok(match read {
            Ok((total, piece)) => (Response::Piece { total }, Some(piece.into())),
            Err(source) => refused(format!(
                "the coordinator can't read {}: {source}; run `dipaco route assign` again",
                name.display()
            )),
        })
    }

    /// Takes a piece of a result.
    async fn take(
        self: &Arc<Self>,
        (path, fence): (PathId, Fence),
        item: Item,
        whole: Whole,
        offset: u64,
        piece: Bytes,
    ) -> Result<Response, TrainError> {
        match self.ledger.lock().await.check(path, fence) {
            Err(error) => return Ok(Response::Lost { reason: error.to_string() }),
            Ok(lease) if lease.task != Task::Train => {
                let reason = "this lease is to measure; it brings nothing but its report".to_owned();
                return Ok(Response::Refused { reason });
            }
            Ok(lease) => {
                if let Item::OuterGradient { unit, number, .. } = item
                    && !lease.sends.iter().any(|send| (send.unit, send.number) == (unit, number))
                {
                    let reason = LeaseError::NotAsked { path, fence, unit, number }.to_string();
                    return Ok(Response::Refused { reason });
                }
            }
        }
        match self.uploads.take((path, fence), item, whole.clone(), offset, piece).await? {
            Taken::Answer(answer) => Ok(answer),
            Taken::Whole(mut complete) => {
                let answer = self.submit(path, fence, item, whole, &mut complete).await?;
                complete.answer(answer.clone());
                // The lease may have ended meanwhile.
                self.drop_uploads().await;
                Ok(answer)
            }
        }
    }

    /// Forgets what leases have brought in part that are over.
    async fn drop_uploads(&self) {
        let ledger = self.ledger.lock().await;
        self.uploads.retain(|path, fence| ledger.check(path, fence).is_ok());
    }

    /// Checks one result and puts it into the store. What is sent at the end of a lease counts only with
    /// [`complete`](Self::complete).
    async fn submit(
        self: &Arc<Self>,
        path: PathId,
        fence: Fence,
        item: Item,
        whole: Whole,
        complete: &mut Complete,
    ) -> Result<Response, TrainError> {
        let memory = self.uploads.memory(complete).await;
        let payload = complete.content().await?;
        let step = match self.ledger.lock().await.check(path, fence) {
            Ok(lease) => lease.to,
            Err(error) => return Ok(Response::Lost { reason: error.to_string() }),
        };
        let name = match item {
            Item::OuterGradient { unit: Unit { module, fragment }, number, .. } => {
                names::outer_gradient(module, fragment, number, path, fence.0)
            }
            Item::State => names::path_state(path, step, fence.0),
        };
        let (desk, bytes) = (self.clone(), payload.clone());
        let checked = blocking(move || {
            let object = ObjectRef::of(name, &bytes);
            let norm = desk.look_through(path, item, &whole, &object, &bytes)?;
            Ok::<_, TrainError>((object, norm))
        })
        .await?;
        let in_vain = |why: &dyn std::fmt::Display| {
            tracing::warn!(%path, step, %why, "a result is refused");
            let reason = format!("what path {path} brought up to step {step}: {why}");
            Ok(Response::Refused { reason })
        };
        let object = match checked {
            Ok((object, norm)) => {
                if let Some((unit, norm)) = norm
                    && let Err(why) = self.guard.lock().await.look(unit, norm)
                {
                    return in_vain(&why);
                }
                object
            }
            Err(error) => return in_vain(&error),
        };
        self.store.put_referenced(&object, payload).await?;
        drop(memory);
        let staged = self.ledger.lock().await.stage(path, fence, item, object).await?;
        self.contributed.notify_one();
        self.on_disk().await?;
        Ok(match staged {
            Ok(()) => Response::Done,
            Err(error @ LeaseError::Lost { .. }) => Response::Lost { reason: error.to_string() },
            Err(error) => Response::Refused { reason: error.to_string() },
        })
    }

    /// Whether a result is what it is said to be; returns the norm of an outer gradient.
    fn look_through(
        &self,
        path: PathId,
        item: Item,
        whole: &Whole,
        object: &ObjectRef,
        bytes: &[u8],
    ) -> Result<Option<(Unit, f64)>, TrainError> {
        if object.hash != whole.hash {
            let (expected, found) = (whole.hash.clone(), object.hash.clone());
            return Err(TrainError::OtherContent { expected, found });
        }
        match item {
            Item::OuterGradient { unit, .. } => {
                let fragment = self.layout.fragment(unit.module.level, unit.fragment)?;
                let values = decode_gradient(path, unit.module, &fragment.specs, bytes)?;
                Ok(Some((unit, squared_norm(&values).sqrt())))
            }
            Item::State => {
                check_state(&self.plan.model, &self.topology, &self.layout, bytes)?;
                Ok(None)
            }
        }
    }

    /// The round of a path that has taken so many inner steps.
    fn round(&self, step: u64) -> u64 {
        step / self.plan.train.inner_steps.max(1)
    }

    async fn complete(
        &self,
        guest: &Guest,
        path: PathId,
        fence: Fence,
        report: Report,
    ) -> Result<Answer, TrainError> {
        let completed = self.ledger.lock().await.complete(path, fence, &report)?;
        self.on_disk().await?;
        match completed {
            Completed::Closed => Ok((Response::Lost { reason: "the coordinator stops".to_owned() }, None)),
            Completed::Duplicate => Ok((Response::Done, None)),
            Completed::Lost(error) => {
                let (worker, reason) = (guest.worker.clone(), error.to_string());
                self.progress.event(Event::ResultRefused {
                    path,
                    round: self.round(error.step().unwrap_or(0)),
                    worker,
                    reason: reason.clone(),
                })?;
                Ok((Response::Lost { reason }, None))
            }
            Completed::Incomplete(what) => Ok(refused(format!("{what} is missing"))),
            Completed::Accepted { lease, best } => {
                self.drop_uploads().await;
                let round = self.round(lease.from);
                if lease.task == Task::Train {
                    let loss = report.loss.unwrap_or(f64::NAN);
                    self.progress.committed(path, lease.from, lease.to, loss)?;
                    self.progress.spent(report.seconds, report.waited_seconds);
                    self.contributed.notify_one();
                }
                self.progress.event(Event::PathCompleted {
                    path,
                    round,
                    worker: guest.worker.clone(),
                    loss: report.loss.unwrap_or(f64::NAN),
                    heldout_loss: report.held_out_loss,
                    best,
                    seconds: report.seconds,
                    waited_seconds: report.waited_seconds,
                })?;
                tracing::debug!(%path, round, %fence, worker = guest.worker, "committed");
                self.changed.notify_waiters();
                Ok((Response::Done, None))
            }
        }
    }

    /// Begins the next phase of routing with these shards.
    pub(crate) async fn begin_phase(&self, shards: Vec<ShardRecord>) -> Result<(), TrainError> {
        self.ledger.lock().await.begin_phase(shards)?;
        self.on_disk().await?;
        self.changed.notify_waiters();
        Ok(())
    }

    /// Looks after what time has ended: leases, and grace periods of outer steps.
    pub(crate) async fn wake(&self) -> Result<(), TrainError> {
        self.contributed.notify_one();
        self.expire().await
    }

    /// Ends the leases whose time is over.
    async fn expire(&self) -> Result<(), TrainError> {
        let expired = self.ledger.lock().await.expire(self.now()).await?;
        for lease in &expired {
            tracing::warn!(%lease.path, lease.from, lease.worker, "the lease ran out; another worker repeats its work");
            self.progress.lost(lease.path, lease.fence);
            self.progress.event(Event::LeaseExpired {
                path: lease.path,
                round: self.round(lease.from),
                worker: lease.worker.clone(),
                fence: lease.fence.0,
            })?;
        }
        if !expired.is_empty() {
            self.drop_uploads().await;
            self.changed.notify_waiters();
        }
        Ok(())
    }
}
