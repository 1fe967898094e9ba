//! Paths whose training fails, and the quarantine of a path that fails for several workers.

use std::mem;

use dipaco_sync::{FailedTraining, FragmentId, LeaseClaim, LeaseError, OutOfProportion};
use dipaco_topology::{ModuleId, PathId};
use thiserror::Error;

use super::Ledger;
use crate::{EarlyStoppingBest, KeptVersion, LedgerError, OuterStepDone, QuarantineRecord};

/// The failure of a lease's training.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum TrainingFailure {
    /// The loss or a gradient was not finite.
    #[error("its training diverged after inner step {step}")]
    Diverged {
        /// Number of inner steps of the path before the failed step.
        step: u64,
    },
    /// An outer gradient is far larger than those of the contributions that count.
    #[error("its outer gradient is out of proportion: {0}")]
    OutOfProportion(OutOfProportion),
}

/// The decision about a failed lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureDecision {
    /// Another worker tries the path.
    Retried,
    /// No other worker is known that could try the path.
    Alone,
    /// Nobody trains the path any more.
    Quarantined(QuarantineRecord),
    /// The claim names no granted lease.
    Lost(LeaseError),
}

impl Ledger {
    /// Records that the training of a lease failed. The lease ends, so that another worker can try. Without another worker
    /// only a divergence ends it: a worker may still send a sound outer gradient. When as many accounts as the plan says tell
    /// that the training of a path fails, and no worker has completed a lease of it meanwhile, the path goes into quarantine,
    /// unless it is the last one that trains. It goes back to the last checkpoint before its last completed lease. While another token can try the path, all workers with one token are one
    /// account.
    ///
    /// # Errors
    /// When the ledger contradicts itself.
    pub fn training_failed(
        &mut self,
        claim: &LeaseClaim,
        failure: &TrainingFailure,
    ) -> Result<FailureDecision, LedgerError> {
        let path = claim.key.path;
        let FailedTraining { workers, accounts, others } = match self.state.fail(claim) {
            Ok(failed) => failed,
            Err(error) => return Ok(FailureDecision::Lost(error)),
        };
        if others || matches!(failure, TrainingFailure::Diverged { .. }) {
            self.state.end_leases(path);
            self.discard_received(path);
        }
        let limit = self.plan.quarantine_after;
        // Where every path fails, the configuration is wrong: a run without training must not end as if it were complete.
        let mut others_train = self.state.topology().trained_paths().filter(|&other| other != path);
        let is_last = others_train.all(|other| self.state.is_quarantined(other));
        if is_last || limit == 0 || accounts < limit {
            return Ok(if others { FailureDecision::Retried } else { FailureDecision::Alone });
        }
        let step = self.state.progress().paths.get(&path).map_or(0, |progress| progress.steps);
        self.state.quarantine(path);
        let (back_to, obsolete) = self.go_back(path)?;
        let record = QuarantineRecord { step, workers, reason: failure.to_string(), back_to };
        let objects = self.objects.path_mut(path)?;
        objects.quarantine = Some(record.clone());
        // Nobody goes on from the path's state, so nobody replays the leases after it.
        objects.replay.clear();
        self.note_recorded(path)?;
        self.discard_received(path);
        self.state.pass_over_idle();
        self.note_change(obsolete);
        Ok(FailureDecision::Quarantined(record))
    }

    /// Takes a path back to the newest kept checkpoint before its last completed lease, with the modules that no other path
    /// trains: workers fail from what that lease left, so it is the likeliest fault. Versions stay, because outer steps and the
    /// counters of paths rise together. Returns the round of the checkpoint, and obsolete objects; without such a checkpoint
    /// nothing changes.
    fn go_back(&mut self, path: PathId) -> Result<(Option<u32>, Vec<String>), LedgerError> {
        let Some(checkpoint) = self.checkpoints.before(path, self.objects.path(path)?.fence) else {
            return Ok((None, Vec::new()));
        };
        let mut obsolete = Vec::new();
        for fragment in self.fragment_ids_of(path) {
            let good = checkpoint.objects.fragment(fragment)?;
            if self.is_at_rest(fragment.module) && self.objects.fragment(fragment)?.weights != good.weights {
                self.forget_measurements(fragment)?;
                let objects = self.objects.fragment_mut(fragment)?;
                let weights = mem::replace(&mut objects.weights, good.weights.clone());
                let momentum = mem::replace(&mut objects.momentum, good.momentum.clone());
                let changes = mem::take(&mut objects.changes).into_iter().map(|change| change.object);
                let left = [weights].into_iter().chain(momentum).chain(changes).map(|object| object.name);
                if self.owners.open().is_due(fragment) {
                    // A synchronizer may be reading them.
                    self.left.entry(fragment).or_default().extend(left);
                } else {
                    obsolete.extend(left);
                }
            }
        }
        let good = checkpoint.objects.path(path)?;
        let objects = self.objects.path_mut(path)?;
        let before = mem::replace(&mut objects.state, good.state.clone());
        obsolete.extend(before.map(|object| object.name));
        objects.fence = good.fence;
        objects.completed_by = good.completed_by.clone();
        Ok((Some(checkpoint.round), obsolete))
    }

    /// Forgets the held-out losses of the newest version of a fragment, because that version gets other weights.
    fn forget_measurements(&mut self, fragment: FragmentId) -> Result<(), LedgerError> {
        let (slot, version) = (self.slot(fragment), self.state.progress().versions.get(&fragment).copied());
        let names_it = |measured: &mut EarlyStoppingBest| measured.versions.get(slot).copied() == version;
        let learners: Vec<_> = self.state.topology().paths_through(fragment.module).collect();
        for path in learners {
            let objects = self.objects.path_mut(path)?;
            objects.best.take_if(names_it);
            objects.last.take_if(names_it);
            self.note_recorded(path)?;
        }
        Ok(())
    }

    /// True if every path that trains a module is in quarantine. Its weights stay as they are.
    pub(super) fn is_at_rest(&self, module: ModuleId) -> bool {
        let topology = self.state.topology();
        let mut learners = topology.paths_through(module);
        topology.module_trains(module) && learners.all(|path| self.state.is_quarantined(path))
    }

    /// Counts an outer step of a module that is at rest: its weights stay, whatever the synchronizer has made of the
    /// contributions that had been sent before. Returns obsolete objects.
    pub(super) fn pass_over_step(&mut self, done: &OuterStepDone) -> Result<Vec<String>, LedgerError> {
        let OuterStepDone { fragment, version, .. } = *done;
        let objects = self.objects.fragment_mut(fragment)?;
        let weights = objects.weights.clone();
        objects.kept.push(KeptVersion { version: version.saturating_sub(1), weights });
        Ok(done.objects().map(|object| object.name.clone()).collect())
    }
}
