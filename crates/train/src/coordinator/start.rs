//! The start of a training run: the first manifest, whose modules are parts of the seed model.

use std::sync::Arc;

use dipaco_config::RunConfig;
use dipaco_ledger::check_shards;
use dipaco_model::{ModuleWeights, path_specs, split};
use dipaco_store::{
    CountRecord, FragmentRecord, Loaded, ModuleRecord, ObjectRef, PathRecord, RunManifest, RunStore,
    ShardRecord, TrainingRecord, names,
};
use dipaco_topology::Topology;
use serde::Serialize;

use crate::coordinator::error::CoordinatorError;
use crate::open_run::OpenRun;
use crate::stored_modules::read_module;
use dipaco_path::{HELD_OUT_RULE, Layout, module_files};
use dipaco_protocol::WorkerPlan;

/// A hash of all inputs of a training's results except the shards: the configuration of model, topology, training, phases
/// and outer step, the run's seed, and the weights at the start ([`RunManifest::start_hash`]). With held-out documents also
/// the rule that chooses them, and with held-out losses the tokens that these do not count: the losses choose the best
/// versions of the paths, and losses over other tokens can't be compared.
///
/// # Errors
/// When the configuration can't be written as JSON.
pub fn training_origin(config: &RunConfig, start: &str) -> Result<String, CoordinatorError> {
    let RunConfig { model, topology, train, routing, sync, outer, run, evaluation, .. } = config;
    let inputs = (model, topology, &train.of_weights(), &routing.phases, sync, outer, run.seed);
    let rule = (train.holdout_fraction > 0.0).then_some(HELD_OUT_RULE);
    match (rule, train.holdout_sequences) {
        (None, _) => hash_of(&(inputs, start)),
        (Some(rule), 0) => hash_of(&(inputs, rule, start)),
        (Some(rule), _) => hash_of(&(inputs, rule, start, evaluation.prefix_tokens)),
    }
}

fn hash_of(inputs: &impl Serialize) -> Result<String, CoordinatorError> {
    let text = serde_json::to_string(inputs).map_err(|source| CoordinatorError::ConfigJson { source })?;
    Ok(blake3::hash(text.as_bytes()).to_hex().to_string())
}

/// Begins training: cuts the seed model into modules and writes version 0 of each. An extension has version 0 of its modules
/// already, and its kept paths are complete.
///
/// A run that has begun before is continued if `resume` is true and all inputs of its weights are the same. `shards` are
/// the shards of its current phase.
///
/// # Errors
/// When there is no finished seed, when the run has begun and may not be continued, or when the store can't be written.
pub async fn start_training(
    store: &RunStore,
    config: &RunConfig,
    shards: Vec<ShardRecord>,
    resume: bool,
) -> Result<OpenRun, CoordinatorError> {
    let Some(Loaded { mut manifest, sequence, warnings }) = store.load::<RunManifest>().await? else {
        return Err(CoordinatorError::NoSeed);
    };
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let seed = manifest.seed.as_ref().filter(|seed| seed.finished()).ok_or(CoordinatorError::NoSeed)?;
    let start = manifest.start_hash().ok_or(CoordinatorError::NoSeed)?;
    let origin = training_origin(config, &start)?;
    if let Some(training) = &manifest.training {
        if training.origin != origin || training.shards != shards {
            return Err(CoordinatorError::OtherTraining);
        }
        if !resume {
            return Err(CoordinatorError::AlreadyStarted {
                rounds: training.rounds_done(),
                of: training.rounds,
            });
        }
        return Ok(OpenRun { manifest, sequence });
    }
    let topology = Topology::new(&config.topology, config.model.blocks)?;
    check_shards(&topology, &shards)?;
    let plan = WorkerPlan::new(config);
    let schedule = plan.schedule()?;
    let modules = match &mut manifest.extension {
        Some(extension) => std::mem::take(&mut extension.modules),
        None => modules_of_seed(store, &plan, &topology, &seed.weights).await?,
    };
    if !modules.iter().map(|record| record.module).eq(topology.module_ids()) {
        return Err(CoordinatorError::OtherExtension);
    }
    let fragments = topology.levels() * config.sync.fragments as usize;
    let path = PathRecord {
        sent: vec![0; fragments],
        adopted: vec![0; fragments],
        counted: vec![CountRecord::default(); fragments],
        ..PathRecord::default()
    };
    let kept = PathRecord { steps: schedule.total(), measured: true, ..path.clone() };
    let of = |id| if topology.path_trains(id) { path.clone() } else { kept.clone() };
    let paths = topology.path_ids().map(of).collect();
    manifest.training = Some(TrainingRecord {
        origin,
        rounds: config.train.rounds,
        inner_steps: config.train.inner_steps,
        boundaries: plan.boundaries,
        phase: 0,
        shards,
        modules,
        paths,
        numerics: None,
        numerics_token: None,
    });
    // Last: no manifest names the objects above before this write. A start that ends early is repeated, and replaces them.
    let sequence = store.replace(&manifest, sequence).await?;
    Ok(OpenRun { manifest, sequence })
}

/// Cuts the seed into modules, and writes the objects of their fragments.
async fn modules_of_seed(
    store: &RunStore,
    plan: &WorkerPlan,
    topology: &Topology,
    seed: &ObjectRef,
) -> Result<Vec<ModuleRecord>, CoordinatorError> {
    let dense: Arc<[_]> = path_specs(&plan.model).into();
    let weights = read_module(store, seed, dense).await?;
    let layout = Layout::of_plan(plan, topology)?;
    let mut modules: Vec<_> =
        topology.module_ids().map(|module| ModuleRecord { module, fragments: Vec::new() }).collect();
    for (level, part) in (0u16..).zip(split(&plan.model, topology, &weights)?) {
        for (number, fragment) in (0u32..).zip(layout.fragments(level)?) {
            let values = fragment.gather(&part.values);
            let file = module_files::encode(&ModuleWeights { specs: fragment.specs.clone(), values })?;
            // The modules of a level begin equal, with an object each, because later versions are deleted module by module.
            let of_level = topology.module_ids().filter(|module| module.level == level);
            let named: Vec<_> = of_level.map(|module| names::weights(module, number, 0, 0)).collect();
            let stored = store.put_replacing_each(named, &file).await?;
            let of_level = modules.iter_mut().filter(|record| record.module.level == level);
            for (record, weights) in of_level.zip(stored) {
                record.fragments.push(FragmentRecord::first(weights));
            }
        }
    }
    Ok(modules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(holdout_sequences: u64, prefix_tokens: usize) -> RunConfig {
        let mut config = RunConfig::default();
        config.train.holdout_sequences = holdout_sequences;
        config.evaluation.prefix_tokens = prefix_tokens;
        config
    }

    #[test]
    fn a_training_with_held_out_losses_keeps_the_tokens_that_they_do_not_count() {
        let origin = |sequences, prefix| training_origin(&config(sequences, prefix), "start").unwrap();
        assert_eq!(origin(128, 32), origin(128, 32));
        assert_ne!(origin(128, 40), origin(128, 32), "its losses can't be compared with those before");
        assert_eq!(origin(0, 32), origin(0, 40), "nothing is measured");
    }

    #[test]
    fn only_a_training_with_held_out_documents_depends_on_their_rule() {
        let without_rule = |config: &RunConfig| {
            let RunConfig { model, topology, train, routing, sync, outer, run, .. } = config;
            let inputs = (model, topology, &train.of_weights(), &routing.phases, sync, outer, run.seed);
            hash_of(&(inputs, "start")).unwrap()
        };
        let mut config = config(0, 32);
        assert_ne!(training_origin(&config, "start").unwrap(), without_rule(&config));
        config.train.holdout_fraction = 0.0;
        assert_eq!(training_origin(&config, "start").unwrap(), without_rule(&config));
    }

    #[test]
    fn a_refused_training_may_be_one_of_an_earlier_program() {
        assert!(
            CoordinatorError::OtherTraining.to_string().contains("by an earlier version of this program")
        );
    }
}
