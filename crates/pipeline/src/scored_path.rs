//! Paths on the device that evaluates them.

use dipaco_config::RunConfig;
use dipaco_eval::LanguageModel;
use dipaco_model::Path;
use dipaco_path::{PathReader, ReaderSize, TrainDevice};
use dipaco_routing::BoxError;
use dipaco_shards::TokenBatch;

use crate::error::PipelineError;

/// A device with the size of an evaluation's batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoringDevice<'a> {
    device: &'a TrainDevice,
    size: ReaderSize,
}

impl<'a> ScoringDevice<'a> {
    /// A device for the batches of `evaluation`.
    pub(crate) fn new(device: &'a TrainDevice, config: &RunConfig) -> Self {
        let evaluation = &config.evaluation;
        let tokens =
            if evaluation.sequence_tokens == 0 { config.model.context } else { evaluation.sequence_tokens };
        Self { device, size: ReaderSize { sequences: evaluation.batch_sequences, tokens } }
    }

    /// Puts a path on the device.
    pub(crate) fn place(self, path: Path) -> Result<ScoredPath, PipelineError> {
        let context = path.config().context;
        Ok(ScoredPath { reader: PathReader::new(self.device, path, self.size)?, context })
    }
}

/// A path that scores tokens on a device.
#[derive(Debug)]
pub(crate) struct ScoredPath {
    reader: PathReader,
    context: usize,
}

impl LanguageModel for ScoredPath {
    fn context(&self) -> usize {
        self.context
    }

    fn token_log_probs(&self, batch: &TokenBatch) -> Result<Vec<f32>, BoxError> {
        Ok(self.reader.token_log_probs(batch)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU refuses longer rows than it has memory for, and an evaluation's rows have up to `sequence_tokens` tokens.
    #[test]
    fn the_size_is_that_of_the_longest_batch_of_an_evaluation() {
        let mut config = RunConfig::default();
        config.model.context = 64;
        config.evaluation.batch_sequences = 3;
        for (sequence_tokens, tokens) in [(0, 64), (40, 40)] {
            config.evaluation.sequence_tokens = sequence_tokens;
            let size = ScoringDevice::new(&TrainDevice::Cpu, &config).size;
            assert_eq!(size, ReaderSize { sequences: 3, tokens });
        }
    }
}
