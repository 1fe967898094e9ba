//! The part of the configuration that workers need.

use dipaco_config::{OuterConfig, RunConfig, TrainConfig};
use dipaco_model::ModelConfig;
use dipaco_sync::{Rests, Schedule, SyncConfig};
use dipaco_topology::{Topology, TopologyConfig, TopologyError};
use serde::{Deserialize, Serialize};

use crate::PlanError;

/// The part of the run's configuration that a worker needs. The coordinator sends it with the welcome, so workers have no
/// configuration file that could differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerPlan {
    /// Sizes of the transformer; the vocabulary size comes from the tokenizer.
    pub model: ModelConfig,
    /// Levels, modules and paths.
    pub topology: TopologyConfig,
    /// Inner steps, batch, optimizer and limits of a path's training.
    pub train: TrainConfig,
    /// Scheme of outer synchronisation.
    pub sync: SyncConfig,
    /// Rounds after which the phases of routing end; the last phase ends with the run.
    pub boundaries: Vec<u32>,
    /// Encoding of outer gradients, and the outer optimizer.
    pub outer: OuterConfig,
    /// Tokens at the start of a held-out sequence that are read and not counted, as in an evaluation.
    pub uncounted_tokens: usize,
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
            uncounted_tokens: config.evaluation.prefix_tokens,
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

    /// Schedule of sends and receives of each fragment, and of the rounds in which paths rest.
    ///
    /// # Errors
    /// When the section `[sync]` does not fit the inner steps.
    pub fn schedule(&self) -> Result<Schedule, PlanError> {
        let ends = self.boundaries.iter().copied().chain([self.train.rounds]);
        let schedule = self.sync.schedule(self.seed, self.train.inner_steps, ends)?;
        if self.train.paths_per_round.all() {
            return Ok(schedule);
        }
        let topology = self.topology()?;
        let trained = self.topology.kept_paths..topology.paths();
        let changes = self.train.paths_per_round.changes().into_iter();
        let awake = changes.map(|(before, paths)| (before.into(), paths)).collect();
        Ok(schedule.resting(Rests::changing(self.seed, trained, awake))?)
    }

    /// Number of inner steps of a path over the whole run.
    #[must_use]
    pub fn total_steps(&self) -> u64 {
        u64::from(self.train.rounds) * self.train.inner_steps
    }

    /// The plan as JSON, for [`Response::Welcome`](crate::Response::Welcome).
    ///
    /// # Errors
    /// [`PlanError::Unwritable`] when a value has no JSON form.
    pub fn to_json(&self) -> Result<String, PlanError> {
        serde_json::to_string(self).map_err(PlanError::Unwritable)
    }

    /// Reads the plan of a welcome.
    ///
    /// # Errors
    /// [`PlanError::Unreadable`] when the text is no plan of this version.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        serde_json::from_str(text).map_err(PlanError::Unreadable)
    }
}
