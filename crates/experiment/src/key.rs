//! Identities: short hashes of everything that a result depends on.

use std::path::{Path, PathBuf};

use dipaco_config::{RunConfig, TrainConfig};
use dipaco_topology::TopologyConfig;

use crate::cell::{CellEvaluation, EvaluatedModel};

/// Hexadecimal digits of a key: 80 bits.
const DIGITS: usize = 20;

/// The revision of all that turns a configuration into results: preparation, routing, training and evaluation. A change after
/// which the same configuration has other results raises it, so that no cell of an earlier program passes for one of this.
const REVISION: u32 = 4;

/// The key of a folder of prepared text, from the settings of preparation and the paths of the text. The folder itself holds
/// hashes that detect changed text.
#[must_use]
pub fn data_key(config: &RunConfig, inputs: &[PathBuf], validation: &[PathBuf]) -> String {
    let only = RunConfig { prepare: config.prepare.clone(), ..RunConfig::default() };
    let places = |paths: &[PathBuf]| paths.iter().map(|path| absolute(path)).collect::<Vec<_>>().join("\n");
    key(&only, &["data", &places(inputs), &places(validation)])
}

/// The key of a seed model. `data` is the content hash of the training text.
#[must_use]
pub fn seed_key(config: &RunConfig, data: &str) -> String {
    key(&seed_config(config), &["seed", data])
}

/// The configuration of a run that only trains the seed model: the values that its weights depend on, and defaults for all
/// other keys.
#[must_use]
pub fn seed_config(config: &RunConfig) -> RunConfig {
    let mut only = RunConfig {
        model: config.model.clone(),
        topology: TopologyConfig::dense(config.model.blocks),
        seed_model: config.seed_model.of_weights(),
        train: TrainConfig { packing: config.train.packing, ..TrainConfig::default() },
        ..RunConfig::default()
    };
    only.run.seed = config.run.seed;
    if config.routing.router_share > 0.0 {
        // The seed model does not read the documents that are reserved for routers.
        (only.routing.router_share, only.routing.seed) = (config.routing.router_share, config.routing.seed);
    }
    only
}

/// The key of a trained cell. `data` holds the content hashes of the files that it reads.
#[must_use]
pub fn cell_key(config: &RunConfig, data: &str) -> String {
    key(&as_keyed(config), &["cell", data])
}

/// The values that the weights of a cell depend on, and defaults for all other keys.
fn as_keyed(config: &RunConfig) -> RunConfig {
    let mut only = config.clone();
    only.prepare = RunConfig::default().prepare;
    only.evaluation = RunConfig::default().evaluation;
    if config.train.holdout_sequences > 0 {
        // Held-out losses do not count these tokens, and choose the best versions of the paths.
        only.evaluation.prefix_tokens = config.evaluation.prefix_tokens;
    }
    only.transformer_router = RunConfig::default().transformer_router;
    only.seed_model = config.seed_model.of_weights();
    only.train = config.train.of_weights();
    only
}

/// The key of an evaluation of a cell with its vocabulary set. `labels` is the hash of the label file for results by domain.
#[must_use]
pub fn evaluation_key(evaluation: &CellEvaluation, labels: Option<&str>) -> String {
    let version = if evaluation.early_stopping { "best" } else { "last" };
    let labels = labels.unwrap_or("no labels");
    let model = match evaluation.model {
        EvaluatedModel::Routed => "routed".to_owned(),
        EvaluatedModel::Ensemble(paths) => format!("ensemble of {paths}"),
        EvaluatedModel::Oracle => "oracle".to_owned(),
        EvaluatedModel::RandomPath => "random path".to_owned(),
        EvaluatedModel::Soup => "soup".to_owned(),
        EvaluatedModel::Seed => "seed".to_owned(),
        EvaluatedModel::Imported => "imported".to_owned(),
    };
    key(&evaluation.config, &["evaluation", version, labels, &model])
}

fn key(config: &RunConfig, more: &[&str]) -> String {
    key_of_revision(REVISION, config, more)
}

/// Hashes all values that influence a result, those with their default as well: a default may change.
fn key_of_revision(revision: u32, config: &RunConfig, more: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&revision.to_le_bytes());
    for part in more {
        hasher.update(part.as_bytes()).update(b"\0");
    }
    hasher.update(config.hash().as_bytes());
    hasher.finalize().to_hex()[..DIGITS].to_owned()
}

fn absolute(path: &Path) -> String {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_other_algorithms_or_defaults_has_other_keys() {
        let config = RunConfig::default();
        let cell = |revision| key_of_revision(revision, &config, &["cell", "data"]);
        assert_ne!(cell(1), cell(2));
        let without_values =
            blake3::Hasher::new().update(&1u32.to_le_bytes()).update(b"cell\0data\0").finalize();
        assert_ne!(
            cell(1),
            without_values.to_hex()[..DIGITS],
            "a value with its default is a part of the key"
        );
    }

    #[test]
    fn the_tokens_that_held_out_losses_do_not_count_are_in_the_key_of_a_cell_with_such_losses() {
        let key = |holdout_sequences, prefix_tokens| {
            let mut config = RunConfig::default();
            config.train.holdout_sequences = holdout_sequences;
            config.evaluation.prefix_tokens = prefix_tokens;
            cell_key(&config, "data")
        };
        assert_ne!(key(128, 32), key(128, 40));
        assert_eq!(key(0, 32), key(0, 40));
        // Earlier programs left all keys of [evaluation] out. Their cells with the default are found by the same key.
        assert_eq!(key(128, 32), key_of_revision(REVISION, &RunConfig::default(), &["cell", "data"]));
    }
}
