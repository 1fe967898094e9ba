//! Current leases: renewal, checks and ends.

use std::collections::BTreeMap;
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
        let of_path = [self.leases.get_mut(&path), self.following.get_mut(&path)];
        let Some(lease) = of_path.into_iter().flatten().find(|lease| lease.admits(claim)) else {
            return Err(self.lost(path, claim.key.fence));
        };
        if taken > lease.taken {
            lease.taken = taken;
            lease.stands_still = now.saturating_add(standstill);
        }
        self.holders.heard(now, &claim.worker);
        let deadline = now.saturating_add(silence);
        // Also for a following lease: its worker is alive, and uploads the results of the current one.
        if let Some(current) = self.leases.get_mut(&path) {
            current.deadline = deadline;
        }
        Ok(deadline)
    }

    /// Returns the current lease of a claim; done before any of its results is stored.
    ///
    /// # Errors
    /// When the claim names no current lease, or another process holds the lease.
    pub fn check(&self, claim: &LeaseClaim) -> Result<&Lease, LeaseError> {
        let LeaseKey { path, fence, .. } = claim.key;
        self.leases.get(&path).filter(|lease| lease.admits(claim)).ok_or_else(|| self.lost(path, fence))
    }

    /// Returns the current lease with a fencing number; for a claim that [`RunState::check`] has accepted before.
    ///
    /// # Errors
    /// When the lease has ended.
    pub fn current(&self, path: PathId, fence: Fence) -> Result<&Lease, LeaseError> {
        self.leases.get(&path).filter(|lease| lease.fence == fence).ok_or_else(|| self.lost(path, fence))
    }

    pub(super) fn lost(&self, path: PathId, fence: Fence) -> LeaseError {
        match self.progress.paths.get(path.index()) {
            Some(done) => LeaseError::Lost { path, step: done.steps, fence },
            None => LeaseError::NoSuchPath { path, paths: self.topology.paths() },
        }
    }

    /// Gives back a lease and the lease that follows it, when its worker leaves or its connection is lost for good.
    pub fn release(&mut self, path: PathId, fence: Fence) -> bool {
        let held = self.leases.get(&path).is_some_and(|lease| lease.fence == fence);
        if held {
            self.leases.remove(&path);
            self.following.remove(&path);
            self.look_at(path);
        }
        held
    }

    /// Ends all leases that were silent or stood still for too long, and returns them.
    pub fn expire(&mut self, now: Duration) -> Vec<Lease> {
        let (gone, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.leases).into_iter().partition(|(_, lease)| ends(lease) <= now);
        self.leases = kept;
        for &path in gone.keys() {
            self.following.remove(&path);
            self.look_at(path);
        }
        gone.into_values().collect()
    }

    /// Time of the next event without a message: the deadline of a lease, or the end of a grace period.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let leases = self.leases.values().map(ends);
        leases.chain(self.gathering.values().filter_map(|gathering| gathering.until)).min()
    }
}

/// Time at which a lease ends without a message of its worker.
fn ends(lease: &Lease) -> Duration {
    lease.deadline.min(lease.stands_still)
}
