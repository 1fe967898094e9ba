//! The coordinator's answers, one function per request. Knows no sockets, so that it can be driven by anything.

use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dipaco_store::{ObjectRef, ShardRecord};
use dipaco_sync::{Fence, LeaseError, LeaseTask, Schedule};
use dipaco_telemetry::Event;
use dipaco_topology::PathId;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::TrainError;
use crate::coordinator::ledger::{LeaseCompletion, Ledger};
use crate::coordinator::owners::ModuleOwners;
use crate::coordinator::run_progress::RunProgress;
use crate::host::PieceOutcome;
use crate::host::ResultIntake;
use crate::host::Revocations;
use crate::host::{Answer, Peer, RequestHandler, Role, refused};
use dipaco_protocol::{ContentDigest, FetchSource, LeaseReport, LeaseResult, Request, Response};

mod fetches;
mod leases;
mod outer_steps;

/// The longest time that a question for work stays open.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Everything that answering needs.
pub(crate) struct CoordinatorRequests {
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) intake: Arc<ResultIntake>,
    pub(crate) schedule: Schedule,
    /// Who takes the outer steps of which module.
    pub(crate) owners: Mutex<ModuleOwners>,
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

impl RequestHandler for CoordinatorRequests {
    fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// Welcomes a process. Leases of an earlier process under its name are free again: that process is gone.
    async fn welcome(&self, peer: &Peer, returning: bool) -> Result<Answer, TrainError> {
        if !returning && peer.role == Role::Worker {
            self.expel(peer).await?;
            self.progress.event(Event::WorkerJoined { worker: peer.worker.clone() })?;
        }
        let run = self.ledger().run().to_owned();
        self.intake.welcome(run)
    }

    fn payload_limit(&self, request: &Request) -> u64 {
        self.intake.payload_limit(request)
    }

    async fn answer(
        self: &Arc<Self>,
        peer: &Peer,
        request: Request,
        payload: Option<Bytes>,
    ) -> Result<Answer, TrainError> {
        match request {
            Request::Hello { .. } => Ok(refused("this connection has said hello before")),
            request if request.is_of_a_synchronizer() != (peer.role == Role::Synchronizer) => {
                Ok(refused("this token is not for what is asked: workers and synchronizers have their own"))
            }
            Request::Lease { held, wait_ms } => self.lease(peer, &held, Duration::from_millis(wait_ms)).await,
            Request::Follow { path, fence, wait_ms } => {
                self.follow(peer, path, fence, Duration::from_millis(wait_ms)).await
            }
            Request::Heartbeat { path, fence, step, loss } => {
                let renewed = self.ledger().heartbeat(self.now(), path, fence);
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
            Request::Fetch { source: FetchSource::Object(object), offset } => {
                self.object_piece(&object, offset).await
            }
            Request::Fetch { source: FetchSource::Shard { path, hash }, offset } => {
                self.shard_piece(path, &hash, offset).await
            }
            Request::Check { object } => self.check(&object).await,
            Request::Submit { path, fence, item, whole, offset } => {
                let piece = payload.unwrap_or_default();
                self.to_its_end(move |requests| async move {
                    requests
                        .take((path, fence), item, whole, offset, piece)
                        .await
                        .map(|answer| (answer, None))
                })
                .await
            }
            Request::Complete { path, fence, report } => {
                let peer = peer.clone();
                self.to_its_end(
                    move |requests| async move { requests.complete(&peer, path, fence, report).await },
                )
                .await
            }
            Request::Release => {
                self.release_all(peer);
                Ok((Response::Done, None))
            }
            Request::Orders { modules, address, wait_ms } => {
                let wait = Duration::from_millis(wait_ms).min(LONGEST_WAIT);
                self.give_orders(peer, &modules, &address, wait).await
            }
            Request::Expected { path, fence, item } => Ok(match self.expected(path, fence, item) {
                Ok(_) => (Response::Done, None),
                Err(refused) => (refused, None),
            }),
            Request::Stored { path, fence, item, object } => self
                .to_its_end(move |requests| async move { requests.stage(path, fence, item, object).await })
                .await
                .map(|answer| (answer, None)),
            Request::Stepped(done) => self
                .to_its_end(move |requests| async move { requests.stepped_elsewhere(&done).await })
                .await
                .map(|answer| (answer, None)),
        }
    }

    async fn expel(&self, peer: &Peer) -> Result<(), TrainError> {
        self.take_modules_back(peer, "its token has been revoked");
        self.release_all(peer);
        Ok(())
    }

    async fn left(&self, peer: &Peer, reason: String) -> Result<(), TrainError> {
        match peer.role {
            Role::Worker => self.progress.event(Event::WorkerLeft { worker: peer.worker.clone(), reason }),
            Role::Synchronizer => {
                self.take_modules_back(peer, &reason);
                Ok(())
            }
        }
    }
}

impl CoordinatorRequests {
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The books. Never locked while something is waited for: a thousand workers ask at once.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who takes the outer steps of which module. Never locked while something is waited for.
    pub(crate) fn owners(&self) -> MutexGuard<'_, ModuleOwners> {
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
        let changes = self.ledger().changes();
        // It ends when the coordinator does.
        let written = self.written.clone().wait_for(|written| *written >= changes).await.map(|_| ());
        written.map_err(|_| TrainError::Cancelled)
    }

    /// Ends the leases of a worker unfinished.
    fn release_all(&self, peer: &Peer) {
        let leases: Vec<_> = {
            let ledger = self.ledger();
            let own = ledger.rounds().leases().filter(|lease| lease.worker == peer.worker);
            own.map(|lease| (lease.path, lease.fence)).collect()
        };
        for (path, fence) in leases {
            self.release(path, fence);
        }
    }

    /// Ends a lease unfinished, if it is out.
    pub(crate) fn release(&self, path: PathId, fence: Fence) {
        if self.ledger().release(path, fence) {
            self.drop_uploads();
            self.progress.lost(path, fence);
            self.changed.notify_waiters();
        }
    }

    /// Takes a piece of a result.
    async fn take(
        self: &Arc<Self>,
        (path, fence): (PathId, Fence),
        item: LeaseResult,
        whole: ContentDigest,
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
            PieceOutcome::Answer(answer) => Ok(answer),
            PieceOutcome::Complete(mut complete) => {
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
    pub(crate) fn expected(&self, path: PathId, fence: Fence, item: LeaseResult) -> Result<u64, Response> {
        match self.ledger().check(path, fence) {
            Err(error) => Err(Response::Lost { reason: error.to_string() }),
            Ok(lease) if lease.task != LeaseTask::Train => {
                let reason = "this lease is to measure; it brings nothing but its report".to_owned();
                Err(Response::Refused { reason })
            }
            Ok(lease) => match item {
                LeaseResult::OuterGradient { fragment, number, .. }
                    if !lease.sends.iter().any(|send| (send.fragment, send.number) == (fragment, number)) =>
                {
                    let reason = LeaseError::NotAsked { path, fence, fragment, number }.to_string();
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
        item: LeaseResult,
        object: ObjectRef,
    ) -> Result<Response, TrainError> {
        let staged = self.ledger().stage(path, fence, item, object)?;
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
        let ledger = self.ledger();
        self.intake.uploads.retain(|path, fence| ledger.check(path, fence).is_ok());
    }

    /// The round of a path that has taken so many inner steps.
    fn round(&self, step: u64) -> u64 {
        step / self.intake.plan.train.inner_steps.max(1)
    }

    async fn complete(
        &self,
        peer: &Peer,
        path: PathId,
        fence: Fence,
        report: LeaseReport,
    ) -> Result<Answer, TrainError> {
        let completed = self.ledger().complete(path, fence, &report)?;
        self.on_disk().await?;
        match completed {
            LeaseCompletion::Closed => {
                Ok((Response::Lost { reason: "the coordinator stops".to_owned() }, None))
            }
            LeaseCompletion::Duplicate => Ok((Response::Done, None)),
            LeaseCompletion::Lost(error) => {
                let (worker, reason) = (peer.worker.clone(), error.to_string());
                self.progress.event(Event::ResultRefused {
                    path,
                    round: self.round(error.step().unwrap_or(0)),
                    worker,
                    reason: reason.clone(),
                })?;
                Ok((Response::Lost { reason }, None))
            }
            LeaseCompletion::Incomplete(what) => Ok(refused(format!("{what} is missing"))),
            LeaseCompletion::Accepted { lease, best } => {
                self.drop_uploads();
                let round = self.round(lease.from);
                if lease.task == LeaseTask::Train {
                    let loss = report.loss.unwrap_or(f64::NAN);
                    self.progress.committed(path, lease.from, lease.to, loss)?;
                    self.progress.spent(report.seconds, report.waited_seconds);
                    self.look_at_contributions();
                }
                self.progress.event(Event::PathCompleted {
                    path,
                    round,
                    worker: peer.worker.clone(),
                    loss: report.loss.unwrap_or(f64::NAN),
                    heldout_loss: report.held_out_loss,
                    best,
                    seconds: report.seconds,
                    waited_seconds: report.waited_seconds,
                })?;
                tracing::debug!(%path, round, %fence, worker = peer.worker, "committed");
                self.changed.notify_waiters();
                Ok((Response::Done, None))
            }
        }
    }

    /// Begins the next phase of routing with these shards.
    pub(crate) async fn begin_phase(&self, shards: Vec<ShardRecord>) -> Result<(), TrainError> {
        self.ledger().begin_phase(shards)?;
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
        let expired = self.ledger().expire(self.now());
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
