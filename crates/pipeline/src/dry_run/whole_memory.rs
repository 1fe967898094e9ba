//! Whether a training fits into the whole memory of this machine. Beyond it the system would swap for a while and then kill the
//! program. Free memory decides nothing here: other programs may end.

use dipaco_config::RunConfig;
use dipaco_model::{ModelConfig, StepShape};
use dipaco_telemetry::human;
use dipaco_topology::{Topology, TopologyConfig};
use thiserror::Error;

use super::remedies::{Remedy, remedies};
use super::{Memory, memory};
use crate::error::PipelineError;
use crate::step_speed::memory_of_step;
use crate::train::useful_workers;

/// A training that needs more than the whole memory of this machine.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{who} {} of memory, and this machine has {} in all", human::bytes(*needed), human::bytes(*total))]
pub struct TooLargeToTrain {
    /// Who needs the memory, with the verb: "the seed needs".
    pub who: &'static str,
    /// Memory that is needed, in bytes.
    pub needed: u64,
    /// Memory of the machine, in bytes.
    pub total: u64,
    /// Settings that need less memory.
    pub remedies: Vec<Remedy>,
}

impl TooLargeToTrain {
    /// The remedy, in words.
    #[must_use]
    pub fn remedy(&self) -> String {
        let fits = self.remedies.iter().filter(|remedy| remedy.fits);
        let fits: Vec<String> =
            fits.map(|remedy| format!("{} needs {}", remedy.set, human::bytes(remedy.all_workers))).collect();
        if fits.is_empty() {
            return "choose a smaller model or a larger machine".to_owned();
        }
        format!("{}; or choose a smaller model or a larger machine", fits.join(", "))
    }
}

/// The seed of a configuration with its vocabulary, if it needs more than `total` bytes. `None` also where `total` is not known.
///
/// # Errors
/// [`PipelineError::Topology`] when the model has no blocks.
pub fn seed_too_large(
    config: &RunConfig,
    total: Option<u64>,
) -> Result<Option<TooLargeToTrain>, PipelineError> {
    let (model, seed) = (&config.model, &config.seed_model);
    let topology = Topology::new(&TopologyConfig::dense(model.blocks), model.blocks)?;
    let shape = StepShape {
        batch: seed.batch,
        micro_batch: seed.micro_batch,
        sequence_tokens: seed.sequence_tokens,
        activation_checkpointing: seed.activation_checkpointing,
    };
    let needs = |model: &ModelConfig, shape: &StepShape| {
        let step = memory_of_step(model, &topology, seed.optimizer, shape);
        // A seed without steps is its first weights.
        if seed.steps == 0 { step.weights } else { step.total() }
    };
    let needed = needs(model, &shape);
    let Some(total) = total.filter(|&total| needed > total) else { return Ok(None) };
    let remedies = remedies("seed_model", model, &shape, total, &needs, None);
    Ok(Some(TooLargeToTrain { who: "the seed needs", needed, total, remedies }))
}

/// The workers on this machine of a configuration with its vocabulary, if they need more than `total` bytes together. `None` also
/// where `total` is not known.
///
/// # Errors
/// [`PipelineError::Topology`] when the topology does not fit the model.
pub fn workers_too_large(
    config: &RunConfig,
    workers: usize,
    total: Option<u64>,
) -> Result<Option<TooLargeToTrain>, PipelineError> {
    let topology = Topology::new(&config.topology, config.model.blocks)?;
    let workers = useful_workers(config, workers)?;
    let Memory { all_workers: needed, worker, remedies, .. } = memory(config, &topology, workers, total);
    let Some(total) = total.filter(|&total| needed > total) else { return Ok(None) };
    let who = if needed == worker { "a worker needs" } else { "the workers on this machine need" };
    Ok(Some(TooLargeToTrain { who, needed, total, remedies }))
}
