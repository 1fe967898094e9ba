//! A path on a GPU.

use crate::arena::Arena;
use crate::device::Address;
use crate::engine::Engine;
use crate::nvidia::Nvidia;
use crate::{CudaError, Gpu, PathShape, Precision, kernels};

/// How a path is trained on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// The arithmetic of products.
    pub precision: Precision,
    /// Sequences of a forward and backward pass; a step of more adds up the gradients of several. The activations'
    /// memory is in proportion to it.
    pub micro_batch: usize,
    /// Whether the backward pass makes the activations of a block again, from the block's input, instead of keeping
    /// those of all blocks: a third more work for much less memory.
    pub checkpointing: bool,
}

/// A path's numbers, each flat in the order of `dipaco_model::path_specs`.
#[derive(Clone, Copy, Debug)]
pub struct PathState<'a> {
    /// The weights.
    pub weights: &'a [f32],
    /// AdamW's first moments.
    pub first: &'a [f32],
    /// AdamW's second moments.
    pub second: &'a [f32],
    /// Steps so far.
    pub step: u64,
}

/// AdamW's numbers for a step, as in `dipaco_optim::AdamWConfig`; norms are not decayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// This step's learning rate.
    pub learning_rate: f64,
    /// Decay of the first moment per step.
    pub beta1: f64,
    /// Decay of the second moment per step.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay per step and unit of learning rate.
    pub weight_decay: f64,
    /// Largest norm of the gradient; 0 turns clipping off.
    pub clip_norm: f64,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Mean cross entropy over the counted targets, in nats. When it or the gradient's norm is not finite, the step was
    /// not taken: weights, moments and the number of steps are as before.
    pub loss: f32,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Targets that counted.
    pub counted: u64,
}

/// What the GPU spent on one kernel or on one size of products.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// The kernel's name, or `product rows × inner × columns`.
    pub what: String,
    /// How often it ran.
    pub runs: u32,
    /// All its runs, in seconds.
    pub seconds: f64,
}

/// One path on a GPU, with its gradient, its moments and all memory that its steps need.
pub struct CudaPath {
    engine: Engine<Nvidia>,
}

impl std::fmt::Debug for CudaPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaPath")
            .field("shape", &self.engine.shape)
            .field("options", &self.engine.options)
            .field("steps", &self.engine.steps())
            .finish_non_exhaustive()
    }
}

/// Checks what the kernels rely on, before memory is taken.
pub(crate) fn check(shape: &PathShape, options: &CudaOptions) -> Result<(), CudaError> {
    shape.check()?;
    let largest = 65_535 / shape.heads;
    if options.micro_batch == 0 || options.micro_batch > largest {
        let problem = format!("is {}: on a GPU it must be from 1 to {largest}", options.micro_batch);
        return Err(CudaError::Shape { key: "train.micro_batch", problem });
    }
    if options.micro_batch * shape.context > 1 << 24 {
        let problem =
            format!("× model.context is {}: it must be at most 2^24", options.micro_batch * shape.context);
        return Err(CudaError::Shape { key: "train.micro_batch", problem });
    }
    Ok(())
}

impl CudaPath {
    /// The GPU memory that a path takes, in bytes, beside 32 MiB for cuBLASLt and what the driver keeps.
    ///
    /// # Errors
    /// When the kernels do not take the shape.
    pub fn memory(shape: &PathShape, options: &CudaOptions) -> Result<usize, CudaError> {
        check(shape, options)?;
        Ok(Arena::new(shape, options, Address::NULL).bytes)
    }

    /// Puts a path on a GPU: compiles the kernels for it, takes all memory and copies the numbers.
    ///
    /// # Errors
    /// When the kernels do not take the shape, the numbers are not as many as the path has, the GPU has no room, the
    /// kernels do not compile, or the driver refuses.
    pub fn new(
        gpu: &Gpu,
        shape: PathShape,
        options: CudaOptions,
        state: &PathState<'_>,
    ) -> Result<Self, CudaError> {
        let bytes = Self::memory(&shape, &options)?;
        let device = Nvidia::new(gpu, bytes, &kernels::defines(&shape, options.precision))?;
        Ok(Self { engine: Engine::new(device, shape, options, state)? })
    }

    /// Takes one AdamW step: `tokens` and `targets` (B, T), row-major, `batch` = B; a target of [`crate::IGNORE`] is not
    /// counted. The gradient is clipped as `dipaco_optim::clip_scale` says. A step whose loss or gradient is not finite
    /// changes nothing, which the report shows.
    ///
    /// # Errors
    /// When the lengths do not fit, T is over the context, an id is not in the vocabulary, or the GPU fails.
    pub fn step(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        batch: usize,
        adamw: &AdamW,
    ) -> Result<StepReport, CudaError> {
        self.engine.step(tokens, targets, batch, adamw)
    }

    /// [`CudaPath::step`], with the time that the GPU spent on each kernel, the longest first. Timing costs time itself:
    /// measure the speed of steps without it.
    ///
    /// # Errors
    /// As [`CudaPath::step`].
    pub fn profiled_step(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        batch: usize,
        adamw: &AdamW,
    ) -> Result<(StepReport, Vec<KernelTime>), CudaError> {
        self.engine.device.begin_profile();
        let report = self.engine.step(tokens, targets, batch, adamw);
        let times = self.engine.device.end_profile();
        Ok((report?, times?))
    }

    /// Mean cross entropy of the targets in nats, and how many count; the mean of none is 0.
    ///
    /// # Errors
    /// As [`CudaPath::step`].
    pub fn loss(&mut self, tokens: &[u32], targets: &[u32], batch: usize) -> Result<(f32, usize), CudaError> {
        let (losses, counted) = self.engine.losses(tokens, targets, batch)?;
        let sum: f64 = losses.into_iter().map(f64::from).sum();
        Ok(((sum / counted.max(1) as f64) as f32, counted))
    }

    /// `ln p(target)` in nats of each position (B, T), 0 where the target is [`crate::IGNORE`].
    ///
    /// # Errors
    /// As [`CudaPath::step`].
    pub fn token_log_probs(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        batch: usize,
    ) -> Result<Vec<f32>, CudaError> {
        let (losses, _) = self.engine.losses(tokens, targets, batch)?;
        Ok(losses.into_iter().map(|loss| if loss == 0.0 { 0.0 } else { -loss }).collect())
    }

    /// The router's features (B, D): the mean of the last block's output over each row's first `lengths` tokens.
    ///
    /// # Errors
    /// As [`CudaPath::step`], and when a length is 0 or over T.
    pub fn features(
        &mut self,
        tokens: &[u32],
        lengths: &[usize],
        batch: usize,
    ) -> Result<Vec<f32>, CudaError> {
        self.engine.features(tokens, lengths, batch)
    }

    /// The steps taken so far, those before this path came to the GPU included.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.engine.steps()
    }

    /// Copies the weights from the GPU.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn weights(&mut self) -> Result<Vec<f32>, CudaError> {
        self.engine.read(self.engine.arena.weights)
    }

    /// Copies AdamW's first and second moments from the GPU.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn moments(&mut self) -> Result<(Vec<f32>, Vec<f32>), CudaError> {
        Ok((self.engine.read(self.engine.arena.first)?, self.engine.read(self.engine.arena.second)?))
    }

    /// Copies the last step's gradient, before clipping, from the GPU.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn gradient(&mut self) -> Result<Vec<f32>, CudaError> {
        self.engine.read(self.engine.arena.gradient)
    }
}
