//! A seed that begins with the weights of a pretrained model.

use std::collections::BTreeSet;

use dipaco_model::ModuleWeights;
use dipaco_path::module_files;
use dipaco_store::{RunStore, SeedRecord, names};

use super::SeedError;
use crate::open_run::OpenRun;

/// Makes pretrained weights the seed of a run. `steps` steps of pretraining follow; without any, the seed is finished. A seed
/// that began with the same weights stays as it is. With `restart` the weights replace another seed.
///
/// # Errors
/// When the run has another seed and `restart` is false, paths have been trained from it, or the store can't be used.
pub async fn import_seed(
    store: &RunStore,
    mut run: OpenRun,
    weights: &ModuleWeights,
    steps: u64,
    restart: bool,
) -> Result<OpenRun, SeedError> {
    let bytes = module_files::encode(weights)?;
    let hash = blake3::hash(&bytes).to_hex().to_string();
    if let Some(seed) = &run.manifest.seed {
        if seed.imported.as_ref().is_some_and(|imported| imported.hash == hash) {
            return Ok(run);
        }
        if run.manifest.training.is_some() || run.manifest.extension.is_some() {
            return Err(SeedError::SeedInUse);
        }
        if !restart {
            return Err(SeedError::OtherSeed);
        }
    }
    let weights = store.put_replacing(&names::imported_weights(&hash), [bytes]).await?;
    let record = SeedRecord {
        origin: hash,
        step: 0,
        steps,
        imported: Some(weights.clone()),
        weights,
        state: None,
        validation_loss: None,
    };
    let before = run.manifest.seed.replace(record);
    run.sequence = store.replace(&run.manifest, run.sequence).await?;
    if let Some(seed) = before {
        let names: BTreeSet<String> = [Some(seed.weights), seed.state, seed.imported]
            .into_iter()
            .flatten()
            .map(|object| object.name)
            .collect();
        for name in names {
            store.delete(&name).await?;
        }
    }
    Ok(run)
}

/// Records that no step follows the import, if steps were planned then.
pub(super) async fn plan_no_steps(store: &RunStore, run: &mut OpenRun) -> Result<(), SeedError> {
    if let Some(seed) = run.manifest.seed.as_mut().filter(|seed| !seed.finished()) {
        seed.steps = seed.step;
        run.sequence = store.replace(&run.manifest, run.sequence).await?;
    }
    Ok(())
}
