//! The coordinator's answers, one function per request. Knows no sockets, so that it can be driven by anything.

use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dipaco_store::{ObjectRef, ShardRecord};
use dipaco_sync::{Fence, LeaseError, Schedule, Task};
use dipaco_telemetry::Event;
use dipaco_topology::PathId;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::TrainError;
use crate::intake::Intake;
use crate::ledger::{Completed, Ledger};
use crate::owners::Owners;
use crate::protocol::{Item, Report, Request, Response, Source, Whole};
use crate::reception::{Answer, Guest, Host, Role, refused};
use crate::revocations::Revocations;
use crate::run_progress::RunProgress;
use crate::uploads::Taken;

mod fetches;
mod leases;
mod outer_steps;

/// The longest time that a question for work stays open.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Everything that answering needs.
pub(crate) struct Desk {
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) intake: Arc<Intake>,
    pub(crate) schedule: Schedule,
    /// Who takes the outer steps of which module.
    pub(crate) owners: Mutex<Owners>,
    pub(crate) lease: Duration,
    /// The routing folder, in which the shards of all phases are.
    pub(crate) shards: PathBuf,
    /// Woken when work may have become available.
    pub(crate) changed: Arc<Notify>,
    /// Woken when there is another deadline to watch: of a lease, or of a grace period.
    pub(crate) deadlines: Arc<Notify>,
    /// The number of the last change of the books that is on the disk.
    pub(crate) written: watch::Receiver<u64>,
    /// Tokens that may not be used any more.
    pub(crate) revocations: Revocations,
    /// Counts what synchronizers have to look at: contributions, grace periods that are over, modules that changed hands.
    pub(crate) contributed: watch::Sender<u64>,
    pub(crate) started: Instant,
    pub(crate) progress: Arc<RunProgress>,
}

impl Host for Desk {
    fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// Welcomes a process. Leases of an earlier process under its name are free again: that process is gone.
    async fn welcome(&self, guest: &Guest, returning: bool) -> Result<Answer, TrainError> {
        if !returning && guest.role == Role::Worker {
            self.expel(guest).await?;
            self.progress.event(Event::WorkerJoined { worker: guest.worker.clone() })?;
        }
        let run = self.books().run().to_owned();
        self.intake.welcome(run)
    }

    fn payload_limit(&self, request: &Request) -> u64 {
        self.intake.payload_limit(request)
    }

    async fn answer(
        self: &Arc<Self>,
        guest: &Guest,
        request: Request,
        payload: Option<Bytes>,
    ) -> Result<Answer, TrainError> {
        match request {
            Request::Hello { .. } => Ok(refused("this connection has said hello before")),
            request if request.is_of_a_synchronizer() != (guest.role == Role::Synchronizer) => {
                Ok(refused("this token is not for what is asked: workers and synchronizers have their own"))
            }
            Request::Lease { held, wait_ms } => {
                self.lease(guest, &held, Duration::from_millis(wait_ms)).await
            }
            Request::Follow { path, fence, wait_ms } => {
                self.follow(guest, path, fence, Duration::from_millis(wait_ms)).await
            }
            Request::Heartbeat { path, fence, step, loss } => {
                let renewed = self.books().heartbeat(self.now(), path, fence);
                Ok(match renewed {
                    Ok(()) => {
                        self.progress.running(
                            path,
                            fence,
                            step.min(self.intake.plan.train.inner_steps),
                            loss,
                        );
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
            Request::Release => {
                self.release_all(guest);
                Ok((Response::Done, None))
            }
            Request::Orders { modules, address, wait_ms } => {
                let wait = Duration::from_millis(wait_ms).min(LONGEST_WAIT);
                self.give_orders(guest, &modules, &address, wait).await
            }
            Request::Expected { path, fence, item } => Ok(match self.expected(path, fence, item) {
                Ok(_) => (Response::Done, None),
                Err(refused) => (refused, None),
            }),
            Request::Stored { path, fence, item, object } => self
                .to_its_end(move |desk| async move { desk.stage(path, fence, item, object).await })
                .await
                .map(|answer| (answer, None)),
            Request::Stepped(done) => self
                .to_its_end(move |desk| async move { desk.stepped_elsewhere(&done).await })
                .await
                .map(|answer| (answer, None)),
        }
    }

    async fn expel(&self, guest: &Guest) -> Result<(), TrainError> {
        self.take_modules_back(guest, "its token has been revoked");
        self.release_all(guest);
        Ok(())
    }

    async fn left(&self, guest: &Guest, reason: String) -> Result<(), TrainError> {
        match guest.role {
            Role::Worker => self.progress.event(Event::WorkerLeft { worker: guest.worker.clone(), reason }),
            Role::Synchronizer => {
                self.take_modules_back(guest, &reason);
                Ok(())
            }
        }
    }
}

impl Desk {
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The books. Never locked while something is waited for: a thousand workers ask at once.
    pub(crate) fn books(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who takes the outer steps of which module. Never locked while something is waited for.
    pub(crate) fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
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
        let changes = self.books().changes();
        // It ends when the coordinator does.
        let written = self.written.clone().wait_for(|written| *written >= changes).await.map(|_| ());
        written.map_err(|_| TrainError::Cancelled)
    }

    /// Ends the leases of a worker unfinished.
    fn release_all(&self, guest: &Guest) {
        let leases: Vec<_> = {
            let ledger = self.books();
            let own = ledger.rounds().leases().filter(|lease| lease.worker == guest.worker);
            own.map(|lease| (lease.path, lease.fence)).collect()
        };
        for (path, fence) in leases {
            self.release(path, fence);
        }
    }

    /// Ends a lease unfinished, if it is out.
    pub(crate) fn release(&self, path: PathId, fence: Fence) {
        if self.books().release(path, fence) {
            self.drop_uploads();
            self.progress.lost(path, fence);
            self.changed.notify_waiters();
        }
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
        if let Some(refused) = self.intake.objection(path, item, &whole) {
            return Ok(refused);
        }
        let step = match self.expected(path, fence, item) {
            Ok(step) => step,
            Err(refused) => return Ok(refused),
        };
        match self.intake.uploads.take((path, fence), item, whole.clone(), offset, piece).await? {
            Taken::Answer(answer) => Ok(answer),
            Taken::Whole(mut complete) => {
                let name = item.object_name(path, fence, step);
                let answer = match self.intake.keep(name, (path, item), whole, &complete).await? {
                    Ok(object) => self.stage(path, fence, item, object).await?,
                    Err(refused) => refused,
                };
                complete.answer(answer.clone());
                // The lease may have ended meanwhile.
                self.drop_uploads();
                Ok(answer)
            }
        }
    }

    /// Whether a lease is out that asks for an item; returns the step that it leads to.
    pub(crate) fn expected(&self, path: PathId, fence: Fence, item: Item) -> Result<u64, Response> {
        match self.books().check(path, fence) {
            Err(error) => Err(Response::Lost { reason: error.to_string() }),
            Ok(lease) if lease.task != Task::Train => {
                let reason = "this lease is to measure; it brings nothing but its report".to_owned();
                Err(Response::Refused { reason })
            }
            Ok(lease) => match item {
                Item::OuterGradient { unit, number, .. }
                    if !lease.sends.iter().any(|send| (send.unit, send.number) == (unit, number)) =>
                {
                    let reason = LeaseError::NotAsked { path, fence, unit, number }.to_string();
                    Err(Response::Refused { reason })
                }
                _ => Ok(lease.to),
            },
        }
    }

    /// Notes that an item is in the store. What is sent at the end of a lease counts only with
    /// [`complete`](Self::complete).
    pub(crate) async fn stage(
        &self,
        path: PathId,
        fence: Fence,
        item: Item,
        object: ObjectRef,
    ) -> Result<Response, TrainError> {
        let staged = self.books().stage(path, fence, item, object)?;
        self.look_at_contributions();
        self.on_disk().await?;
        Ok(match staged {
            Ok(()) => Response::Done,
            Err(error @ LeaseError::Lost { .. }) => Response::Lost { reason: error.to_string() },
            Err(error) => Response::Refused { reason: error.to_string() },
        })
    }

    /// Wakes whoever takes outer steps.
    pub(crate) fn look_at_contributions(&self) {
        self.contributed.send_modify(|count| *count += 1);
    }

    /// Forgets what leases have brought in part that are over.
    fn drop_uploads(&self) {
        let ledger = self.books();
        self.intake.uploads.retain(|path, fence| ledger.check(path, fence).is_ok());
    }

    /// The round of a path that has taken so many inner steps.
    fn round(&self, step: u64) -> u64 {
        step / self.intake.plan.train.inner_steps.max(1)
    }

    async fn complete(
        &self,
        guest: &Guest,
        path: PathId,
        fence: Fence,
        report: Report,
    ) -> Result<Answer, TrainError> {
        let completed = self.books().complete(path, fence, &report)?;
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
                self.drop_uploads();
                let round = self.round(lease.from);
                if lease.task == Task::Train {
                    let loss = report.loss.unwrap_or(f64::NAN);
                    self.progress.committed(path, lease.from, lease.to, loss)?;
                    self.progress.spent(report.seconds, report.waited_seconds);
                    self.look_at_contributions();
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
        self.books().begin_phase(shards)?;
        self.on_disk().await?;
        self.changed.notify_waiters();
        Ok(())
    }

    /// Looks after what time has ended: leases, and grace periods of outer steps.
    pub(crate) fn wake(&self) -> Result<(), TrainError> {
        self.look_at_contributions();
        self.expire()
    }

    /// Ends the leases whose time is over.
    fn expire(&self) -> Result<(), TrainError> {
        let expired = self.books().expire(self.now());
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
            self.drop_uploads();
            self.changed.notify_waiters();
        }
        Ok(())
    }
}
