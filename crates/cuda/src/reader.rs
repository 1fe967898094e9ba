//! A path on a GPU that is only read.

use dipaco_model::{ModelConfig, TokenBatch, TokenRows};

use crate::arena::{Arena, Purpose};
use crate::device::Address;
use crate::engine::Engine;
use crate::nvidia::Nvidia;
use crate::path::{check_shape, largest_micro_batch};
use crate::{CudaError, Gpu, kernels};

/// One path on a GPU for forward passes: features of the router, and log-probabilities. It has no gradient and no moments,
/// so it takes a fraction of the memory of a [`crate::CudaPath`].
pub struct CudaReader {
    engine: Engine<Nvidia>,
}

impl std::fmt::Debug for CudaReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaReader")
            .field("config", &self.engine.config)
            .field("sequences", &self.engine.micro_batch)
            .finish_non_exhaustive()
    }
}

impl CudaReader {
    /// Puts a path on a GPU: compiles its kernels, allocates all memory and copies the weights, which are flat in the order
    /// of [`dipaco_model::path_specs`]. A pass takes `sequences` rows at most, or fewer where the kernels allow fewer; more
    /// rows take several passes. The memory of the activations is proportional to this number times
    /// [`ModelConfig::context`].
    ///
    /// # Errors
    /// As [`crate::CudaPath::new`].
    pub fn new(gpu: &Gpu, config: ModelConfig, sequences: usize, weights: &[f32]) -> Result<Self, CudaError> {
        check_shape(&config)?;
        let sequences = sequences.clamp(1, largest_micro_batch(&config));
        let bytes = Arena::new(&config, sequences, Purpose::Reading, Address::NULL).bytes;
        let device = Nvidia::new(gpu, bytes, &kernels::defines(&config)).map_err(to_read)?;
        Ok(Self { engine: Engine::with_weights(device, config, sequences, Purpose::Reading, weights)? })
    }

    /// Returns the features of the router after the first `blocks` blocks (B, D): the mean of their output, before the
    /// final norm, over the first `lengths` tokens of each row. With 0 blocks it is the mean of the token embeddings.
    /// Later blocks are not computed.
    ///
    /// # Errors
    /// The path has fewer blocks, there is not one length a row, a length is 0 or over T, T is over the context, the tokens
    /// are of a larger vocabulary than the path, or the GPU fails.
    pub fn features(
        &mut self,
        blocks: usize,
        tokens: &TokenRows,
        lengths: &[usize],
    ) -> Result<Vec<f32>, CudaError> {
        self.engine.features(blocks, tokens, lengths)
    }

    /// Returns `ln p(target)` in nats of each position (B, T); 0 where the target is [`dipaco_model::IGNORE`].
    ///
    /// # Errors
    /// T is over the context, the batch is of a larger vocabulary than the path, or the GPU fails.
    pub fn token_log_probs(&mut self, batch: &TokenBatch) -> Result<Vec<f32>, CudaError> {
        self.engine.token_log_probs(batch)
    }
}

/// An error with the remedy for a path that does not train.
fn to_read(error: CudaError) -> CudaError {
    let remedy = "lower routing.batch_documents for features or evaluation.batch_sequences for scores";
    match error {
        CudaError::Memory { needed, free, total, .. } => CudaError::Memory { needed, free, total, remedy },
        other => other,
    }
}
