//! Paths whose training fails, and the quarantine of a path that fails for several workers.

use dipaco_sync::{FailedTraining, LeaseClaim, LeaseError, OutOfProportion};
use thiserror::Error;

use super::Ledger;
use crate::{LedgerError, QuarantineRecord};

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
    /// unless it is the last one that trains. While another token can try the path, all workers with one token are one
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
        let record = QuarantineRecord { step, workers, reason: failure.to_string() };
        let objects = self.objects.path_mut(path)?;
        objects.quarantine = Some(record.clone());
        // The path stays at its last stored state, so nobody replays the leases after it.
        objects.replay.clear();
        self.state.quarantine(path);
        self.note_recorded(path)?;
        self.discard_received(path);
        self.state.pass_over_idle();
        self.note_change(Vec::new());
        Ok(FailureDecision::Quarantined(record))
    }
}
