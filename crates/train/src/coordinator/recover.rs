//! Going back to an earlier round when the store is damaged.

use std::collections::BTreeSet;

use dipaco_store::{
    Loaded, ManifestSequence, ObjectRef, RollbackRecord, RunManifest, RunStore, StoreError, TrainingRecord,
};
use dipaco_telemetry::{Progress, ProgressUnit};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::coordinator::error::CoordinatorError;
use crate::coordinator::take_over::{ATTEMPTS, CheckpointContent, is_damage, read_checkpoint};

/// Number of objects that are read at a time.
const AT_ONCE: usize = 4;

/// Reads every object that a run needs. If one is damaged or missing, takes the run back to its newest undamaged
/// checkpoint and returns what that undoes, for the event file: training repeats those rounds. Returns `None` if all objects
/// are sound.
///
/// # Errors
/// [`CoordinatorError::Interrupted`] when `cancel` is triggered while objects are read; the run is unchanged then.
/// [`CoordinatorError::DamagedRun`] when every checkpoint is damaged too, and when the store can't be read or written.
pub async fn recover(
    store: &RunStore,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<Option<RollbackRecord>, CoordinatorError> {
    // Shared by all readings: manifests and checkpoints have most objects in common.
    let mut sound = BTreeSet::new();
    let mut attempt = 1;
    loop {
        let Some(Loaded { manifest, sequence, warnings }) = store.load::<RunManifest>().await? else {
            return Ok(None);
        };
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let Some(training) = &manifest.training else { return Ok(None) };
        let damage = match verify_until(cancel, store, training, &mut sound, progress).await? {
            Verification::Sound => return Ok(None),
            Verification::Damaged(damage) => damage,
        };
        // A coordinator that still runs deletes what its newer manifests do not name.
        let newest = store.load::<RunManifest>().await?.map(|newest| newest.sequence);
        if attempt == ATTEMPTS || newest == Some(sequence) {
            tracing::warn!(%damage, "the store is damaged; looking for an undamaged checkpoint");
            return go_back(store, manifest, sequence, damage, &mut sound, progress, cancel).await.map(Some);
        }
        attempt += 1;
    }
}

/// Takes a damaged run back to its newest undamaged checkpoint, and returns what that undoes. Checks all objects but those in
/// `sound`.
async fn go_back(
    store: &RunStore,
    mut manifest: RunManifest,
    sequence: ManifestSequence,
    damage: StoreError,
    sound: &mut BTreeSet<ObjectRef>,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<RollbackRecord, CoordinatorError> {
    let from = manifest.training.as_ref().map_or(0, TrainingRecord::rounds_done);
    let mut undone: Vec<u32> = Vec::new();
    while let Some(checkpoint) = manifest.checkpoints.last() {
        let round = checkpoint.round;
        let damage = match read_checkpoint(store, checkpoint).await? {
            CheckpointContent::Damaged(damage) => damage,
            CheckpointContent::Sound(training) => {
                match verify_until(cancel, store, &training, sound, progress).await? {
                    Verification::Damaged(damage) => damage,
                    Verification::Sound => {
                        undone.reverse();
                        let rollback = RollbackRecord { from, to: round, undone };
                        manifest.training = Some(training);
                        manifest.note_rollback(rollback.clone());
                        store.replace(&manifest, sequence).await?;
                        tracing::warn!(round, "the run goes back to its checkpoint, and on from there");
                        return Ok(rollback);
                    }
                }
            }
        };
        tracing::warn!(round, %damage, "the checkpoint is damaged too");
        undone.push(round);
        manifest.checkpoints.pop();
    }
    Err(CoordinatorError::DamagedRun { source: damage })
}

/// The outcome of reading all objects of a training.
pub(super) enum Verification {
    /// Every object is sound.
    Sound,
    /// This object was the first damaged one.
    Damaged(StoreError),
}

/// [`verify`], which ends with [`CoordinatorError::Interrupted`] if `cancel` is triggered meanwhile.
async fn verify_until(
    cancel: &CancellationToken,
    store: &RunStore,
    training: &TrainingRecord,
    sound: &mut BTreeSet<ObjectRef>,
    progress: &Progress,
) -> Result<Verification, CoordinatorError> {
    match cancel.run_until_cancelled(verify(store, training, sound, progress)).await {
        Some(verified) if !cancel.is_cancelled() => verified,
        // Also an error of the store: its patience ends with the same request to stop.
        _ => Err(CoordinatorError::Interrupted),
    }
}

/// Reads all objects of a training except the objects in `sound`, and adds each undamaged object to `sound`.
pub(super) async fn verify(
    store: &RunStore,
    training: &TrainingRecord,
    sound: &mut BTreeSet<ObjectRef>,
    progress: &Progress,
) -> Result<Verification, CoordinatorError> {
    let wanted: BTreeSet<_> = training.objects().filter(|object| !sound.contains(object)).cloned().collect();
    let total = wanted.iter().map(|object| object.bytes).sum();
    let task = progress.task("verify", Some(total), ProgressUnit::Bytes);
    let mut wanted = wanted.into_iter();
    let mut reading = JoinSet::new();
    let mut done = 0;
    loop {
        while reading.len() < AT_ONCE
            && let Some(object) = wanted.next()
        {
            let store = store.clone();
            reading.spawn(async move { (store.verify(&object).await, object) });
        }
        let Some(read) = reading.join_next().await else {
            task.finish();
            return Ok(Verification::Sound);
        };
        match read? {
            (Ok(()), object) => {
                done += object.bytes;
                task.set(done);
                sound.insert(object);
            }
            (Err(error), _) if is_damage(&error) => return Ok(Verification::Damaged(error)),
            (Err(error), _) => return Err(error.into()),
        }
    }
}
