//! The part of the configuration that workers need.

use dipaco_config::{RunConfig, TrainConfig};
use dipaco_model::ModelConfig;
use dipaco_topology::{Topology, TopologyConfig, TopologyError};
use serde::{Deserialize, Serialize};

/// What a worker needs to know of the run's configuration. It comes from the coordinator with the welcome, so workers
/// have no configuration file that could differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerPlan {
    /// Widths and numbers of the transformer; the vocabulary is the tokenizer's.
    pub model: ModelConfig,
    /// Levels, modules and paths.
    pub topology: TopologyConfig,
    /// Inner steps and what they use.
    pub train: TrainConfig,
    /// The run's random seed.
    pub seed: u64,
}

impl WorkerPlan {
    /// The plan of a configuration whose `model.vocab_size` has been set from the tokenizer.
    #[must_use]
    pub fn new(config: &RunConfig) -> Self {
        Self {
            model: config.model.clone(),
            topology: config.topology.clone(),
            train: config.train.clone(),
            seed: config.run.seed,
        }
    }

    /// The topology over this model's blocks.
    ///
    /// # Errors
    /// When the levels do not fit the model.
    pub fn topology(&self) -> Result<Topology, TopologyError> {
        Topology::new(&self.topology, self.model.blocks)
    }

    /// Inner steps of a path over the whole run: what the learning-rate schedule spans.
    #[must_use]
    pub fn total_steps(&self) -> u64 {
        u64::from(self.train.rounds) * self.train.inner_steps
    }
}
