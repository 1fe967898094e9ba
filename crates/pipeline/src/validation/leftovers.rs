//! Weights that a training left in the store because a reader had pinned them.

use std::collections::BTreeSet;
use std::time::SystemTime;

use dipaco_store::{RunManifest, RunStore, names};

use crate::error::PipelineError;
use crate::store::manifest_in;

/// Deletes the weights to which a complete run does not refer, except for those that a reader has pinned. Only a coordinator
/// deletes otherwise, and a complete run gets no other one. Changes nothing in the store of an incomplete run.
pub(super) async fn delete_leftovers(store: &RunStore) -> Result<(), PipelineError> {
    let Some(RunManifest { training: Some(training), checkpoints, .. }) = manifest_in(store).await? else {
        return Ok(());
    };
    if !training.finished() || !checkpoints.is_empty() {
        return Ok(());
    }
    let needed: BTreeSet<&String> = training.objects().map(|object| &object.name).collect();
    // After the manifest: a reader that found its objects in an earlier one has written its pin by now, or looks again.
    let pinned = store.pinned(SystemTime::now()).await?;
    let stored = store.list(names::MODULES).await?.into_iter().map(|object| object.name);
    let unneeded: Vec<String> =
        stored.filter(|name| !needed.contains(name) && !pinned.contains(name)).collect();
    Ok(store.delete_each(unneeded).await?)
}
