//! Current leases: renewal, checks and ends.

use std::time::Duration;

use dipaco_topology::PathId;

use super::RunState;
use crate::{Fence, Lease, LeaseClaim, LeaseError, LeaseKey, LeaseLimits};

impl RunState {
    /// Renews a lease whose worker has taken `taken` inner steps for it, and returns its new deadline. A lease without
    /// a further inner step is renewed too, and ends when it has stood still for too long.
    ///
    /// # Errors
    /// When the lease is no longer valid: the worker must drop its results.
    pub fn heartbeat(
        &mut self,
        now: Duration,
        claim: &LeaseClaim,
        taken: u64,
    ) -> Result<Duration, LeaseError> {
        let path = claim.key.path;
        let LeaseLimits { silence, standstill, .. } = self.plan.limits;
        let deadline = now.saturating_add(silence);
        if !self.leases.renew(claim, taken, deadline, now.saturating_add(standstill)) {
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
        match self.progress.paths.get(path.index()) {
            Some(done) => LeaseError::Lost { path, step: done.steps, fence },
            None => LeaseError::NoSuchPath { path, paths: self.topology.paths() },
        }
    }

    /// Gives back a lease and the lease that follows it, when its worker leaves or its connection is lost for good.
    pub fn release(&mut self, path: PathId, fence: Fence) -> bool {
        let held = self.leases.get(path).is_some_and(|lease| lease.fence == fence);
        if held {
            self.leases.remove(path);
            self.look_at(path);
        }
        held
    }

    /// Ends all leases that were silent or stood still for too long, and returns them.
    pub fn expire(&mut self, now: Duration) -> Vec<Lease> {
        let gone = self.leases.expire(now);
        for lease in &gone {
            self.look_at(lease.path);
        }
        gone
    }

    /// Time of the next event without a message: the deadline of a lease, or the end of a grace period.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let leases = self.leases.first_end().into_iter();
        leases.chain(self.gathering.values().filter_map(|gathering| gathering.until)).min()
    }
}
