//! Answers to requests for leases, their renewals, and their ends.

use std::time::Duration;

use dipaco_ledger::{Ledger, OtherNumerics, possible_loss};
use dipaco_sync::{
    Grant, Lease, LeaseClaim, LeaseError, LeaseKey, LeaseRequest, LeaseSecret, LeaseTask, ProcessId, RunState,
};
use dipaco_telemetry::Event;
use dipaco_topology::PathId;
use tokio::time::Instant;

use super::waiting::WaitingRequest;
use super::{CoordinatorRequests, LONGEST_WAIT};
use crate::coordinator::error::CoordinatorError;
use crate::host::{Answer, Peer, refused};
use dipaco_protocol::Response;

/// A secret that nobody can guess, from the system's random numbers.
fn lease_secret() -> LeaseSecret {
    LeaseSecret::new(rand::random())
}

/// What a worker that waits is told of the leases of other processes with its token and name, such as of its killed
/// predecessor; nothing if there are none.
fn of_namesakes(state: &RunState, process: &ProcessId) -> String {
    let ProcessId { token, name, .. } = process;
    match state.leases_of(token, Some(name)).filter(|lease| lease.worker != *process).count() {
        0 => String::new(),
        leases => format!(
            "; {leases} of the leases belong to another process with this token that is also named {name:?}, and are free \
             when its connection ends: a few seconds after it was killed"
        ),
    }
}

/// The reason why the device of a peer may not train now, since another one has contributed; `None` if it may. Whoever asks
/// after the end of the run is told of the end.
fn other_numerics(ledger: &Ledger, peer: &Peer) -> Option<OtherNumerics> {
    if ledger.state().finished() { None } else { ledger.check_numerics(&peer.numerics).err() }
}

/// A worker's account of the inner steps of its lease so far.
pub(super) struct StepsTaken {
    pub(super) step: u64,
    /// Inner steps of earlier leases that the worker repeated first.
    pub(super) repeated: u64,
    /// Mean training loss in nats per token.
    pub(super) loss: Option<f32>,
}

impl CoordinatorRequests {
    /// Offers a lease to a worker that holds the states of the paths `held`.
    pub(super) async fn lease(
        &self,
        peer: &Peer,
        held: &[PathId],
        wait: Duration,
    ) -> Result<Answer, CoordinatorError> {
        let paths = self.intake.topology.paths();
        if held.iter().any(|path| path.0 >= paths) {
            return Ok(refused(format!("this run has {paths} paths: the request names others")));
        }
        // A worker also names the path in training, and that of its next lease.
        let most = self.intake.plan.train.held_paths.saturating_add(2);
        if held.len() > most {
            let said = held.len();
            return Ok(refused(format!(
                "a worker of this run keeps at most {most} states of paths, and the request names {said}"
            )));
        }
        let worker = peer.process.clone();
        // Many changes wake every waiting worker. Only workers with a possible lease go through the full decision.
        let worth = |state: &RunState| state.has_work(&worker) || state.finished();
        let secret = lease_secret();
        let ask = |ledger: &mut Ledger, now| {
            Ok(ledger.grant(now, &LeaseRequest { worker: &worker, held, secret, numerics: &peer.numerics }))
        };
        let waiting = self.waiting.begin(&peer.process, None);
        self.offer(peer, wait, &waiting, worth, ask, |reason| Response::Unfit { reason }).await
    }

    /// Offers the lease that follows a lease that is out, as soon as its weights are there.
    pub(super) async fn follow(
        &self,
        peer: &Peer,
        lease: LeaseKey,
        wait: Duration,
    ) -> Result<Answer, CoordinatorError> {
        let (claim, secret) = (peer.claim(lease), lease_secret());
        let waiting = self.waiting.begin(&peer.process, Some(lease));
        let ask = |ledger: &mut Ledger, now| ledger.follow(now, &claim, secret);
        self.offer(peer, wait, &waiting, |_| true, ask, |reason| Response::Lost { reason }).await
    }

    /// Keeps a request open until `ask` grants a lease, or a newer request takes its place. After a change `ask` is called
    /// again if `worth` is true. `unfit` makes the answer to a worker whose device may not train now: it is told that it may
    /// ask again at the end of the wait, and anything else at once.
    async fn offer(
        &self,
        peer: &Peer,
        wait: Duration,
        waiting: &WaitingRequest<'_>,
        worth: impl Fn(&RunState) -> bool,
        ask: impl Fn(&mut Ledger, Duration) -> Result<Grant, LeaseError>,
        unfit: impl Fn(String) -> Response,
    ) -> Result<Answer, CoordinatorError> {
        // A worker that waits for as long as a lease without a word counts as gone, and its paths go to others.
        let silence = Duration::from_secs(self.intake.plan.train.lease_seconds);
        let deadline = Instant::now() + wait.min(LONGEST_WAIT).min(silence / 2);
        let mut first = true;
        loop {
            // Registered before the ledger is read, so that no change in between is missed.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let last = Instant::now() >= deadline;
            let other = {
                let mut ledger = self.ledger();
                let other = other_numerics(&ledger, peer);
                if other.is_none() && (std::mem::take(&mut first) || last || worth(ledger.state())) {
                    let now = self.look_at_clock(&mut ledger);
                    match ask(&mut ledger, now) {
                        Ok(Grant::Lease(lease)) => {
                            self.deadlines.notify_one();
                            return self.grant_answer(peer, &ledger, &lease);
                        }
                        Ok(Grant::Finished) => return Ok((Response::Finished, None)),
                        Ok(Grant::Wait(reason)) if last => {
                            let reason = format!("{reason}{}", of_namesakes(ledger.state(), &peer.process));
                            return Ok((Response::Wait { reason }, None));
                        }
                        Ok(Grant::Wait(_)) => {}
                        Err(error) => return Ok((Response::Lost { reason: error.to_string() }, None)),
                    }
                }
                other
            };
            if let Some(other) = other {
                // No result of its leases would count.
                let ProcessId { token, name, .. } = &peer.process;
                self.release_all(token, Some(name), |worker| *worker == peer.process);
                let answer = unfit(other.to_string());
                if last || !matches!(answer, Response::Unfit { .. }) {
                    return Ok((answer, None));
                }
            }
            // At the deadline `ask` is called once more, for the reason that holds then.
            tokio::select! {
                biased;
                // Not granted a lease any more: the worker may not hear of it.
                () = waiting.superseded() => {
                    let reason = "this process has asked again since".to_owned();
                    return Ok((Response::Wait { reason }, None));
                }
                () = changed => {}
                () = waiting.changed() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// The answer with a granted lease.
    fn grant_answer(&self, peer: &Peer, ledger: &Ledger, lease: &Lease) -> Result<Answer, CoordinatorError> {
        let granted = ledger.granted_lease(lease)?;
        if lease.task == LeaseTask::Train {
            self.progress.leased(lease.from);
        }
        let Lease { path, from, to, fence, .. } = lease;
        tracing::debug!(%path, from, to, %fence, worker = peer.process.name, "lease");
        if let Some(other) = &lease.hands_over
            && self.reception.may_log(&peer.process)
        {
            tracing::info!(%path, from = peer.process.name, to = other.name, "the path changes hands");
        }
        Ok((Response::Lease(Box::new(granted)), None))
    }

    /// Renews a lease and notes its progress.
    pub(super) fn heartbeat(&self, claim: &LeaseClaim, taken: StepsTaken) -> Answer {
        let StepsTaken { step, repeated, loss } = taken;
        let LeaseKey { path, fence, .. } = claim.key;
        let renewed = self.ledger().heartbeat(self.now(), claim, step, repeated);
        match renewed {
            Ok(()) => {
                // A worker may report any number; the bar must not run ahead of the lease.
                let step = step.min(self.intake.plan.train.inner_steps);
                self.progress.running(path, fence, step, possible_loss(loss));
                (Response::Done, None)
            }
            Err(error) => (Response::Lost { reason: error.to_string() }, None),
        }
    }

    /// Ends the leases of the selected processes with a token, and with a name if one is given, unfinished.
    pub(super) fn release_all(&self, token: &str, name: Option<&str>, selected: impl Fn(&ProcessId) -> bool) {
        let released = self.change(|ledger| ledger.release(token, name, selected));
        if !released.is_empty() {
            self.note_released(&released);
        }
    }

    /// Ends the leases of a process that does not come back, unfinished. No path waits for it any more.
    pub(super) fn part_with(&self, process: &ProcessId) {
        let released = self.change(|ledger| ledger.part_with(process));
        self.note_released(&released);
    }

    /// Forgets the progress and the uploads of leases that have ended, and wakes the workers that wait.
    fn note_released(&self, released: &[Lease]) {
        for lease in released {
            self.progress.lost(lease.path);
            self.drop_ended_uploads(&lease.worker, lease.path, lease.fence);
        }
        self.changed.notify_waiters();
    }

    /// Wakes the requests that the end of a worker's lease may answer. Most workers complete a lease while no path is free,
    /// and thousands of others may wait.
    pub(super) fn wake_after_lease(&self, worker: &ProcessId) {
        let everybody = {
            let ledger = self.ledger();
            let state = ledger.state();
            state.has_free_path() || state.finished() || state.at_boundary()
        };
        if everybody {
            self.changed.notify_waiters();
        } else {
            // It may follow the lease that is current now. Outer steps wake the other requests of this kind.
            self.waiting.wake(worker);
        }
    }

    /// Time of the next event without a message: of a lease, a grace period, or an outer step of a synchronizer.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.ledger().next_deadline(self.standstill)
    }

    /// Ends leases and grace periods of outer steps whose time is over.
    pub(crate) fn on_deadline(&self) {
        self.expire_leases();
        // Not before: the call above also passes grace periods that have just ended, and no deadline is left for them.
        self.notify_synchronizers();
        let before = self.now().checked_sub(self.standstill);
        let overdue = before.map(|before| self.ledger().overdue(before)).unwrap_or_default();
        for synchronizer in overdue {
            self.take_modules_back(&synchronizer, "it has not taken an outer step in time");
        }
    }

    /// Ends the leases whose deadline has passed.
    fn expire_leases(&self) {
        let expired = self.change(|ledger| ledger.expire(self.now()));
        for lease in &expired {
            tracing::warn!(%lease.path, lease.from, worker = lease.worker.name, "a lease expired; another worker trains the path again from its start");
            self.progress.lost(lease.path);
            self.drop_ended_uploads(&lease.worker, lease.path, lease.fence);
            self.progress.event(Event::LeaseExpired {
                path: lease.path,
                round: self.round(lease.from),
                worker: lease.worker.name.clone(),
                fence: lease.fence.0,
            });
        }
        if !expired.is_empty() {
            self.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
