//! Going back to an earlier round when the store is damaged.

use std::collections::BTreeSet;

use dipaco_store::{Loaded, ObjectRef, RunManifest, RunStore, StoreError, TrainingRecord};
use dipaco_telemetry::{Progress, ProgressUnit};
use tokio::task::JoinSet;

use crate::TrainError;
use crate::coordinator::ledger::read_checkpoint;

/// Objects that are read at a time.
const AT_ONCE: usize = 4;

/// Reads every object that a run needs to go on, and takes the run back to its newest checkpoint that is whole when one is
/// damaged or missing. Returns the round that it goes on from then.
///
/// # Errors
/// [`TrainError::DamagedRun`] when no checkpoint is whole either, and when the store can't be read or written.
pub async fn recover(store: &RunStore, progress: &Progress) -> Result<Option<u32>, TrainError> {
    let Some(Loaded { mut manifest, sequence, warnings }) = store.load::<RunManifest>().await? else {
        return Ok(None);
    };
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let Some(training) = &manifest.training else { return Ok(None) };
    let mut whole = BTreeSet::new();
    let Err(damage) = verify(store, training, &mut whole, progress).await? else { return Ok(None) };
    tracing::warn!(%damage, "the store is damaged; looking for an earlier round that is whole");
    while let Some(checkpoint) = manifest.checkpoints.last() {
        let round = checkpoint.round;
        let earlier = match read_checkpoint(store, checkpoint).await {
            Ok(training) => verify(store, &training, &mut whole, progress).await?.map(|()| training),
            Err(TrainError::Store(error)) if is_damage(&error) => Err(error),
            Err(error) => return Err(error),
        };
        match earlier {
            Ok(training) => {
                manifest.training = Some(training);
                store.replace(&manifest, sequence).await?;
                tracing::warn!(round, "the run goes back to its checkpoint, and on from there");
                return Ok(Some(round));
            }
            Err(damage) => tracing::warn!(round, %damage, "the checkpoint is damaged too"),
        }
        manifest.checkpoints.pop();
    }
    Err(TrainError::DamagedRun { source: damage })
}

/// Reads all objects of a training but those that are known to be whole; the inner error is the first damage.
async fn verify(
    store: &RunStore,
    training: &TrainingRecord,
    whole: &mut BTreeSet<ObjectRef>,
    progress: &Progress,
) -> Result<Result<(), StoreError>, TrainError> {
    let wanted: BTreeSet<_> = training.objects().filter(|object| !whole.contains(object)).cloned().collect();
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
            reading.spawn(async move { (store.get(&object).await.map(drop), object) });
        }
        let Some(read) = reading.join_next().await else { return Ok(Ok(())) };
        match read.map_err(|source| TrainError::Thread { source })? {
            (Ok(()), object) => {
                done += object.bytes;
                task.set(done);
                whole.insert(object);
            }
            (Err(error), _) if is_damage(&error) => return Ok(Err(error)),
            (Err(error), _) => return Err(error.into()),
        }
    }
}

/// Whether an object is not what its reference says.
pub(crate) fn is_damage(error: &StoreError) -> bool {
    matches!(error, StoreError::Damaged { .. } | StoreError::Cut { .. } | StoreError::Missing { .. })
}
