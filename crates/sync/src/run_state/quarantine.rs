//! Paths whose training fails, and paths that nobody trains, in quarantine or for a round: the others do not wait for them.

use dipaco_topology::PathId;

use super::RunState;
use crate::{LeaseClaim, LeaseError, LeaseTask, ProcessId};

/// The failures of a path's training since the path's last completed lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedTraining {
    /// Names of the workers for which it failed.
    pub workers: Vec<String>,
    /// Number of accounts. While another token can try the path, all workers with one token are one account.
    pub accounts: usize,
    /// True if another worker is known, which can try the path.
    pub others: bool,
}

/// Times of a standstill in which a contributor that is away may come back and try a path that failed for others.
const RETURNS: u32 = 10;

impl RunState {
    /// Notes that a worker's training under a lease failed. The worker gets no further lease of the path while another
    /// worker can try it. The lease itself goes on.
    ///
    /// # Errors
    /// When the claim names no granted lease.
    pub fn fail(&mut self, claim: &LeaseClaim) -> Result<FailedTraining, LeaseError> {
        let path = claim.key.path;
        let of_path = [self.leases.get(path), self.leases.following(path)];
        if !of_path.into_iter().flatten().any(|lease| lease.admits(claim)) {
            return Err(self.lost(claim.key.path, claim.key.fence));
        }
        self.troubles.fails(self.now, path, &claim.worker);
        // Another worker must be able to try, also if only this one holds the path's newest state.
        self.holders.bind(path, false);
        self.look_at(path);
        let patience = self.plan.limits.standstill.saturating_mul(RETURNS);
        Ok(FailedTraining {
            workers: self.troubles.failed(path),
            accounts: self.troubles.accounts(self.now, patience, path, &self.holders),
            others: self.troubles.others_can_try(path, &self.holders),
        })
    }

    /// True if a worker leaves a path to others: its training failed, stood still or was left unfinished again and again for this
    /// worker or its token, and others can try.
    pub(super) fn leaves_to_others(&self, path: PathId, worker: &ProcessId) -> bool {
        self.troubles.leaves_to_others(path, worker, &self.holders)
    }

    /// Puts a path into quarantine: no worker gets it any more.
    pub fn quarantine(&mut self, path: PathId) {
        self.troubles.forget(path);
        self.progress.quarantined.insert(path);
        self.holders.bind(path, false);
        self.end_leases(path);
    }

    /// True if a path is in quarantine.
    #[must_use]
    pub fn is_quarantined(&self, path: PathId) -> bool {
        self.progress.quarantined.contains(&path)
    }

    /// Moves the paths that do not train on as far as they can go: paths in quarantine, and paths in the rounds in which
    /// they rest. They take their inner steps in no time and contribute nothing, as if the schedule dropped their outer
    /// gradients. So no outer step waits for them.
    pub fn pass_over_idle(&mut self) {
        while let Some(path) = self.idle.pop_first() {
            let steps = self.path(path).steps;
            if let Ok(task) = self.task(path)
                && self.is_idle(path, steps, task)
            {
                self.pass_over(path, task);
            }
        }
    }

    /// Inner steps that the paths have taken together, those in which they were passed over included. Kept paths take none.
    #[must_use]
    pub fn steps_taken(&self) -> u64 {
        self.places.taken()
    }

    /// True if nobody carries out the task of a path that has taken so many inner steps.
    pub(super) fn is_idle(&self, path: PathId, steps: u64, task: LeaseTask) -> bool {
        self.is_quarantined(path) || task == LeaseTask::Train && self.plan.schedule.rests_after(path, steps)
    }

    fn pass_over(&mut self, path: PathId, task: LeaseTask) {
        let schedule = &self.plan.schedule;
        let from = self.path(path).steps;
        let to = match task {
            LeaseTask::Measure => from,
            LeaseTask::Train if self.waits() => schedule.next_stop(from),
            LeaseTask::Train => self.end(),
        };
        let receives = self.receives(path, from, task);
        let received: Vec<_> = receives.iter().map(|(r, _)| (self.slot(r.fragment), r.version)).collect();
        self.raise_sent(path, self.scheduled(path, to, task));
        let progress = &mut self.progress.paths[&path];
        for (slot, version) in received {
            progress.adopted[slot] = version;
        }
        self.move_on(path, to, task == LeaseTask::Measure);
    }

    /// Ends the current lease of a path and the lease that follows it.
    pub fn end_leases(&mut self, path: PathId) {
        self.leases.remove(path);
        self.look_at(path);
    }
}
