//! Paths whose training fails, and paths that nobody trains, in quarantine or for a round: the others do not wait for them.

use dipaco_topology::PathId;

use super::RunState;
use crate::{LeaseClaim, LeaseError, LeaseTask, ProcessId};

/// The workers for which the training of a path has failed since the path's last completed lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedTraining {
    /// The workers, each by its token and name.
    pub workers: Vec<ProcessId>,
    /// True if another worker is known, which can try the path.
    pub others: bool,
}

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
        let failed = self.failed.entry(path).or_default();
        // A new process of the worker is the same machine.
        failed.insert(ProcessId { instance: 0, ..claim.worker.clone() });
        let workers = failed.iter().cloned().collect();
        // Another worker must be able to try, also if only this one holds the path's newest state.
        self.holders.bind(path, false);
        self.look_at(path);
        Ok(FailedTraining { workers, others: self.others_can_try(path) })
    }

    /// True if a worker is known for which the training of a path has not failed.
    fn others_can_try(&self, path: PathId) -> bool {
        self.holders.known().any(|worker| !self.failed_for(path, worker))
    }

    fn failed_for(&self, path: PathId, worker: &ProcessId) -> bool {
        self.failed.get(&path).is_some_and(|failed| failed.iter().any(|failed| failed.is_kin_of(worker)))
    }

    /// True if a worker leaves a path to others: its training failed for this worker, and not for all.
    pub(super) fn leaves_to_others(&self, path: PathId, worker: &ProcessId) -> bool {
        self.failed_for(path, worker) && self.others_can_try(path)
    }

    /// Puts a path into quarantine: no worker gets it any more.
    pub fn quarantine(&mut self, path: PathId) {
        self.failed.remove(&path);
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
        for path in self.progress.quarantined.clone() {
            while let Ok(task) = self.task(path) {
                self.pass_over(path, task);
            }
        }
        while let Some(path) = self.resting.pop_first() {
            let steps = self.path(path).steps;
            if self.task(path) == Ok(LeaseTask::Train) && self.plan.schedule.rests_after(path, steps) {
                self.pass_over(path, LeaseTask::Train);
            }
        }
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
        let progress = &mut self.progress.paths[path.index()];
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
