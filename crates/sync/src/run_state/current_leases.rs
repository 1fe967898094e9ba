//! Current leases: renewal, checks and ends.

use std::time::Duration;

use dipaco_topology::PathId;

use super::RunState;
use crate::{Fence, Lease, LeaseClaim, LeaseError, LeaseKey, LeaseLimits, ProcessId};

/// A lease may take this many times the time that a worker of the median speed needs for its steps.
const SLOWEST: f64 = 100.0;

impl RunState {
    /// Renews a lease whose worker has taken `taken` inner steps for it, and returns its new deadline. A lease without
    /// a further inner step is renewed too, and ends when it has stood still for too long. `repeated` is the number of inner
    /// steps of earlier leases that the worker may have to repeat first.
    ///
    /// The worker may report any number of steps: it counts up to the steps that the lease can have. A lease also ends when
    /// it takes a hundred times as long as with the median speed.
    ///
    /// # Errors
    /// When the lease is no longer valid: the worker must drop its results.
    pub fn heartbeat(
        &mut self,
        now: Duration,
        claim: &LeaseClaim,
        taken: u64,
        repeated: u64,
    ) -> Result<Duration, LeaseError> {
        self.now = self.now.max(now);
        let path = claim.key.path;
        let LeaseLimits { silence, standstill, .. } = self.plan.limits;
        let deadline = now.saturating_add(silence);
        let granted = [self.leases.get(path), self.leases.following(path)].into_iter().flatten();
        let steps = granted.map(|lease| lease.to - lease.from).max().unwrap_or(0).saturating_add(repeated);
        let longest = standstill.saturating_add(self.longest(steps, &claim.worker.token));
        let stands_still = now.saturating_add(standstill);
        if !self.leases.renew(claim, taken.min(steps), deadline, stands_still, longest) {
            return Err(self.lost(path, claim.key.fence));
        }
        self.holders.heard(now, &claim.worker);
        Ok(deadline)
    }

    /// Returns the current lease of a claim; done before any of its results is stored.
    ///
    /// # Errors
    /// When the claim names no current lease, or another process holds the lease.
    pub fn check(&self, claim: &LeaseClaim) -> Result<&Lease, LeaseError> {
        let LeaseKey { path, fence, .. } = claim.key;
        self.leases.get(path).filter(|lease| lease.admits(claim)).ok_or_else(|| self.lost(path, fence))
    }

    /// Returns the current lease with a fencing number; for a claim that [`RunState::check`] has accepted before.
    ///
    /// # Errors
    /// When the lease has ended.
    pub fn current(&self, path: PathId, fence: Fence) -> Result<&Lease, LeaseError> {
        self.leases.get(path).filter(|lease| lease.fence == fence).ok_or_else(|| self.lost(path, fence))
    }

    pub(super) fn lost(&self, path: PathId, fence: Fence) -> LeaseError {
        match self.progress.paths.get(&path) {
            Some(done) => LeaseError::Lost { path, step: done.steps, fence },
            None => LeaseError::NoSuchPath { path, paths: self.topology.paths() },
        }
    }

    /// Ends a lease and the lease that follows it, unfinished, because its worker gives it back or does not come back. A worker
    /// that leaves a path unfinished again and again leaves it to others.
    pub fn give_back(&mut self, path: PathId, fence: Fence) -> bool {
        let lease = self.leases.get(path).filter(|lease| lease.fence == fence);
        if let Some(worker) = lease.map(|lease| lease.worker.clone()) {
            self.note_unfinished(path, &worker);
        }
        self.release(path, fence)
    }

    /// Notes that a lease of a path has ended unfinished.
    fn note_unfinished(&mut self, path: PathId, worker: &ProcessId) {
        if self.troubles.ends_unfinished(path, worker) {
            // Also if only this worker holds the path's newest state.
            self.holders.bind(path, false);
        }
    }

    /// Frees the path of a lease, and ends the lease that follows it. Holds nothing against its worker.
    pub fn release(&mut self, path: PathId, fence: Fence) -> bool {
        let held = self.leases.get(path).is_some_and(|lease| lease.fence == fence);
        if held {
            self.leases.remove(path);
            self.look_at(path);
        }
        held
    }

    /// Forgets what a worker holds, because its process does not come back. No path waits for it any more.
    pub fn part_with(&mut self, worker: &ProcessId) {
        for path in self.holders.forget_worker(worker) {
            self.look_at(path);
        }
    }

    /// Ends all leases that were silent or stood still for too long, and returns them. A worker whose lease stood still leaves
    /// the path to others. A worker whose lease was silent is forgotten until it asks again, and leaves the path to others if
    /// this happens again.
    ///
    /// Grace periods that have ended are deadlines no more: whoever takes outer steps must look for due steps after this call.
    pub fn expire(&mut self, now: Duration) -> Vec<Lease> {
        self.now = self.now.max(now);
        self.quorums.pass_ends(now);
        let gone = self.leases.expire(now);
        for lease in &gone {
            if lease.stands_still <= now {
                self.troubles.stands_still(lease.path, &lease.worker);
                // Also if only this worker holds the path's newest state.
                self.holders.bind(lease.path, false);
            } else {
                self.note_unfinished(lease.path, &lease.worker);
                self.part_with(&lease.worker);
            }
            self.look_at(lease.path);
        }
        gone
    }

    /// Takes a time in which the coordinator did not run, and which has just ended, for no silence and no standstill of a worker.
    /// Nobody gets more time than a worker that has just reported a step. No contribution arrived in this time, so it is
    /// no part of a grace period or a throttle either. The durations of the outer steps under way tell nothing.
    pub fn postpone(&mut self, now: Duration, by: Duration) {
        let LeaseLimits { silence, standstill, .. } = self.plan.limits;
        self.leases.postpone(by, now.saturating_add(silence), now.saturating_add(standstill));
        self.holders.postpone(now, by);
        self.quorums.postpone(now, by);
        self.interrupted.extend(&self.stepping);
        for stepped in self.stepped_at.values_mut() {
            *stepped = stepped.saturating_add(by).min(now);
        }
    }

    /// The longest time of this many inner steps of a worker with `token`; no limit before two tokens, or this one, have been
    /// measured.
    fn longest(&self, steps: u64, token: &str) -> Duration {
        let Some(median) = self.speeds.median_for(token) else { return Duration::MAX };
        Duration::try_from_secs_f64(SLOWEST * steps as f64 / median).unwrap_or(Duration::MAX)
    }

    /// Time of the next event without a message: the deadline of a lease, or the end of a grace period.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let leases = self.leases.first_end().into_iter();
        leases.chain(self.quorums.next_end()).min()
    }
}
