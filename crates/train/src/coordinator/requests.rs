//! The coordinator's answers to requests, without sockets.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dipaco_config::Numerics;
use dipaco_ledger::{LeaseCompletion, Ledger, Recording, ResultError, StoredResult};
use dipaco_net::NetError;
use dipaco_store::{ObjectRef, ShardRecord};
use dipaco_sync::{LeaseClaim, LeaseError, LeaseKey, LeaseTask, ProcessId};
use dipaco_telemetry::Event;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::blocking::joined;
use crate::coordinator::error::CoordinatorError;
use crate::coordinator::run_progress::RunProgress;
use crate::host::{
    Admission, Answer, Peer, RequestHandler, ResultIntake, ResultReceiver, Revocations, Role, UploadedPiece,
    refused,
};
use dipaco_protocol::{ContentDigest, FetchSource, LeaseReport, LeaseResult, Request, Response};

mod fetches;
mod leases;
mod outer_steps;

/// Longest time for which a request for a lease stays open.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Makes a new token for a role and a name, as text without addresses.
pub type RenewToken = Arc<dyn Fn(&str, &str) -> Result<String, NetError> + Send + Sync>;

/// Everything that the answers need.
pub(crate) struct CoordinatorRequests {
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) intake: Arc<ResultIntake>,
    /// Wakes the manifest writer.
    pub(crate) to_write: Arc<Notify>,
    /// Time after which a synchronizer loses its modules without an outer step.
    pub(crate) standstill: Duration,
    /// The routing folder, which holds the shards of all phases.
    pub(crate) shards: PathBuf,
    /// Notified when a lease may have become available.
    pub(crate) changed: Arc<Notify>,
    /// Notified when there is a new deadline to watch: of a lease, or of a grace period.
    pub(crate) deadlines: Arc<Notify>,
    /// Number of the last change of the ledger that is on the disk.
    pub(crate) written: watch::Receiver<u64>,
    /// Tokens that are no longer valid.
    pub(crate) revocations: Revocations,
    /// Renews the tokens of connected peers.
    pub(crate) renew: Option<RenewToken>,
    /// Counts events that may make an outer step due: contributions, ended grace periods, changed owners of modules.
    pub(crate) contributed: watch::Sender<u64>,
    /// Start of the coordinator. The times of leases are relative to it.
    pub(crate) started: Instant,
    pub(crate) progress: Arc<RunProgress>,
}

/// A worker's account of the inner steps of its lease so far.
struct StepsTaken {
    step: u64,
    /// Inner steps of earlier leases that the worker repeated first.
    repeated: u64,
    /// Mean training loss in nats per token.
    loss: Option<f32>,
}

/// The refusal of a request that a token's role does not allow.
const OTHER_ROLE: &str =
    "this token does not allow the request: workers and synchronizers have their own tokens";

impl ResultReceiver for CoordinatorRequests {
    type Error = CoordinatorError;

    fn intake(&self) -> &Arc<ResultIntake> {
        &self.intake
    }

    async fn admit(&self, peer: &Peer, piece: &UploadedPiece) -> Result<Admission, CoordinatorError> {
        if peer.role == Role::Synchronizer {
            return Ok(Admission::Rejected(Response::Refused { reason: OTHER_ROLE.to_owned() }));
        }
        Ok(self.admit_result(&piece.claim, piece.item, &piece.digest))
    }

    async fn record(
        &self,
        piece: &UploadedPiece,
        stored: StoredResult,
    ) -> Result<Response, CoordinatorError> {
        let response = self.record_result(&piece.claim, piece.item, stored).await?;
        // The lease may have ended after `admit`, and its uploads were dropped before this one was added.
        self.drop_ended_uploads();
        Ok(response)
    }
}

impl RequestHandler for CoordinatorRequests {
    fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    fn takes_any_numerics(&self) -> bool {
        self.intake.plan.train.numerics == Numerics::Any
    }

    fn is_broken(&self) -> bool {
        self.ledger.is_poisoned()
    }

    /// Welcomes a process. Releases the leases of an earlier process under its token and name, because that process is
    /// gone.
    async fn welcome(&self, peer: &Peer, returning: bool) -> Result<Answer, CoordinatorError> {
        if !returning && peer.role == Role::Worker {
            let own = peer.process();
            self.release_all(|worker| own.replaces(worker));
            self.progress.event_of_peer(Event::WorkerJoined {
                worker: peer.worker.clone(),
                numerics: peer.numerics.clone(),
            })?;
        }
        let run = self.ledger().run().to_owned();
        Ok(self.intake.welcome(run)?)
    }

    async fn answer(self: &Arc<Self>, peer: &Peer, request: Request) -> Result<Answer, CoordinatorError> {
        match request {
            Request::Hello { .. } => Ok(refused("this connection has said hello before")),
            Request::Renew => Ok(self.renew_token(peer)),
            request if request.is_of_a_synchronizer() != (peer.role == Role::Synchronizer) => {
                Ok(refused(OTHER_ROLE))
            }
            Request::Lease { held, wait_ms } => self.lease(peer, &held, Duration::from_millis(wait_ms)).await,
            Request::Follow { lease, wait_ms } => {
                self.follow(peer, lease, Duration::from_millis(wait_ms)).await
            }
            Request::Heartbeat { lease, step, repeated, loss } => {
                Ok(self.heartbeat(&peer.claim(lease), StepsTaken { step, repeated, loss }))
            }
            Request::Fetch { source: FetchSource::Object(object), offset } => {
                self.object_piece(&object, offset).await
            }
            Request::Fetch { source: FetchSource::Shard { path, hash }, offset } => {
                self.shard_piece(path, &hash, offset).await
            }
            Request::Check { object } => self.check_object(&object).await,
            // Host code receives pieces and calls `ResultReceiver`.
            Request::Submit { .. } => {
                Err(CoordinatorError::internal("a piece of a result is not a request to answer"))
            }
            Request::Complete { lease, report } => {
                let claim = peer.claim(lease);
                self.run_detached(
                    move |requests| async move { requests.complete_lease(&claim, report).await },
                )
                .await
            }
            Request::Release => {
                let own = peer.process();
                self.release_all(|worker| *worker == own);
                Ok((Response::Done, None))
            }
            Request::Orders { modules, address, wait_ms } => {
                let wait = Duration::from_millis(wait_ms).min(LONGEST_WAIT);
                self.give_orders(peer, &modules, &address, wait).await
            }
            Request::Expected { claim, item, digest } => Ok(match self.admit_result(&claim, item, &digest) {
                Admission::Expected { .. } => (Response::Done, None),
                Admission::Rejected(response) => (response, None),
            }),
            Request::Stored { claim, item, object, norm } => self
                .run_detached(move |requests| async move {
                    requests.record_remote_result(&claim, item, StoredResult { object, norm }).await
                })
                .await
                .map(|answer| (answer, None)),
            Request::Stepped(done) => self
                .run_detached(move |requests| async move { requests.record_remote_step(&done).await })
                .await
                .map(|answer| (answer, None)),
        }
    }

    async fn expel(&self, peer: &Peer) -> Result<(), CoordinatorError> {
        self.take_modules_back(&peer.process(), "its token has been revoked");
        self.release_all(|worker| worker.token == peer.token);
        Ok(())
    }

    async fn left(&self, peer: &Peer, reason: String) -> Result<(), CoordinatorError> {
        match peer.role {
            Role::Worker => {
                Ok(self.progress.event_of_peer(Event::WorkerLeft { worker: peer.worker.clone(), reason })?)
            }
            Role::Synchronizer => {
                self.take_modules_back(&peer.process(), &reason);
                Ok(())
            }
        }
    }
}

impl CoordinatorRequests {
    /// A new token for a peer, of the role and the name in its certificate.
    fn renew_token(&self, peer: &Peer) -> Answer {
        let Some(renew) = &self.renew else { return refused("this coordinator renews no tokens") };
        match renew(peer.role.name(), &peer.token) {
            Ok(token) => (Response::Renewed { token }, None),
            Err(error) => refused(format!("the token can't be renewed: {error}")),
        }
    }

    /// Time since the start of the coordinator.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The ledger. Never locked across a wait: a thousand workers ask at once.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the ledger, and wakes the manifest writer.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let changed = change(&mut self.ledger());
        self.to_write.notify_one();
        changed
    }

    /// Runs a change of ledger and store to its end even if the connection of its request breaks. A change that stopped
    /// in the middle would leave the ledger ahead of the disk.
    async fn run_detached<T, F>(
        self: &Arc<Self>,
        change: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, CoordinatorError>
    where
        F: Future<Output = Result<T, CoordinatorError>> + Send + 'static,
        T: Send + 'static,
    {
        joined(tokio::spawn(change(self.clone())).await)?
    }

    /// Waits until all changes of the ledger up to now are on the disk.
    pub(crate) async fn on_disk(&self) -> Result<(), CoordinatorError> {
        let changes = self.ledger().changes();
        // Fails only when the manifest writer has ended.
        let written = self.written.clone().wait_for(|written| *written >= changes).await.map(|_| ());
        written.map_err(|_| CoordinatorError::Stopped)
    }

    /// Ends the leases of the selected processes unfinished.
    fn release_all(&self, selected: impl Fn(&ProcessId) -> bool) {
        let released = self.change(|ledger| ledger.release(selected));
        for lease in &released {
            self.progress.lost(lease.path, lease.fence);
        }
        if !released.is_empty() {
            self.drop_ended_uploads();
            self.changed.notify_waiters();
        }
    }

    /// Time of the next event without a message: of a lease, a grace period, or an outer step of a synchronizer.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.ledger().next_deadline(self.standstill)
    }

    /// Renews a lease and notes its progress.
    fn heartbeat(&self, claim: &LeaseClaim, taken: StepsTaken) -> Answer {
        let StepsTaken { step, repeated, loss } = taken;
        let LeaseKey { path, fence, .. } = claim.key;
        let renewed = self.ledger().heartbeat(self.now(), claim, step, repeated);
        match renewed {
            Ok(()) => {
                // A worker may report any number; the bar must not run ahead of the lease.
                let step = step.min(self.intake.plan.train.inner_steps);
                self.progress.running(path, fence, step, loss);
                (Response::Done, None)
            }
            Err(error) => (Response::Lost { reason: error.to_string() }, None),
        }
    }

    /// Returns whether a lease is out and asks for a result.
    fn admit_result(&self, claim: &LeaseClaim, item: LeaseResult, digest: &ContentDigest) -> Admission {
        match self.ledger().expects(claim, item, &digest.hash) {
            Ok(to) => Admission::Expected { to },
            Err(error) => Admission::Rejected(refusal(&error)),
        }
    }

    /// Records that a result is in the store, and waits until that is on the disk. A result for the end of a lease counts
    /// only with [`complete_lease`](Self::complete_lease).
    async fn record_result(
        &self,
        claim: &LeaseClaim,
        item: LeaseResult,
        stored: StoredResult,
    ) -> Result<Response, CoordinatorError> {
        let recording = self.change(|ledger| ledger.record_result(claim, item, stored))?;
        self.notify_synchronizers();
        self.on_disk().await?;
        Ok(match recording {
            Recording::Recorded => Response::Done,
            Recording::Rejected(error) => {
                tracing::warn!(path = %claim.key.path, item = item.name(), %error, "a result does not count");
                refusal(&error)
            }
        })
    }

    /// Records a result that a synchronizer has stored.
    async fn record_remote_result(
        &self,
        claim: &LeaseClaim,
        item: LeaseResult,
        stored: StoredResult,
    ) -> Result<Response, CoordinatorError> {
        let ObjectRef { name, hash, bytes } = stored.object.clone();
        let digest = ContentDigest { hash, bytes };
        let named = digest.is_well_formed() && name == item.object_name(claim.key, 0, &digest.hash);
        if !named || item == LeaseResult::State || !stored.norm.is_finite() {
            let reason = format!("{name} is not the object of {} of this lease", item.name());
            return Ok(Response::Refused { reason });
        }
        self.record_result(claim, item, stored).await
    }

    /// Wakes the processes that take outer steps.
    pub(crate) fn notify_synchronizers(&self) {
        self.contributed.send_modify(|count| *count += 1);
    }

    /// Drops the incomplete uploads of leases that are not out any more.
    fn drop_ended_uploads(&self) {
        let ledger = self.ledger();
        self.intake.uploads.retain(|claim| ledger.is_out(claim));
    }

    /// The round of a path that has taken `step` inner steps.
    fn round(&self, step: u64) -> u64 {
        step / self.intake.plan.train.inner_steps.max(1)
    }

    /// Completes a lease: its results count together with its report.
    async fn complete_lease(
        &self,
        claim: &LeaseClaim,
        report: LeaseReport,
    ) -> Result<Answer, CoordinatorError> {
        let LeaseKey { path, fence, .. } = claim.key;
        let worker = &claim.worker.name;
        let completed = self.change(|ledger| ledger.complete_lease(self.now(), claim, &report))?;
        // A duplicate waits too: the write of its first request may still be under way.
        self.on_disk().await?;
        match completed {
            LeaseCompletion::Closed => {
                Ok((Response::Lost { reason: "the coordinator stops".to_owned() }, None))
            }
            LeaseCompletion::Duplicate => Ok((Response::Done, None)),
            LeaseCompletion::Lost(error) => {
                let (worker, reason) = (worker.clone(), error.to_string());
                self.progress.event_of_peer(Event::ResultRefused {
                    path,
                    round: self.round(error.step().unwrap_or(0)),
                    worker,
                    reason: reason.clone(),
                })?;
                Ok((Response::Lost { reason }, None))
            }
            LeaseCompletion::Incomplete(missing) => Ok(refused(format!("{missing} is missing"))),
            LeaseCompletion::Accepted { lease, best } => {
                self.drop_ended_uploads();
                let round = self.round(lease.from);
                if lease.task == LeaseTask::Train {
                    let loss = report.loss.unwrap_or(f64::NAN);
                    self.progress.committed(path, lease.from, lease.to, loss)?;
                    self.progress.add_time(report.seconds, report.waited_seconds);
                    self.notify_synchronizers();
                }
                self.progress.event(Event::PathCompleted {
                    path,
                    round,
                    worker: worker.clone(),
                    loss: report.loss.unwrap_or(f64::NAN),
                    heldout_loss: report.held_out_loss,
                    best,
                    seconds: report.seconds,
                    waited_seconds: report.waited_seconds,
                })?;
                tracing::debug!(%path, round, %fence, worker, "committed");
                self.changed.notify_waiters();
                Ok((Response::Done, None))
            }
        }
    }

    /// Begins the next phase of routing with these shards.
    pub(crate) async fn begin_phase(&self, shards: Vec<ShardRecord>) -> Result<(), CoordinatorError> {
        self.change(|ledger| ledger.begin_phase(shards))?;
        self.on_disk().await?;
        self.changed.notify_waiters();
        Ok(())
    }

    /// Ends leases and grace periods of outer steps whose time is over.
    pub(crate) fn on_deadline(&self) -> Result<(), CoordinatorError> {
        self.notify_synchronizers();
        self.expire_leases()?;
        let before = self.now().checked_sub(self.standstill);
        let overdue = before.map(|before| self.ledger().overdue(before)).unwrap_or_default();
        for synchronizer in overdue {
            self.take_modules_back(&synchronizer, "it has not taken an outer step in time");
        }
        Ok(())
    }

    /// Ends the leases whose deadline has passed.
    fn expire_leases(&self) -> Result<(), CoordinatorError> {
        let expired = self.change(|ledger| ledger.expire(self.now()));
        for lease in &expired {
            tracing::warn!(%lease.path, lease.from, worker = lease.worker.name, "a lease expired; another worker trains the path again from its start");
            self.progress.lost(lease.path, lease.fence);
            self.progress.event(Event::LeaseExpired {
                path: lease.path,
                round: self.round(lease.from),
                worker: lease.worker.name.clone(),
                fence: lease.fence.0,
            })?;
        }
        if !expired.is_empty() {
            self.drop_ended_uploads();
            self.changed.notify_waiters();
        }
        Ok(())
    }
}

/// The answer to the worker of a result that does not count.
fn refusal(error: &ResultError) -> Response {
    let reason = error.to_string();
    match error {
        ResultError::Lease(LeaseError::Lost { .. }) => Response::Lost { reason },
        _ => Response::Refused { reason },
    }
}
