//! The training step of a path as a sequence of kernels and products on a device.

use dipaco_model::{Dtype, Loss, ModelConfig, TokenBatch, TokenRows};
use dipaco_optim::AdamWConfig;

use crate::arena::{Arena, Purpose, REPORT, segments};
use crate::batch::{BatchOffsets, PackedBatch, check_batch, check_tokens};
use crate::device::{Address, Argument, Grid, KernelDevice, Launch};
use crate::layout::Layout;
use crate::operands::{Destination, Projection};
use crate::pass::{Pass, PassPurpose, Rows};
use crate::step_numbers::StepNumbers;
use crate::trained::Trained;
use crate::{CudaError, CudaOptions, CudaStep, PathUpload};

/// A path on a device.
pub(crate) struct Engine<D> {
    pub(crate) device: D,
    pub(crate) config: ModelConfig,
    pub(crate) layout: Layout,
    /// Sequences per pass.
    pub(crate) micro_batch: usize,
    pub(crate) purpose: Purpose,
    pub(crate) arena: Arena,
    /// The parameters that train.
    pub(crate) trained: Trained,
    /// Number of its segments.
    pub(crate) segments: usize,
    batch: PackedBatch,
    steps: u64,
}

/// Gradients that [`Engine::head`] computes.
#[derive(Clone, Copy, Debug)]
enum HeadGradients {
    /// None: only the losses.
    None,
    /// Of the output of the final norm and of the output projection.
    Wanted {
        /// True to add to the gradient of the projection instead of replacing it.
        accumulate: bool,
    },
}

impl<D: KernelDevice> Engine<D> {
    /// Lays out the arena of `device`, which must have room for it, and uploads a path for steps.
    pub(crate) fn new(
        device: D,
        config: ModelConfig,
        options: CudaOptions,
        path: &PathUpload<'_>,
    ) -> Result<Self, CudaError> {
        let purpose = Purpose::Training { checkpointing: options.checkpointing };
        let mut engine = Self::with_weights(device, config, options.micro_batch, purpose, path.weights)?;
        engine.upload_state(path)?;
        Ok(engine)
    }

    /// Replaces the path by another one of the same shape.
    pub(crate) fn reload(&mut self, path: &PathUpload<'_>) -> Result<(), CudaError> {
        self.upload_weights(path.weights)?;
        if self.trained != *path.trained {
            self.device.forget_passes();
        }
        self.upload_state(path)
    }

    /// Uploads the moments of a path for steps, and the table of the parameters that train.
    fn upload_state(&mut self, path: &PathUpload<'_>) -> Result<(), CudaError> {
        self.steps = path.step;
        self.trained = path.trained.clone();
        let (first, second) = (self.arena.first, self.arena.second);
        for (what, place, values) in [("first", first, path.first), ("second", second, path.second)] {
            check_length(what, values, self.trained.parameters())?;
            for (run, own) in self.trained.runs() {
                self.device.upload(place.plus(4 * run.start), bytemuck::cast_slice(&values[own]))?;
            }
        }
        let segments = segments(&self.config, &self.trained);
        self.segments = segments.len();
        self.device.upload(self.arena.segments, bytemuck::cast_slice(&segments))?;
        // Nothing writes the gradient of a frozen tensor, and the norm reads all.
        self.device.zero(self.arena.gradient, 4 * self.layout.parameters)
    }

    /// Lays out the arena of `device` for a use, and uploads the weights.
    pub(crate) fn with_weights(
        device: D,
        config: ModelConfig,
        micro_batch: usize,
        purpose: Purpose,
        weights: &[f32],
    ) -> Result<Self, CudaError> {
        let arena = Arena::new(&config, micro_batch, purpose, device.arena());
        let layout = Layout::new(&config);
        let batch = PackedBatch::new(config.vocab_size, micro_batch * config.context);
        let trained = Trained::all(&config);
        let mut engine = Self {
            device,
            config,
            layout,
            micro_batch,
            purpose,
            arena,
            trained,
            segments: 0,
            batch,
            steps: 0,
        };
        engine.upload_weights(weights)?;
        engine.upload_rotations()?;
        Ok(engine)
    }

    fn upload_weights(&mut self, weights: &[f32]) -> Result<(), CudaError> {
        check_length("weights", weights, self.layout.parameters)?;
        self.device.upload(self.arena.weights, bytemuck::cast_slice(weights))?;
        if self.config.dtype == Dtype::Bf16 {
            let copy: Vec<u16> = weights.iter().map(|&weight| to_bf16(weight)).collect();
            self.device.upload(self.arena.copy, bytemuck::cast_slice(&copy))?;
        }
        Ok(())
    }

    /// Uploads the tables of the rotary embedding.
    fn upload_rotations(&mut self) -> Result<(), CudaError> {
        let half = self.config.head_dim / 2;
        let angles: Vec<f64> = (0..self.config.context * half)
            .map(|i| {
                let power = -2.0 * (i % half) as f64 / self.config.head_dim as f64;
                (i / half) as f64 * self.config.rope_theta.powf(power)
            })
            .collect();
        for (place, f) in [(self.arena.cosines, f64::cos as fn(f64) -> f64), (self.arena.sines, f64::sin)] {
            let table: Vec<f32> = angles.iter().map(|&angle| f(angle) as f32).collect();
            self.device.upload(place, bytemuck::cast_slice(&table))?;
        }
        Ok(())
    }

    /// Returns the number of steps taken so far.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Takes one AdamW step.
    pub(crate) fn step(
        &mut self,
        batch: &TokenBatch,
        adamw: &AdamWConfig,
        learning_rate: f64,
    ) -> Result<CudaStep, CudaError> {
        check_batch(&self.config, batch)?;
        let counted = batch.counted();
        let numbers = StepNumbers::new(adamw, self.steps + 1, learning_rate, counted);
        self.device.upload(self.arena.numbers, bytemuck::bytes_of(&numbers))?;
        let mut parts = batch.parts(self.micro_batch).peekable();
        let mut accumulate = false;
        while let Some(part) = parts.next() {
            let rows = Rows { sequences: part.rows(), time: part.time() };
            let update = parts.peek().is_none();
            self.send(part.tokens(), part.targets())?;
            let pass = Pass { rows, purpose: PassPurpose::Gradients { accumulate, update } };
            self.run_pass(pass, |engine| {
                engine.forward(rows)?;
                engine.head(rows, HeadGradients::Wanted { accumulate })?;
                engine.sum_losses(rows, accumulate)?;
                engine.backward(rows, accumulate)?;
                if update { engine.update() } else { Ok(()) }
            })?;
            accumulate = true;
        }
        let mut report = [0f64; REPORT];
        self.device.download(self.arena.report, bytemuck::cast_slice_mut(&mut report))?;
        let (loss, squared) = (report[0], report[1]);
        // The kernels make the same test and leave weights and moments alone.
        if loss.is_finite() && squared.is_finite() {
            self.steps += 1;
        }
        let mean = (loss / counted.max(1) as f64) as f32;
        Ok(CudaStep { loss: Loss { mean, counted }, gradient_norm: squared.sqrt() })
    }

    /// Returns `-ln p` of each target (B, T), without gradients, and the number of counted targets.
    pub(crate) fn losses(&mut self, batch: &TokenBatch) -> Result<(Vec<f32>, usize), CudaError> {
        check_batch(&self.config, batch)?;
        let micro = self.micro_batch;
        let mut losses = vec![0f32; batch.targets().len()];
        for (part, losses) in batch.parts(micro).zip(losses.chunks_mut(micro * batch.time())) {
            let rows = Rows { sequences: part.rows(), time: part.time() };
            self.send(part.tokens(), part.targets())?;
            self.run_pass(Pass { rows, purpose: PassPurpose::Losses }, |engine| {
                engine.forward(rows)?;
                engine.head(rows, HeadGradients::None)
            })?;
            self.device.download(self.arena.losses, bytemuck::cast_slice_mut(losses))?;
        }
        Ok((losses, batch.counted()))
    }

    /// Returns `ln p(target)` in nats of each position (B, T); 0 where the target is [`dipaco_model::IGNORE`].
    pub(crate) fn token_log_probs(&mut self, batch: &TokenBatch) -> Result<Vec<f32>, CudaError> {
        let (losses, _) = self.losses(batch)?;
        Ok(losses.into_iter().map(|loss| if loss == 0.0 { 0.0 } else { -loss }).collect())
    }

    /// Returns the mean (B, D) of the output of the first `blocks` blocks over the first `lengths` tokens of each row. Later
    /// blocks are not computed.
    pub(crate) fn features(
        &mut self,
        blocks: usize,
        tokens: &TokenRows,
        lengths: &[usize],
    ) -> Result<Vec<f32>, CudaError> {
        check_tokens(&self.config, tokens)?;
        if blocks > self.config.blocks {
            let problem = format!("{blocks} is over {}", self.config.blocks);
            return Err(CudaError::Argument { what: "the number of blocks of features", problem });
        }
        let (batch, time) = (tokens.rows(), tokens.time());
        let wrong = |problem: String| Err(CudaError::Argument { what: "lengths", problem });
        if lengths.len() != batch {
            return wrong(format!("{} lengths were given for {batch} rows", lengths.len()));
        }
        if let Some(length) = lengths.iter().find(|&&length| length == 0 || length > time) {
            return wrong(format!("{length} is not from 1 to {time}"));
        }
        let (micro, width) = (self.micro_batch, self.config.hidden_size);
        let mut features = vec![0f32; batch * width];
        let parts = tokens.parts(micro).zip(lengths.chunks(micro)).zip(features.chunks_mut(micro * width));
        for ((tokens, lengths), features) in parts {
            let rows = Rows { sequences: lengths.len(), time };
            self.send(&tokens, tokens.ids())?;
            // Only the backward pass reads the order of the positions, so the lengths may take its place.
            let place = self.arena.batch.plus(4 * BatchOffsets::new(rows.count()).order);
            let lengths: Vec<u32> = lengths.iter().map(|&length| length as u32).collect();
            self.device.upload(place, bytemuck::cast_slice(&lengths))?;
            self.stream_after(blocks, rows)?;
            let stream = self.arena.streams[blocks];
            let arguments = [self.arena.features.into(), stream.into(), place.into(), (time as i32).into()];
            self.run("mean", Grid::line(rows.sequences), 256, &arguments)?;
            self.device.download(self.arena.features, bytemuck::cast_slice_mut(features))?;
        }
        Ok(features)
    }

    /// Copies P numbers from the device.
    pub(crate) fn read(&mut self, place: Address) -> Result<Vec<f32>, CudaError> {
        let mut values = vec![0f32; self.layout.parameters];
        self.device.download(place, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// Copies the numbers of all trained parameters from the device to memory that is there.
    pub(crate) fn read_trained(
        &mut self,
        what: &'static str,
        place: Address,
        values: &mut [f32],
    ) -> Result<(), CudaError> {
        check_length(what, values, self.trained.parameters())?;
        for (run, own) in self.trained.runs() {
            self.device.download(place.plus(4 * run.start), bytemuck::cast_slice_mut(&mut values[own]))?;
        }
        Ok(())
    }

    fn send(&mut self, tokens: &TokenRows, targets: &[u32]) -> Result<(), CudaError> {
        let packed = self.batch.pack(tokens, targets);
        self.device.upload(self.arena.batch, bytemuck::cast_slice(packed))
    }

    /// Computes the output projection and the cross entropy, a chunk of rows at a time, so that the logits of a chunk
    /// are the only ones in memory.
    fn head(&mut self, rows: Rows, gradients: HeadGradients) -> Result<(), CudaError> {
        let (d, v) = (self.config.hidden_size, self.config.vocab_size);
        let element = self.config.dtype.bytes();
        let (normed, normed_slope) = (self.arena.normed, self.arena.normed_slope);
        let (logits, logits_slope) = (self.arena.logits, self.arena.logits_slope);
        let targets = self.arena.batch.plus(4 * BatchOffsets::new(rows.count()).targets);
        let numbers = match gradients {
            HeadGradients::None => Address::NULL,
            HeadGradients::Wanted { .. } => self.arena.numbers,
        };
        for first in (0..rows.count()).step_by(self.arena.head_rows) {
            let chunk = self.arena.head_rows.min(rows.count() - first);
            let x = normed.plus(first * d * element);
            let projection = Projection { weight: self.layout.head, rows: chunk, inputs: d, outputs: v };
            self.project(projection, x, Destination { address: logits, number: Dtype::F32, added: None })?;
            let arguments = [
                logits_slope.into(),
                logits.into(),
                self.arena.losses.plus(4 * first).into(),
                targets.plus(4 * first).into(),
                numbers.into(),
            ];
            self.run("cross_entropy", Grid::line(chunk), 512, &arguments)?;
            if let HeadGradients::Wanted { accumulate } = gradients {
                self.project_back(projection, logits_slope, normed_slope.plus(first * d * element))?;
                if self.trained.head {
                    self.weight_gradient(projection, logits_slope, x, accumulate || first > 0)?;
                }
            }
        }
        Ok(())
    }

    fn sum_losses(&mut self, rows: Rows, accumulate: bool) -> Result<(), CudaError> {
        let arguments = [
            self.arena.report.into(),
            self.arena.losses.into(),
            (rows.count() as i32).into(),
            i32::from(accumulate).into(),
        ];
        self.run("sum_losses", Grid::line(1), 256, &arguments)
    }

    pub(crate) fn run(
        &mut self,
        kernel: &'static str,
        grid: Grid,
        threads: usize,
        arguments: &[Argument],
    ) -> Result<(), CudaError> {
        self.device.launch(Launch { kernel, grid, threads }, arguments)
    }

    /// Returns the place of the residual stream after the last block.
    pub(crate) fn last_stream(&self) -> Address {
        self.arena.streams[self.config.blocks]
    }

    /// Runs a pass: the device's record of it, or the calls.
    fn run_pass(
        &mut self,
        pass: Pass,
        calls: impl Fn(&mut Self) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        if self.device.begin_pass(pass)? {
            return Ok(());
        }
        let called = calls(self);
        if self.device.end_pass(pass, called.is_ok())? {
            return called;
        }
        // None of the recorded calls has run.
        calls(self)
    }
}

/// Checks that there is a number for each parameter.
fn check_length(what: &'static str, values: &[f32], expected: usize) -> Result<(), CudaError> {
    if values.len() == expected {
        return Ok(());
    }
    let problem = format!("{} numbers were given for {expected} parameters", values.len());
    Err(CudaError::Argument { what, problem })
}

/// Rounds to the nearest bf16, ties to even.
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}
