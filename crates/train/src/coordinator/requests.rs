//! The coordinator's answers to requests, without sockets.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dipaco_ledger::{Ledger, LedgerError};
use dipaco_net::NetError;
use dipaco_store::ShardRecord;
use dipaco_sync::{Fence, ProcessId};
use dipaco_telemetry::Event;
use dipaco_topology::PathId;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::blocking::joined;
use crate::coordinator::clock_looks::ClockLooks;
use crate::coordinator::error::CoordinatorError;
use crate::coordinator::run_progress::{RunProgress, RunReach};
use crate::coordinator::written_changes::WrittenChanges;
use crate::host::{
    Admission, AdmittedUpload, Answer, LinkIssuer, OTHER_ROLE, Peer, Reception, Registration, RequestHandler,
    ResultIntake, ResultReceiver, Revocations, Role, UploadedPiece, refused,
};
use dipaco_protocol::{FetchSource, Request, Response};

mod fetches;
mod leases;
mod object_checks;
mod outer_steps;
mod results;
#[cfg(test)]
pub(super) mod test_support;
mod waiting;

use leases::StepsTaken;
pub(crate) use object_checks::ObjectChecks;
use outer_steps::OrdersAsked;
pub(crate) use waiting::WaitingRequests;

/// Longest time for which a request for a lease stays open.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Makes a new token for a role and a name, as text without addresses.
pub type RenewToken = Arc<dyn Fn(&str, &str) -> Result<String, NetError> + Send + Sync>;

/// Everything that the answers need.
pub(crate) struct CoordinatorRequests {
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) intake: Arc<ResultIntake>,
    /// Makes links to objects of the store.
    pub(crate) links: LinkIssuer,
    /// Checks objects that arrived damaged.
    pub(crate) checks: ObjectChecks,
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
    /// The requests that wait for their change of the ledger to be on the disk.
    pub(crate) written: Arc<WrittenChanges>,
    /// Tokens that are no longer valid.
    pub(crate) revocations: Revocations,
    pub(crate) reception: Arc<Reception>,
    /// The requests for leases that wait.
    pub(crate) waiting: WaitingRequests,
    /// Renews the tokens of connected peers.
    pub(crate) renew: Option<RenewToken>,
    /// Counts events that may make an outer step due, or that may give it another owner: contributions, ended grace periods,
    /// paths that are passed over, changed owners of modules.
    pub(crate) contributed: watch::Sender<u64>,
    /// Start of the coordinator. The times of leases are relative to it.
    pub(crate) started: Instant,
    /// Shows when the coordinator did not run.
    pub(crate) looks: ClockLooks,
    pub(crate) progress: Arc<RunProgress>,
}

impl RequestHandler for CoordinatorRequests {
    fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// Ends the waits of synchronizers for orders: their answers name the revoked tokens. Forgets a fingerprint that a revoked
    /// token has set.
    fn revocations_changed(&self) {
        self.notify_synchronizers();
        self.forget_numerics();
    }

    /// A device with another fingerprint than the configuration names never may train. Where a contribution has set the
    /// fingerprint, such a device joins and waits: its token may be revoked, whoever owns the other one.
    fn refuses_device(&self, peer: &Peer) -> Option<String> {
        if peer.role != Role::Worker {
            return None;
        }
        let ledger = self.ledger();
        let waits = match ledger.check_numerics(&peer.numerics) {
            Err(other) if ledger.names_numerics() => return Some(other.to_string()),
            Err(other) => Some(other),
            Ok(()) => None,
        };
        let first = ledger.numerics().filter(|first| *first != peer.numerics).map(str::to_owned);
        drop(ledger);
        if let Some(first) = first
            && self.reception.may_log(&peer.process)
        {
            let (worker, numerics) = (&peer.process.name, &peer.numerics);
            let (waits, set_by) = (waits.is_some(), waits.and_then(|other| other.set_by));
            tracing::warn!(
                worker,
                numerics,
                first,
                set_by,
                waits,
                "this worker computes other bits than the first that contributed"
            );
        }
        None
    }

    fn is_broken(&self) -> bool {
        self.ledger.is_poisoned()
    }

    /// Welcomes a process. Releases the leases of the processes that it succeeds.
    async fn welcome(&self, peer: &Peer, registration: &Registration) -> Result<Answer, CoordinatorError> {
        for gone in &registration.gone {
            self.part_with(gone);
        }
        if !registration.returning && peer.role == Role::Worker {
            self.progress.event_of_peer(Event::WorkerJoined {
                worker: peer.process.name.clone(),
                numerics: peer.numerics.clone(),
            });
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
            Request::Fetch { source: FetchSource::Shard { path, hash, file }, offset } => {
                self.shard_piece(path, &hash, file, offset).await
            }
            Request::Link { object } => Ok(self.object_link(&object).await),
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
            Request::Diverged { lease, step } => {
                let claim = peer.claim(lease);
                self.run_detached(move |requests| async move { requests.diverged(&claim, step).await }).await
            }
            Request::Release => {
                let ProcessId { token, name, .. } = &peer.process;
                self.release_all(token, Some(name), |worker| *worker == peer.process);
                Ok((Response::Done, None))
            }
            Request::Orders { modules, address, revoked, uploads, wait_ms } => {
                let wait = Duration::from_millis(wait_ms).min(LONGEST_WAIT);
                let asked = OrdersAsked { modules: &modules, address: &address, revoked, uploads: &uploads };
                self.give_orders(peer, asked, wait).await
            }
            Request::Expected { claim, item, digest } => {
                let piece = UploadedPiece { claim, item, digest, offset: 0 };
                Ok(match self.admit(&piece).await? {
                    Admission::Expected(AdmittedUpload { to, .. }) => (Response::Expected { to }, None),
                    Admission::Rejected(response) => (response, None),
                })
            }
            Request::Stored { claim, item, to, digest, norm } => self
                .run_detached(move |requests| async move {
                    requests.record_remote_result(&claim, item, to, digest, norm).await
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
        self.take_modules_back(&peer.process, "its token has been revoked");
        self.release_all(&peer.process.token, None, |_| true);
        // Again: a result of it may have begun to count before the revocation.
        self.forget_numerics();
        Ok(())
    }

    async fn left(&self, peer: &Peer, reason: String, succeeded: bool) -> Result<(), CoordinatorError> {
        match peer.role {
            // The worker is still here, as another process.
            Role::Worker if succeeded => self.part_with(&peer.process),
            Role::Worker => {
                self.progress.event_of_peer(Event::WorkerLeft { worker: peer.process.name.clone(), reason });
            }
            Role::Synchronizer => self.take_modules_back(&peer.process, &reason),
        }
        Ok(())
    }
}

impl CoordinatorRequests {
    /// A new token for a peer, of the role and the name in its certificate.
    fn renew_token(&self, peer: &Peer) -> Answer {
        let Some(renew) = &self.renew else { return refused("this coordinator renews no tokens") };
        match renew(peer.role.name(), &peer.process.token) {
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

    /// Makes a change whose failure ends the coordinator. The ledger may be half changed then and is not written any
    /// more: the manifest writer ends with the failure, even if nobody waits for the change.
    pub(crate) fn try_change<T>(
        &self,
        change: impl FnOnce(&mut Ledger) -> Result<T, LedgerError>,
    ) -> Result<T, CoordinatorError> {
        self.change(|ledger| change(ledger).map_err(|failure| self.written.fail(failure.into())))
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
        self.written.wait_for(changes).await
    }

    /// Forgets the fingerprint that a revoked token has set, and wakes the workers that wait for it.
    fn forget_numerics(&self) {
        // A list that nobody could read yet ends the coordinator at its next look.
        let Ok(revoked) = self.revocations.names() else { return };
        if let Some(token) = self.change(|ledger| ledger.forget_numerics(&revoked)) {
            tracing::warn!(
                token,
                "a revoked token had set the fingerprint of the run: the next contribution sets it again"
            );
            self.changed.notify_waiters();
        }
    }

    /// Wakes the processes that take outer steps.
    pub(crate) fn notify_synchronizers(&self) {
        self.contributed.send_modify(|count| *count += 1);
    }

    /// Shows how far the paths are, and tells of the rounds that are complete. Each change that may move paths on is followed
    /// by this: also an outer step or a quarantine, because paths that nobody trains are passed over.
    pub(crate) fn note_progress(&self) {
        let reached = RunReach::of(&self.ledger());
        self.progress.moved_on(reached);
    }

    /// Drops the incomplete uploads of a lease that has ended, and of earlier leases of its worker on the path.
    fn drop_ended_uploads(&self, worker: &ProcessId, path: PathId, fence: Fence) {
        self.intake.uploads.drop_lease(worker, path, fence);
    }

    /// The round of a path that has taken `step` inner steps.
    fn round(&self, step: u64) -> u64 {
        step / self.intake.plan.train.inner_steps.max(1)
    }

    /// Begins the next phase of routing with these shards.
    pub(crate) async fn begin_phase(&self, shards: Vec<ShardRecord>) -> Result<(), CoordinatorError> {
        self.try_change(|ledger| ledger.begin_phase(shards))?;
        self.on_disk().await?;
        self.note_progress();
        self.changed.notify_waiters();
        // No outer step waits for the paths that are passed over from here on.
        self.notify_synchronizers();
        Ok(())
    }
}
