//! The expected speed of a worker, measured on a small part of its work.

use dipaco_config::{RunConfig, TrainConfig};
use dipaco_model::{ModelConfig, backward_blocks, parameters, path_specs, trained_specs};
use dipaco_path::TrainDevice;
use dipaco_telemetry::{Progress, ProgressUnit, human};
use dipaco_topology::{LevelConfig, Modules, Topology, TopologyConfig};
use serde::Serialize;

use crate::error::PipelineError;
use crate::step_speed::{Effort, StepSubject, measure, shape};

/// Tokens of a measured pass: enough for the products to reach their full speed, few enough to end within seconds.
const TOKENS: usize = 2048;
/// The measurement ends with the first step that ends after 5 seconds.
const EFFORT: Effort = Effort { warm_up: 1, steps: 3, seconds: 5.0 };

/// The expected speed of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Training tokens per second.
    pub tokens_per_second: f64,
    /// Seconds of an inner step.
    pub seconds_per_step: f64,
    /// Blocks of the largest measured path.
    pub measured_blocks: usize,
    /// Sequences of a measured pass.
    pub measured_sequences: usize,
}

impl Speed {
    /// The method of the measurement, in words.
    pub fn how(&self, model: &ModelConfig) -> String {
        let sequences = match self.measured_sequences {
            1 => "1 sequence".to_owned(),
            sequences => format!("{sequences} sequences"),
        };
        if self.measured_blocks == model.blocks {
            return format!("measured on {sequences} of random tokens, with nothing else running");
        }
        format!(
            "measured on {sequences} of random tokens with 1 and 2 blocks, extrapolated to {}, with nothing else running",
            model.blocks
        )
    }
}

/// Seconds of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    /// Forward and backward pass.
    passes: f64,
    optimizer: f64,
}

/// The result of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// The speed of one worker.
    Speed(Speed),
    /// Nothing was measured.
    Not {
        /// The reason, for the user.
        reason: String,
    },
}

/// Measures steps on random tokens with the threads of the pool. `config` has its vocabulary; `available` is the free
/// memory in bytes.
///
/// # Errors
/// [`PipelineError::Interrupted`] when `stop` returned true, and the errors of the trainer.
pub fn measured(
    config: &RunConfig,
    available: Option<u64>,
    progress: &Progress,
    stop: impl Fn() -> bool,
) -> Result<Measured, PipelineError> {
    let train = &config.train;
    let sequences = (TOKENS / train.sequence_tokens.max(1)).clamp(1, shape(train).at_once());
    let small = TrainConfig { batch: sequences, micro_batch: 0, ..train.clone() };
    let topology = Topology::new(&config.topology, config.model.blocks)?;
    let of = |blocks, topology: Topology| StepSubject {
        model: ModelConfig { blocks, ..config.model.clone() },
        topology,
        train: small.clone(),
    };
    let frozen = config.model.blocks - backward_blocks(&config.model, &topology).len();
    let subjects = if config.model.blocks > 2 {
        let mut subjects = vec![of(1, levels(0, 1)?), of(2, levels(0, 2)?)];
        if frozen > 0 {
            subjects.push(of(2, levels(1, 2)?));
        }
        subjects
    } else {
        vec![of(config.model.blocks, topology.clone())]
    };
    let blocks = config.model.blocks.min(2);
    let needs = subjects.iter().map(|subject| subject.memory().total());
    let needs = needs.max().unwrap_or(0);
    match available {
        None => {
            let reason = "not measured: this system does not tell how much memory is free".to_owned();
            return Ok(Measured::Not { reason });
        }
        Some(available) if needs > available => {
            let (needs, available) = (human::bytes(needs), human::bytes(available));
            let reason =
                format!("not measured: {blocks} of its blocks need {needs}, and {available} are available");
            return Ok(Measured::Not { reason });
        }
        Some(_) => {}
    }
    let all = subjects.len() * (EFFORT.warm_up + EFFORT.steps);
    let task = progress.task("measure", Some(all as u64), ProgressUnit::Count("steps"));
    let mut costs = Vec::new();
    for subject in &subjects {
        let Some(found) = measure(&TrainDevice::Cpu, subject, EFFORT, &task, || (), &stop)? else {
            return Err(PipelineError::Interrupted);
        };
        let optimizer = found.phases.optimizer;
        costs.push(Cost { passes: (found.median() - optimizer).max(0.0), optimizer });
    }
    task.finish();
    let whole = match costs.as_slice() {
        [one, two, below @ ..] => {
            let whole = extrapolate(*one, *two, config.model.blocks);
            let trained = parameters(&trained_specs(&config.model, &topology)) as f64;
            let share = trained / parameters(&path_specs(&config.model)).max(1) as f64;
            // A block without a backward pass is cheaper by the difference of the second and the third measurement.
            let saved = below.first().map_or(0.0, |below| (two.passes - below.passes).max(0.0));
            let passes = (whole.passes - frozen as f64 * saved).max(0.0);
            Cost { passes, optimizer: whole.optimizer * share }
        }
        [all] => *all,
        [] => Cost { passes: 0.0, optimizer: 0.0 },
    };
    let seconds_per_step = whole.passes * train.batch as f64 / sequences as f64 + whole.optimizer;
    let tokens = train.batch as f64 * train.sequence_tokens as f64;
    Ok(Measured::Speed(Speed {
        tokens_per_second: tokens / seconds_per_step,
        seconds_per_step,
        measured_blocks: blocks,
        measured_sequences: sequences,
    }))
}

/// A path of `blocks` blocks whose first `frozen` blocks do not train, nor the embedding below them.
fn levels(frozen: usize, blocks: usize) -> Result<Topology, PipelineError> {
    let mut config = TopologyConfig::dense(blocks);
    if let Some(level) = config.levels.first_mut().filter(|_| frozen > 0) {
        (level.blocks, level.embedding) = (format!("{frozen}..{blocks}"), false);
        let modules = Modules::Count(1);
        let blocks = format!("0..{frozen}");
        config.levels.push(LevelConfig { modules, blocks, embedding: true, head: false, frozen: true });
    }
    Ok(Topology::new(&config, blocks)?)
}

/// The cost of `blocks` blocks from the costs of one and two: every block costs the same, and embedding and head cost the
/// same for any number of blocks. Noise must not give a block a negative cost.
fn extrapolate(one: Cost, two: Cost, blocks: usize) -> Cost {
    let line = |one: f64, two: f64| one + (blocks as f64 - 1.0) * (two - one).max(0.0);
    Cost { passes: line(one.passes, two.passes), optimizer: line(one.optimizer, two.optimizer) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_added_up() {
        let (one, two) = (Cost { passes: 5.0, optimizer: 1.0 }, Cost { passes: 7.0, optimizer: 1.5 });
        assert_eq!(extrapolate(one, two, 12), Cost { passes: 27.0, optimizer: 6.5 });
        assert_eq!(extrapolate(two, one, 12), two, "never less than what was measured");
    }
}
