//! A path on a GPU.

use dipaco_model::{Loss, ModelConfig, TokenBatch};
use dipaco_optim::AdamWConfig;

use crate::arena::{Arena, Purpose};
use crate::device::Address;
use crate::engine::Engine;
use crate::nvidia::Nvidia;
use crate::{CudaError, Gpu, Trained, kernels};

/// Memory options of training a path on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Sequences per forward and backward pass. A step of a larger batch adds up the gradients of several passes. The
    /// memory of the activations is proportional to this number.
    pub micro_batch: usize,
    /// True to recompute the activations of each block from its input in the backward pass instead of keeping the
    /// activations of all blocks: a third more work for much less memory.
    pub checkpointing: bool,
}

/// Numbers of a path to upload, each flat in the order of [`dipaco_model::path_specs`].
#[derive(Clone, Copy, Debug)]
pub struct PathUpload<'a> {
    /// Weights.
    pub weights: &'a [f32],
    /// The parameters that train.
    pub trained: &'a Trained,
    /// First moments of AdamW, of the trained parameters.
    pub first: &'a [f32],
    /// Second moments of AdamW, of the trained parameters.
    pub second: &'a [f32],
    /// Steps taken so far.
    pub step: u64,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CudaStep {
    /// Loss of the batch. If it or the gradient's norm is not finite, the step was not taken: weights, moments and the
    /// number of steps are unchanged.
    pub loss: Loss,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
}

/// GPU time of one kernel or of all products of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// Name of the kernel, or `product rows × inner × columns`.
    pub what: String,
    /// Number of runs.
    pub runs: u32,
    /// Time of all runs, in seconds.
    pub seconds: f64,
}

/// One path on a GPU with its gradient, its moments and all memory of its steps.
pub struct CudaPath {
    engine: Engine<Nvidia>,
}

impl std::fmt::Debug for CudaPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaPath")
            .field("config", &self.engine.config)
            .field("micro_batch", &self.engine.micro_batch)
            .field("purpose", &self.engine.purpose)
            .field("steps", &self.engine.steps())
            .finish_non_exhaustive()
    }
}

/// Checks the limits of the kernels before any memory is allocated.
fn check(config: &ModelConfig, options: &CudaOptions) -> Result<(), CudaError> {
    check_shape(config)?;
    let largest = largest_micro_batch(config);
    if options.micro_batch == 0 || options.micro_batch > largest {
        let (key, size) = ("micro_batch of [train] or [seed_model]", options.micro_batch);
        let problem = format!("is {size}: on a GPU it must be from 1 to {largest}");
        return Err(CudaError::Shape { key, problem });
    }
    Ok(())
}

/// Returns the largest number of sequences of a pass, for a shape that [`check_shape`] accepts.
pub(crate) fn largest_micro_batch(config: &ModelConfig) -> usize {
    // The second dimension of a grid is the sequences times the heads, and CUDA allows 65,535 there. Kernels count rows
    // in 32 bits; 2^24 rows leave room for the products with a width. One kernel counts the heads of all rows in an int.
    let of_heads = i32::MAX as usize / (config.heads * config.context);
    (65_535 / config.heads).min((1 << 24) / config.context).min(of_heads)
}

/// Checks the limits of the kernels on the shape of the path.
pub(crate) fn check_shape(config: &ModelConfig) -> Result<(), CudaError> {
    let error = |key, problem: String| Err(CudaError::Shape { key, problem });
    let sizes = [
        ("model.hidden_size", config.hidden_size, 16_384),
        ("model.blocks", config.blocks, 1 << 20),
        ("model.heads", config.heads, 1024),
        ("model.head_dim", config.head_dim, 256),
        ("model.ffn_size", config.ffn_size, 1 << 20),
        ("model.vocab_size", config.vocab_size, 1 << 24),
        ("model.context", config.context, 1 << 20),
    ];
    for (key, size, largest) in sizes {
        if size == 0 || size > largest {
            return error(key, format!("is {size}: on a GPU it must be from 1 to {largest}"));
        }
    }
    if !config.head_dim.is_multiple_of(2) {
        return error("model.head_dim", format!("is {}: it must be even", config.head_dim));
    }
    if config.outputs != 0 {
        let problem = "of a router are not computed on a GPU: train it on the CPU".to_owned();
        return error("the head's outputs", problem);
    }
    Ok(())
}

impl CudaPath {
    /// Returns the GPU memory of a path, in bytes, without the 32 MiB of cuBLASLt and the memory of the driver.
    ///
    /// # Errors
    /// The kernels do not support the shape.
    pub fn memory(config: &ModelConfig, options: &CudaOptions) -> Result<usize, CudaError> {
        check(config, options)?;
        let purpose = Purpose::Training { checkpointing: options.checkpointing };
        Ok(Arena::new(config, options.micro_batch, purpose, Address::NULL).bytes)
    }

    /// Puts a path on a GPU: compiles its kernels, allocates all memory and copies the numbers. Products multiply
    /// numbers of the type [`ModelConfig::dtype`]: f32 without TF32, or bf16 on the tensor cores with f32 sums.
    ///
    /// # Errors
    /// The kernels do not support the shape or do not compile, the path has another number of parameters, the GPU has
    /// too little memory, or the driver returns an error.
    pub fn new(
        gpu: &Gpu,
        config: ModelConfig,
        options: CudaOptions,
        path: &PathUpload<'_>,
    ) -> Result<Self, CudaError> {
        let bytes = Self::memory(&config, &options)?;
        let device = Nvidia::new(gpu, bytes, &kernels::defines(&config))?;
        Ok(Self { engine: Engine::new(device, config, options, path)? })
    }

    /// True if a path of this shape and these options on this GPU can take over this path's memory with
    /// [`CudaPath::reload`].
    #[must_use]
    pub fn has_shape(&self, gpu: &Gpu, config: &ModelConfig, options: CudaOptions) -> bool {
        let Engine { device, config: own, micro_batch, purpose, .. } = &self.engine;
        let checkpointing = options.checkpointing;
        device.is_on(gpu)
            && own == config
            && *micro_batch == options.micro_batch
            && *purpose == Purpose::Training { checkpointing }
    }

    /// Replaces the path by another one of the same shape, in the same memory.
    ///
    /// # Errors
    /// The path has another number of parameters, or the GPU fails; the path here is damaged then.
    pub fn reload(&mut self, path: &PathUpload<'_>) -> Result<(), CudaError> {
        self.engine.reload(path)
    }

    /// Takes one AdamW step on a batch (B, T). A target of [`dipaco_model::IGNORE`] is not counted. The gradient is clipped
    /// as with [`dipaco_optim::clip_scale`].
    ///
    /// `learning_rate` is the rate of this step; [`AdamWConfig::learning_rate`] is the peak and is not read. If the
    /// loss or the gradient is not finite, the step changes nothing; the result shows the number that is not finite.
    ///
    /// # Errors
    /// T is over the context, the batch is of a larger vocabulary than the path, or the GPU fails.
    pub fn step(
        &mut self,
        batch: &TokenBatch,
        adamw: &AdamWConfig,
        learning_rate: f64,
    ) -> Result<CudaStep, CudaError> {
        self.engine.step(batch, adamw, learning_rate)
    }

    /// Takes a step as [`CudaPath::step`] does and returns the GPU time of each kernel too, the longest first. Timing
    /// takes time itself: measure the speed of steps without it.
    ///
    /// # Errors
    /// As [`CudaPath::step`].
    pub fn profiled_step(
        &mut self,
        batch: &TokenBatch,
        adamw: &AdamWConfig,
        learning_rate: f64,
    ) -> Result<(CudaStep, Vec<KernelTime>), CudaError> {
        self.engine.device.begin_profile();
        let step = self.engine.step(batch, adamw, learning_rate);
        let times = self.engine.device.end_profile();
        Ok((step?, times?))
    }

    /// Returns the mean cross entropy of the targets.
    ///
    /// # Errors
    /// As [`CudaPath::step`].
    pub fn loss(&mut self, batch: &TokenBatch) -> Result<Loss, CudaError> {
        let (losses, counted) = self.engine.losses(batch)?;
        let sum: f64 = losses.into_iter().map(f64::from).sum();
        Ok(Loss { mean: (sum / counted.max(1) as f64) as f32, counted })
    }

    /// Returns `ln p(target)` in nats of each position (B, T); 0 where the target is [`dipaco_model::IGNORE`].
    ///
    /// # Errors
    /// As [`CudaPath::step`].
    pub fn token_log_probs(&mut self, batch: &TokenBatch) -> Result<Vec<f32>, CudaError> {
        self.engine.token_log_probs(batch)
    }

    /// Returns the number of steps taken so far, including the steps before the upload to the GPU.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.engine.steps()
    }

    /// Copies the weights from the GPU.
    ///
    /// # Errors
    /// The GPU fails.
    pub fn weights(&mut self) -> Result<Vec<f32>, CudaError> {
        self.engine.read(self.engine.arena.weights)
    }

    /// Copies the first and second moments of AdamW, of the trained parameters, from the GPU to memory that is there.
    ///
    /// # Errors
    /// The slices are shorter or longer, or the GPU fails.
    pub fn moments_into(&mut self, first: &mut [f32], second: &mut [f32]) -> Result<(), CudaError> {
        self.engine.read_trained("first", self.engine.arena.first, first)?;
        self.engine.read_trained("second", self.engine.arena.second, second)
    }

    /// Copies the gradient of the last step, before clipping, from the GPU: P numbers, 0 for a frozen parameter.
    ///
    /// # Errors
    /// The GPU fails.
    pub fn gradient(&mut self) -> Result<Vec<f32>, CudaError> {
        self.engine.read(self.engine.arena.gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_micro_batch_keeps_every_count_of_the_kernels_in_its_type() {
        for heads in [1, 2, 3, 64, 512, 1024] {
            for context in [1, 2, 1000, 1 << 12, 1 << 17, 1 << 18, (1 << 20) - 1, 1 << 20] {
                let config = ModelConfig { heads, context, vocab_size: 1000, ..ModelConfig::default() };
                check_shape(&config).unwrap();
                let largest = largest_micro_batch(&config);
                assert!(largest > 0, "{heads} heads, context {context}");
                assert!(largest * heads <= 65_535, "{heads} heads, context {context}: the grid");
                assert!(largest * context <= 1 << 24, "{heads} heads, context {context}: rows");
                let items = largest * heads * context;
                assert!(i32::try_from(items).is_ok(), "{heads} heads, context {context}: {items} items");
            }
        }
    }

    #[test]
    fn a_micro_batch_out_of_range_names_both_sections_that_have_the_key() {
        let config = ModelConfig { vocab_size: 1000, ..ModelConfig::default() };
        for micro_batch in [0, largest_micro_batch(&config) + 1] {
            let options = CudaOptions { micro_batch, checkpointing: false };
            let error = CudaPath::memory(&config, &options).unwrap_err().to_string();
            let named = format!("micro_batch of [train] or [seed_model] is {micro_batch}: on a GPU");
            assert!(error.starts_with(&named), "{error}");
        }
    }
}
