//! The part of the configuration that workers need.

use dipaco_config::{OuterConfig, RunConfig, ScheduleAtPhase, TrainConfig};
use dipaco_model::ModelConfig;
use dipaco_sync::{Schedule, SyncConfig};
use dipaco_topology::{Topology, TopologyConfig, TopologyError};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::inner::InnerConfig;
use crate::layout::Layout;

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
    /// When paths send and receive.
    pub sync: SyncConfig,
    /// The rounds after which the phases of routing end, but for the last.
    pub boundaries: Vec<u32>,
    /// How outer gradients are written on their way to the synchronizer, and what it makes of them.
    pub outer: OuterConfig,
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
            sync: config.sync.clone(),
            boundaries: config.routing.phases.iter().map(|phase| phase.round).collect(),
            outer: config.outer.clone(),
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

    /// When paths send and receive which fragment.
    ///
    /// # Errors
    /// When the section `[sync]` does not fit the inner steps.
    pub fn schedule(&self) -> Result<Schedule, TrainError> {
        let ends = self.boundaries.iter().copied().chain([self.train.rounds]);
        Ok(self.sync.schedule(self.seed, self.train.inner_steps, ends)?)
    }

    /// Where the fragments of modules lie.
    ///
    /// # Errors
    /// When the levels do not fit the model, or a module has too few parts.
    pub fn layout(&self, topology: &Topology) -> Result<Layout, TrainError> {
        Layout::new(&self.model, topology, &self.sync)
    }

    /// Inner steps of a path over the whole run.
    #[must_use]
    pub fn total_steps(&self) -> u64 {
        u64::from(self.train.rounds) * self.train.inner_steps
    }

    /// The inner loop in a phase that begins after `phase_step` inner steps.
    #[must_use]
    pub(crate) fn inner(&self, phase_step: u64) -> InnerConfig {
        let first_step = match self.train.schedule_at_phase {
            ScheduleAtPhase::Continue => 0,
            ScheduleAtPhase::Restart => phase_step,
        };
        let inner = InnerConfig::of_path(&self.train, self.total_steps().saturating_sub(first_step));
        InnerConfig { first_step, ..inner }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_that_restarts_spans_the_rest_of_the_run() {
        let mut config = RunConfig::default();
        (config.train.rounds, config.train.inner_steps) = (10, 30);
        let spans = |config: &RunConfig, phase_step| {
            let inner = WorkerPlan::new(config).inner(phase_step);
            (inner.first_step, inner.total_steps)
        };
        assert_eq!(spans(&config, 60), (0, 300));
        config.train.schedule_at_phase = ScheduleAtPhase::Restart;
        assert_eq!(spans(&config, 0), (0, 300));
        assert_eq!(spans(&config, 60), (60, 240));
    }
}
