//! The expected speed of a worker, measured on a small part of its work.

use dipaco_config::{RunConfig, TrainConfig};
use dipaco_model::{ModelConfig, step_memory};
use dipaco_path::TrainDevice;
use dipaco_telemetry::{Progress, ProgressUnit, human};
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
    let of =
        |blocks| StepSubject { model: ModelConfig { blocks, ..config.model.clone() }, train: small.clone() };
    let blocks = config.model.blocks.min(2);
    let needs = step_memory(&of(blocks).model, &shape(&small)).total();
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
    let measurements = if config.model.blocks > 2 { vec![1, 2] } else { vec![config.model.blocks] };
    let all = measurements.len() * (EFFORT.warm_up + EFFORT.steps);
    let task = progress.task("measure", Some(all as u64), ProgressUnit::Count("steps"));
    let mut costs = Vec::new();
    for blocks in measurements {
        let Some(found) = measure(&TrainDevice::Cpu, &of(blocks), EFFORT, &task, &stop)? else {
            return Err(PipelineError::Interrupted);
        };
        let optimizer = found.phases.optimizer;
        costs.push(Cost { passes: (found.median() - optimizer).max(0.0), optimizer });
    }
    task.finish();
    let whole = match costs.as_slice() {
        [one, two] => extrapolate(*one, *two, config.model.blocks),
        [all] => *all,
        _ => Cost { passes: 0.0, optimizer: 0.0 },
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
