//! The speed of a worker, measured on a small part of its work.

use dipaco_config::{RunConfig, TrainConfig};
use dipaco_model::{ModelConfig, step_memory};
use dipaco_path::TrainDevice;
use dipaco_telemetry::{Progress, ProgressUnit, human};
use serde::Serialize;

use crate::steps::error::StepError;
use crate::steps::step_speed::{Effort, Subject, measure, shape};

/// Tokens of a measured pass: enough that products are at their speed, few enough that it is over in seconds.
const TOKENS: usize = 2048;
/// Measuring ends with the step in which this many seconds are over.
const EFFORT: Effort = Effort { warm_up: 1, steps: 3, seconds: 5.0 };

/// What one worker is expected to reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Speed {
    pub(crate) tokens_per_second: f64,
    pub(crate) seconds_per_step: f64,
    /// Blocks of the largest path that was measured.
    pub(crate) measured_blocks: usize,
    /// Sequences of a measured pass.
    pub(crate) measured_sequences: usize,
}

impl Speed {
    /// How it was got, in words.
    pub(crate) fn how(&self, model: &ModelConfig) -> String {
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

/// Measures synthetic steps of the configuration, whose vocabulary is known, with the threads of the pool. The inner
/// `Err` says why it can't; `Ok(None)` means that `stop` said so.
pub(crate) fn measured(
    config: &RunConfig,
    available: Option<u64>,
    progress: &Progress,
    stop: impl Fn() -> bool,
) -> Result<Option<Result<Speed, String>>, StepError> {
    let train = &config.train;
    let sequences = (TOKENS / train.sequence_tokens.max(1)).clamp(1, shape(train).at_once());
    let small = TrainConfig { batch: sequences, micro_batch: 0, ..train.clone() };
    let of = |blocks| Subject { model: ModelConfig { blocks, ..config.model.clone() }, train: small.clone() };
    let blocks = config.model.blocks.min(2);
    let needs = step_memory(&of(blocks).model, &shape(&small)).total();
    match available {
        None => {
            return Ok(Some(Err("not measured: this system does not tell how much memory is free".into())));
        }
        Some(available) if needs > available => {
            let (needs, available) = (human::bytes(needs), human::bytes(available));
            let why =
                format!("not measured: {blocks} of its blocks need {needs}, and {available} are available");
            return Ok(Some(Err(why)));
        }
        Some(_) => {}
    }
    let measurements = if config.model.blocks > 2 { vec![1, 2] } else { vec![config.model.blocks] };
    let all = measurements.len() * (EFFORT.warm_up + EFFORT.steps);
    let task = progress.task("measure", Some(all as u64), ProgressUnit::Count("steps"));
    let mut costs = Vec::new();
    for blocks in measurements {
        let Some(found) = measure(&TrainDevice::Cpu, &of(blocks), EFFORT, &task, &stop)? else {
            return Ok(None);
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
    Ok(Some(Ok(Speed {
        tokens_per_second: tokens / seconds_per_step,
        seconds_per_step,
        measured_blocks: blocks,
        measured_sequences: sequences,
    })))
}

/// Every block costs the same, whatever comes before and after the blocks. Noise can't make a block cost less than
/// nothing.
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
