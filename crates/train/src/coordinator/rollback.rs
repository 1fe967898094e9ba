//! Going back to an earlier round on an operator's request.

use std::collections::BTreeSet;

use dipaco_ledger::LedgerError;
use dipaco_store::{Loaded, ManifestSequence, RollbackRecord, RunManifest, RunStore};
use dipaco_telemetry::Progress;

use crate::coordinator::error::CoordinatorError;
use crate::coordinator::recover::{Verification, verify};
use crate::coordinator::take_over::{CheckpointContent, read_checkpoint};

/// Takes a run that nobody trains back to its checkpoint after `round` complete rounds. Later checkpoints are undone:
/// the next coordinator deletes their objects. In schemes in which paths wait for each other, the training then repeats
/// its steps to the bits of a run that never went on.
///
/// # Errors
/// [`CoordinatorError::NotKept`] when the run has no checkpoint of this round, [`CoordinatorError::DamagedCheckpoint`]
/// when an object of the checkpoint is damaged, and when the store can't be read or written. The run is unchanged then, unless
/// the store fails in the write and in the look at its outcome: [`CoordinatorError::UnknownRollback`].
pub async fn roll_back(
    store: &RunStore,
    round: u32,
    progress: &Progress,
) -> Result<RollbackRecord, CoordinatorError> {
    let loaded = store.load::<RunManifest>().await?;
    let Loaded { mut manifest, sequence, warnings } = loaded.ok_or(LedgerError::NotStarted)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let current = manifest.training.as_ref().ok_or(LedgerError::NotStarted)?;
    let from = current.rounds_done();
    let kept = || manifest.checkpoints.iter().map(|checkpoint| checkpoint.round);
    let Some(place) = kept().position(|kept| kept == round) else {
        return Err(CoordinatorError::NotKept {
            round,
            kept: kept().collect(),
            finished: current.finished(),
        });
    };
    let damaged = |source| CoordinatorError::DamagedCheckpoint { round, source };
    let training = match read_checkpoint(store, &manifest.checkpoints[place]).await? {
        CheckpointContent::Sound(training) => training,
        CheckpointContent::Damaged(error) => return Err(damaged(error)),
    };
    match verify(store, &training, &mut BTreeSet::new(), progress).await? {
        Verification::Sound => {}
        Verification::Damaged(error) => return Err(damaged(error)),
    }
    let undone = manifest.checkpoints.split_off(place + 1).into_iter().map(|checkpoint| checkpoint.round);
    let rollback = RollbackRecord { from, to: round, undone: undone.collect() };
    manifest.training = Some(training);
    manifest.note_rollback(rollback.clone());
    replace(store, &manifest, sequence).await?;
    Ok(rollback)
}

/// Replaces the manifest. When the store fails meanwhile, the manifest that it then holds tells the outcome.
async fn replace(
    store: &RunStore,
    manifest: &RunManifest,
    sequence: ManifestSequence,
) -> Result<(), CoordinatorError> {
    let Err(error) = store.replace(manifest, sequence).await else { return Ok(()) };
    match store.load::<RunManifest>().await {
        // No earlier manifest is equal: this one notes the rollback.
        Ok(Some(found)) if found.manifest == *manifest => {
            tracing::warn!(%error, "the run has gone back, although the store failed");
            Ok(())
        }
        Ok(_) => Err(error.into()),
        Err(unread) => {
            tracing::warn!(%unread, "the outcome of the rollback can't be read");
            Err(CoordinatorError::UnknownRollback { source: error })
        }
    }
}

#[cfg(test)]
mod tests;
