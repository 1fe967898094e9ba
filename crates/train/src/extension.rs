//! Beginning a run with the modules of a finished run.

use dipaco_config::RunConfig;
use dipaco_store::{
    ExtensionRecord, FragmentRecord, ModuleRecord, ObjectRef, RunManifest, RunStore, SeedRecord, ShardRecord,
    TrainingRecord, names,
};
use dipaco_telemetry::{Progress, ProgressUnit, Task};
use dipaco_topology::{ModuleId, Topology};
use thiserror::Error;

use crate::TrainError;
use crate::coordinator::{CoordinatorError, start_training};
use crate::error::through_train_error;
use crate::open_run::OpenRun;

/// An error of beginning a run with the modules of another one.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExtensionError {
    /// The paths of the other run have not been trained.
    #[error("the run to extend has no trained paths: train it with `dipaco train` first")]
    NotTrained,
    /// The other run is not complete.
    #[error(
        "the run to extend is not finished: {rounds} of {of} rounds are done; go on with `dipaco train --resume` first"
    )]
    Unfinished {
        /// Rounds that every path has done.
        rounds: u32,
        /// Rounds of the whole run.
        of: u32,
    },
    /// The new run has begun in another way.
    #[error("the new run has a seed or another extension already: give another run directory with --run")]
    Begun,
    /// The other run lacks a module that its topology has.
    #[error("the run to extend lacks module {module}: its store is damaged; restore it from a copy")]
    Lacks {
        /// The module.
        module: ModuleId,
    },
    /// A run in which nobody trains can't be completed.
    #[error(transparent)]
    Start(#[from] CoordinatorError),
    /// An error that all roles share.
    #[error(transparent)]
    Core(#[from] TrainError),
}

through_train_error!(ExtensionError);

/// The stores of the finished run and of the new run, and the modules to copy.
#[derive(Debug)]
pub struct ExtensionOptions {
    /// Configuration of the new run, with the vocabulary set.
    pub config: RunConfig,
    /// Store of the new run.
    pub store: RunStore,
    /// Store of the finished run.
    pub source: RunStore,
    /// Manifest of the finished run.
    pub manifest: RunManifest,
    /// Modules of the new run, level by level, each with the module of the finished run that it is a copy of.
    pub modules: Vec<(ModuleId, ModuleId)>,
}

/// Copies the seed and the modules of a finished run into the store of a new run, and makes them the start of its training.
/// If no path of the new run trains, its training is complete at once. Returns false if all of this has been done before.
///
/// Every object is verified by its hash. The manifest is written last.
///
/// # Errors
/// When the other run is not complete, the new run has begun in another way, or a store can't be used.
pub async fn extend_run(
    options: &ExtensionOptions,
    mut run: OpenRun,
    progress: &Progress,
) -> Result<bool, ExtensionError> {
    let (seed, training) = finished(&options.manifest)?;
    let sources = sources(training, &options.modules)?;
    let hash = hash(&options.config, &sources)?;
    match (&run.manifest.extension, &run.manifest.seed, &run.manifest.training) {
        (Some(extension), _, _) if extension.hash == hash => {
            complete_untrained(options).await?;
            return Ok(false);
        }
        (None, None, None) => {}
        _ => return Err(ExtensionError::Begun),
    }
    let fragments = sources.iter().flat_map(|(_, record)| &record.fragments);
    let total = fragments.map(|fragment| fragment.weights.bytes).sum();
    let task = progress.task("extend", Some(total), ProgressUnit::Bytes);
    let mut modules = Vec::with_capacity(sources.len());
    for (module, record) in sources {
        modules.push(copy_module(options, module, record, &task).await?);
    }
    task.finish();
    run.manifest.seed = Some(copy_seed(options, seed).await?);
    run.manifest.extension = Some(ExtensionRecord { from: options.manifest.run.clone(), hash, modules });
    // Last: no manifest names the objects above before this write. A command that ends early is repeated, and replaces them.
    options.store.replace(&run.manifest, run.sequence).await?;
    complete_untrained(options).await?;
    Ok(true)
}

/// Checks that a run is complete, so that it can be extended.
///
/// # Errors
/// [`ExtensionError::NotTrained`] and [`ExtensionError::Unfinished`].
pub fn check_finished(manifest: &RunManifest) -> Result<(), ExtensionError> {
    finished(manifest).map(drop)
}

/// The seed and the training of a complete run.
fn finished(manifest: &RunManifest) -> Result<(&SeedRecord, &TrainingRecord), ExtensionError> {
    let (Some(seed), Some(training)) = (&manifest.seed, &manifest.training) else {
        return Err(ExtensionError::NotTrained);
    };
    if training.finished() {
        return Ok((seed, training));
    }
    Err(ExtensionError::Unfinished { rounds: training.rounds_done(), of: training.rounds })
}

/// The record of the source of each new module.
fn sources<'a>(
    training: &'a TrainingRecord,
    modules: &[(ModuleId, ModuleId)],
) -> Result<Vec<(ModuleId, &'a ModuleRecord)>, ExtensionError> {
    let source = |&(new, old): &(ModuleId, ModuleId)| {
        Ok((new, training.module(old).ok_or(ExtensionError::Lacks { module: old })?))
    };
    modules.iter().map(source).collect()
}

/// Hash over the topology and the weights at the start.
fn hash(config: &RunConfig, sources: &[(ModuleId, &ModuleRecord)]) -> Result<String, ExtensionError> {
    let mut hasher = blake3::Hasher::new();
    let topology = serde_json::to_vec(&config.topology);
    hasher.update(&topology.map_err(|source| CoordinatorError::ConfigJson { source })?);
    for fragment in sources.iter().flat_map(|(_, record)| &record.fragments) {
        hasher.update(fragment.weights.hash.as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Copies the current weights of a module.
async fn copy_module(
    options: &ExtensionOptions,
    module: ModuleId,
    record: &ModuleRecord,
    task: &Task,
) -> Result<ModuleRecord, ExtensionError> {
    let mut fragments = Vec::with_capacity(record.fragments.len());
    for (number, fragment) in (0u32..).zip(&record.fragments) {
        let name = names::weights(module, number, 0, 0);
        fragments.push(FragmentRecord::first(copy(options, &fragment.weights, &name).await?));
        task.add(fragment.weights.bytes);
    }
    Ok(ModuleRecord { module, fragments })
}

/// Copies the finished seed, whose features the router may read.
async fn copy_seed(options: &ExtensionOptions, seed: &SeedRecord) -> Result<SeedRecord, ExtensionError> {
    let weights = copy(options, &seed.weights, &seed.weights.name).await?;
    let imported = match &seed.imported {
        Some(imported) => Some(copy(options, imported, &imported.name).await?),
        None => None,
    };
    Ok(SeedRecord { weights, imported, state: None, ..seed.clone() })
}

async fn copy(
    options: &ExtensionOptions,
    object: &ObjectRef,
    name: &str,
) -> Result<ObjectRef, ExtensionError> {
    let bytes = options.source.get(object).await?;
    Ok(options.store.put_replacing(name, [bytes]).await?)
}

/// Completes the training of a run in which no path trains.
async fn complete_untrained(options: &ExtensionOptions) -> Result<(), ExtensionError> {
    let ExtensionOptions { config, store, .. } = options;
    let topology = Topology::new(&config.topology, config.model.blocks).map_err(CoordinatorError::from)?;
    if topology.trained_paths().len() > 0 {
        return Ok(());
    }
    let no_shard = ShardRecord { file: String::new(), hash: String::new(), documents: 0, tokens: 0 };
    start_training(store, config, vec![no_shard; topology.paths() as usize], true).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use dipaco_store::PathRecord;

    use super::*;

    #[test]
    fn only_a_complete_run_is_extended() {
        let object = || ObjectRef { name: "seed".to_owned(), bytes: 0, hash: String::new() };
        let seed = SeedRecord {
            origin: String::new(),
            step: 0,
            steps: 0,
            weights: object(),
            state: None,
            validation_loss: None,
            imported: None,
        };
        let path = |steps, measured| PathRecord { steps, measured, ..PathRecord::default() };
        let training = |paths| TrainingRecord {
            origin: String::new(),
            rounds: 3,
            inner_steps: 5,
            boundaries: Vec::new(),
            phase: 0,
            shards: Vec::new(),
            modules: Vec::new(),
            paths,
            numerics: None,
            numerics_token: None,
        };
        let mut manifest = RunManifest { seed: Some(seed), ..RunManifest::new("run".to_owned()) };
        assert!(matches!(check_finished(&manifest), Err(ExtensionError::NotTrained)));
        manifest.training = Some(training(vec![path(15, true), path(10, false)]));
        let unfinished = check_finished(&manifest).unwrap_err();
        assert!(unfinished.to_string().contains("2 of 3 rounds are done"), "{unfinished}");
        // All steps are taken, but the last outer step may not be.
        manifest.training = Some(training(vec![path(15, true), path(15, false)]));
        assert!(matches!(check_finished(&manifest), Err(ExtensionError::Unfinished { .. })));
        manifest.training = Some(training(vec![path(15, true), path(15, true)]));
        assert!(check_finished(&manifest).is_ok());
    }
}
