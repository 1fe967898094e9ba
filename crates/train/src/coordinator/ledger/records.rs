//! Access to the records of the manifest.

use std::collections::BTreeMap;

use dipaco_store::{
    FragmentRecord, GradientRecord, PathRecord, RunManifest, RunStore, TrainingRecord, names,
};
use dipaco_sync::{Contribution, FragmentId, PathProgress, TrainingProgress};
use dipaco_topology::PathId;

use crate::coordinator::error::CoordinatorError;

/// Tokens in the shard of each path.
pub(crate) fn shard_tokens(training: &TrainingRecord) -> Vec<u64> {
    training.shards.iter().map(|shard| shard.tokens).collect()
}

/// The names of all objects of the training that are in the store.
pub(super) async fn stored_names(store: &RunStore) -> Result<Vec<String>, CoordinatorError> {
    let mut stored = Vec::new();
    let outer_steps = [names::OUTER_GRADIENTS, names::MODULES, names::MOMENTA, names::CHANGES];
    for prefix in outer_steps.into_iter().chain([names::PATHS, names::CHECKPOINTS]) {
        stored.extend(store.list(prefix).await?.into_iter().map(|object| object.name));
    }
    Ok(stored)
}

/// The error of a manifest without training, which `Ledger::take_over` refuses.
pub(super) fn no_training() -> CoordinatorError {
    CoordinatorError::internal("the ledger's manifest has no training")
}

/// The training's record.
pub(super) fn training_mut(manifest: &mut RunManifest) -> Result<&mut TrainingRecord, CoordinatorError> {
    manifest.training.as_mut().ok_or_else(no_training)
}

/// The record of a path.
pub(super) fn path_record(
    manifest: &mut RunManifest,
    path: PathId,
) -> Result<&mut PathRecord, CoordinatorError> {
    let record = training_mut(manifest)?.paths.get_mut(path.index());
    record.ok_or_else(|| CoordinatorError::ManifestLacks { what: format!("path {path}") })
}

/// The record of a fragment.
pub(super) fn fragment_record(
    manifest: &mut RunManifest,
    fragment: FragmentId,
) -> Result<&mut FragmentRecord, CoordinatorError> {
    let module = training_mut(manifest)?.modules.iter_mut().find(|record| record.module == fragment.module);
    let record = module.and_then(|module| module.fragments.get_mut(fragment.index as usize));
    record.ok_or_else(|| CoordinatorError::ManifestLacks { what: format!("fragment {fragment}") })
}

/// Converts the manifest's progress of a run for the state machine.
pub(super) fn progress(training: &TrainingRecord) -> TrainingProgress {
    let mut progress = TrainingProgress {
        versions: BTreeMap::new(),
        paths: Vec::new(),
        pending: BTreeMap::<_, Vec<_>>::new(),
    };
    for module in &training.modules {
        for (fragment, record) in (0..).zip(&module.fragments) {
            progress.versions.insert(FragmentId { module: module.module, index: fragment }, record.version);
        }
    }
    for (path, record) in (0..).map(PathId).zip(&training.paths) {
        progress.paths.push(PathProgress {
            steps: record.steps,
            measured: record.measured,
            sent: record.sent.clone(),
            adopted: record.adopted.clone(),
        });
        for gradient in &record.gradients {
            let GradientRecord { module, fragment, number, base, steps, tokens, .. } = *gradient;
            let fragment = FragmentId { module, index: fragment };
            let contribution = Contribution { path, number, base, steps, tokens };
            progress.pending.entry(fragment).or_default().push(contribution);
        }
    }
    progress.pending.values_mut().for_each(|pending| pending.sort_unstable());
    progress
}
