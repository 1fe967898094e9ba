//! A seed that begins with the weights of a pretrained model.

use std::collections::BTreeSet;
use std::sync::Arc;

use dipaco_model::ModuleWeights;
use dipaco_path::module_files;
use dipaco_store::{RunStore, SeedRecord, names};

use super::{SeedError, is_in_use};
use crate::open_run::OpenRun;

/// Makes pretrained weights the seed of a run. `steps` steps of pretraining follow; without any, the seed is finished. A seed
/// that began with the same weights stays as it is. With `restart` the weights replace another seed.
///
/// # Errors
/// When the run has another seed and `restart` is false, paths have been trained from it, or the store can't be used.
pub async fn import_seed(
    store: &RunStore,
    mut run: OpenRun,
    weights: ModuleWeights,
    steps: u64,
    restart: bool,
) -> Result<OpenRun, SeedError> {
    // The weights may take most of the machine's memory, so their file is not a copy.
    let parts = module_files::encode_parts(&Arc::new(weights))?;
    let mut hasher = blake3::Hasher::new();
    for part in &parts {
        hasher.update(part);
    }
    let hash = hasher.finalize().to_hex().to_string();
    if let Some(seed) = &run.manifest.seed {
        if seed.imported.as_ref().is_some_and(|imported| imported.hash == hash) {
            return Ok(run);
        }
        if is_in_use(&run) {
            return Err(SeedError::SeedInUse);
        }
        if !restart {
            return Err(SeedError::OtherSeed);
        }
    }
    let weights = store.put_replacing(&names::imported_weights(&hash), parts).await?;
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

#[cfg(test)]
mod tests {
    use dipaco_model::{ModelConfig, init, path_specs};
    use dipaco_store::{ManifestSequence, RunManifest};

    use super::*;

    #[test]
    fn an_import_takes_no_memory_besides_the_weights() {
        let config = ModelConfig { vocab_size: 4096, ..ModelConfig::default() };
        let weights = init(&config, 7).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = RunStore::create(&folder.path().to_string_lossy()).unwrap();
        let run = OpenRun { manifest: RunManifest::new("run".to_owned()), sequence: ManifestSequence::NONE };
        let (mut seeded, given) = (None, weights.clone());
        let taken = allocation_counter::measure(|| {
            seeded = Some(runtime.block_on(import_seed(&store, run, given, 0, false)).unwrap());
        });
        let length = weights.values.len() as u64 * 4;
        assert!(taken.bytes_max < length / 8, "{} bytes for weights of {length}", taken.bytes_max);
        let seed = seeded.unwrap().manifest.seed.unwrap();
        let stored = runtime.block_on(store.get(&seed.weights)).unwrap();
        assert_eq!(ModuleWeights::from_safetensors(&stored, path_specs(&config).into()).unwrap(), weights);
    }
}
