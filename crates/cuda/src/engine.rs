//! The training step of a path as a sequence of kernels and products on a device.

use crate::arena::{Arena, REPORT, segments};
use crate::batch::{Batch, BatchOffsets, check, check_targets};
use crate::device::{Address, Argument, Device, Launch, Number, Product};
use crate::{AdamW, CudaError, CudaOptions, PathShape, PathState, Precision, StepReport};

/// A path on a device.
pub(crate) struct Engine<D> {
    pub(crate) device: D,
    pub(crate) shape: PathShape,
    pub(crate) options: CudaOptions,
    pub(crate) arena: Arena,
    batch: Batch,
    step: u64,
}

/// The rows that a pass works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// B, sequences.
    pub(crate) sequences: usize,
    /// T.
    pub(crate) time: usize,
}

impl Rows {
    /// B · T.
    pub(crate) fn count(self) -> usize {
        self.sequences * self.time
    }
}

impl<D: Device> Engine<D> {
    /// Lays out the arena of `device`, which must have room for it, and uploads the path.
    pub(crate) fn new(
        device: D,
        shape: PathShape,
        options: CudaOptions,
        state: &PathState<'_>,
    ) -> Result<Self, CudaError> {
        let arena = Arena::new(&shape, &options, device.arena());
        let rows = options.micro_batch * shape.context;
        let batch = Batch::new(&shape, rows);
        let mut engine = Self { device, shape, options, arena, batch, step: state.step };
        engine.upload(state)?;
        Ok(engine)
    }

    fn upload(&mut self, state: &PathState<'_>) -> Result<(), CudaError> {
        let expected = self.shape.parameters();
        let arrays = [("weights", state.weights), ("first", state.first), ("second", state.second)];
        for (what, values) in arrays {
            if values.len() != expected {
                let problem = format!("{} numbers were given for {expected} parameters", values.len());
                return Err(CudaError::Argument { what, problem });
            }
        }
        let places = [self.arena.weights, self.arena.first, self.arena.second];
        for (place, (_, values)) in places.into_iter().zip(arrays) {
            self.device.upload(place, bytemuck::cast_slice(values))?;
        }
        if self.options.precision == Precision::Bf16 {
            let copy: Vec<u16> = state.weights.iter().map(|&weight| to_bf16(weight)).collect();
            self.device.upload(self.arena.copy, bytemuck::cast_slice(&copy))?;
        }
        let half = self.shape.head_dim / 2;
        let angles: Vec<f64> = (0..self.shape.context * half)
            .map(|i| {
                let power = -2.0 * (i % half) as f64 / self.shape.head_dim as f64;
                (i / half) as f64 * self.shape.rope_theta.powf(power)
            })
            .collect();
        for (place, f) in [(self.arena.cosines, f64::cos as fn(f64) -> f64), (self.arena.sines, f64::sin)] {
            let table: Vec<f32> = angles.iter().map(|&angle| f(angle) as f32).collect();
            self.device.upload(place, bytemuck::cast_slice(&table))?;
        }
        self.device.upload(self.arena.segments, bytemuck::cast_slice(&segments(&self.shape)))
    }

    /// Steps so far.
    pub(crate) fn steps(&self) -> u64 {
        self.step
    }

    /// One AdamW step.
    pub(crate) fn step(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        batch: usize,
        adamw: &AdamW,
    ) -> Result<StepReport, CudaError> {
        let time = check(&self.shape, tokens, batch)?;
        let counted = check_targets(&self.shape, tokens, targets)?;
        let scale = 1.0 / counted.max(1) as f32;
        let micro = self.options.micro_batch * time;
        for (i, (tokens, targets)) in tokens.chunks(micro).zip(targets.chunks(micro)).enumerate() {
            let rows = Rows { sequences: tokens.len() / time, time };
            self.send(tokens, targets)?;
            self.forward(rows)?;
            self.head(rows, scale, true, i > 0)?;
            self.sum_losses(rows, i > 0)?;
            self.backward(rows, i > 0)?;
        }
        self.update(adamw)?;
        let mut report = [0f64; REPORT];
        self.device.download(self.arena.report, bytemuck::cast_slice_mut(&mut report))?;
        let (loss, squared) = (report[0], report[1]);
        if loss.is_finite() && squared.is_finite() {
            self.step += 1;
        }
        Ok(StepReport {
            loss: (loss / counted.max(1) as f64) as f32,
            gradient_norm: squared.sqrt(),
            counted: counted as u64,
        })
    }

    /// `-ln p` of each target, without gradients.
    pub(crate) fn losses(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        batch: usize,
    ) -> Result<(Vec<f32>, usize), CudaError> {
        let time = check(&self.shape, tokens, batch)?;
        let counted = check_targets(&self.shape, tokens, targets)?;
        let micro = self.options.micro_batch * time;
        let mut losses = vec![0f32; targets.len()];
        let chunks = tokens.chunks(micro).zip(targets.chunks(micro)).zip(losses.chunks_mut(micro));
        for ((tokens, targets), losses) in chunks {
            let rows = Rows { sequences: tokens.len() / time, time };
            self.send(tokens, targets)?;
            self.forward(rows)?;
            self.head(rows, 0.0, false, false)?;
            self.device.download(self.arena.losses, bytemuck::cast_slice_mut(losses))?;
        }
        Ok((losses, counted))
    }

    /// The mean of the last block's output over each row's first `lengths` tokens.
    pub(crate) fn features(
        &mut self,
        tokens: &[u32],
        lengths: &[usize],
        batch: usize,
    ) -> Result<Vec<f32>, CudaError> {
        let time = check(&self.shape, tokens, batch)?;
        let wrong = |problem: String| Err(CudaError::Argument { what: "lengths", problem });
        if lengths.len() != batch {
            return wrong(format!("{} lengths were given for {batch} rows", lengths.len()));
        }
        if let Some(length) = lengths.iter().find(|&&length| length == 0 || length > time) {
            return wrong(format!("{length} is not from 1 to {time}"));
        }
        let (micro, width) = (self.options.micro_batch, self.shape.hidden_size);
        let mut features = vec![0f32; batch * width];
        let chunks =
            tokens.chunks(micro * time).zip(lengths.chunks(micro)).zip(features.chunks_mut(micro * width));
        for ((tokens, lengths), features) in chunks {
            let rows = Rows { sequences: lengths.len(), time };
            self.send(tokens, tokens)?;
            // The order of the tokens' positions is not needed here: its place takes the lengths.
            let place = self.arena.batch.plus(4 * BatchOffsets::new(rows.count()).order);
            let lengths: Vec<u32> = lengths.iter().map(|&length| length as u32).collect();
            self.device.upload(place, bytemuck::cast_slice(&lengths))?;
            self.forward(rows)?;
            let arguments =
                [self.arena.features.into(), self.last_stream().into(), place.into(), (time as i32).into()];
            self.run("mean", (rows.sequences, 1), 256, &arguments)?;
            self.device.download(self.arena.features, bytemuck::cast_slice_mut(features))?;
        }
        Ok(features)
    }

    /// Copies P numbers from the device.
    pub(crate) fn read(&mut self, place: Address) -> Result<Vec<f32>, CudaError> {
        let mut values = vec![0f32; self.shape.parameters()];
        self.device.download(place, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    fn send(&mut self, tokens: &[u32], targets: &[u32]) -> Result<(), CudaError> {
        let packed = self.batch.pack(tokens, targets);
        self.device.upload(self.arena.batch, bytemuck::cast_slice(packed))
    }

    /// The output projection and the cross entropy, a chunk of rows at a time. With `wanted` also the gradients of the
    /// final norm's output and of the projection, which is added to when `accumulate` says so.
    fn head(&mut self, rows: Rows, scale: f32, wanted: bool, accumulate: bool) -> Result<(), CudaError> {
        let (d, v) = (self.shape.hidden_size, self.shape.vocab_size);
        let element = self.options.precision.bytes();
        let Arena { normed, normed_slope, logits, logits_slope, losses, .. } = self.arena;
        let weight = self.shape.head();
        let targets = self.arena.batch.plus(4 * BatchOffsets::new(rows.count()).targets);
        for first in (0..rows.count()).step_by(self.arena.head_rows) {
            let chunk = self.arena.head_rows.min(rows.count() - first);
            let x = normed.plus(first * d * element);
            self.project(x, weight, (chunk, d, v), logits, Number::F32, None)?;
            let arguments = [
                logits_slope.into(),
                logits.into(),
                losses.plus(4 * first).into(),
                targets.plus(4 * first).into(),
                scale.into(),
                i32::from(wanted).into(),
            ];
            self.run("cross_entropy", (chunk, 1), 512, &arguments)?;
            if wanted {
                self.project_back(
                    logits_slope,
                    weight,
                    (chunk, d, v),
                    normed_slope.plus(first * d * element),
                )?;
                self.weight_gradient(logits_slope, x, weight, (chunk, d, v), accumulate || first > 0)?;
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
        self.run("sum_losses", (1, 1), 256, &arguments)
    }

    pub(crate) fn run(
        &mut self,
        kernel: &'static str,
        grid: (usize, usize),
        threads: usize,
        arguments: &[Argument],
    ) -> Result<(), CudaError> {
        self.device.launch(Launch { kernel, grid, threads }, arguments)
    }

    /// The type of what products read.
    pub(crate) fn element(&self) -> Number {
        match self.options.precision {
            Precision::F32 => Number::F32,
            Precision::Bf16 => Number::Bf16,
        }
    }

    /// `y = x · Wᵀ (+ added)`: x (rows, inner), W (outer, inner) at number `weight` of the parameters.
    pub(crate) fn project(
        &mut self,
        x: Address,
        weight: usize,
        (rows, inner, outer): (usize, usize, usize),
        y: Address,
        type_of_y: Number,
        added: Option<Address>,
    ) -> Result<(), CudaError> {
        let factors = self.element();
        self.device.multiply(&Product {
            rows,
            columns: outer,
            inner,
            factors,
            left: x,
            right: self.arena.copy.plus(weight * factors.bytes()),
            left_transposed: false,
            right_transposed: true,
            result: y,
            result_type: type_of_y,
            added,
        })
    }

    /// The gradient of `project`'s x: `dx = dy · W`, element.
    pub(crate) fn project_back(
        &mut self,
        dy: Address,
        weight: usize,
        (rows, inner, outer): (usize, usize, usize),
        dx: Address,
    ) -> Result<(), CudaError> {
        let factors = self.element();
        self.device.multiply(&Product {
            rows,
            columns: inner,
            inner: outer,
            factors,
            left: dy,
            right: self.arena.copy.plus(weight * factors.bytes()),
            left_transposed: false,
            right_transposed: false,
            result: dx,
            result_type: factors,
            added: None,
        })
    }

    /// The gradient of `project`'s W: `dW = dyᵀ · x`, or added to what is there.
    pub(crate) fn weight_gradient(
        &mut self,
        dy: Address,
        x: Address,
        weight: usize,
        (rows, inner, outer): (usize, usize, usize),
        accumulate: bool,
    ) -> Result<(), CudaError> {
        let result = self.arena.gradient.plus(4 * weight);
        self.device.multiply(&Product {
            rows: outer,
            columns: inner,
            inner: rows,
            factors: self.element(),
            left: dy,
            right: x,
            left_transposed: true,
            right_transposed: false,
            result,
            result_type: Number::F32,
            added: accumulate.then_some(result),
        })
    }

    /// The residual stream after the last block.
    pub(crate) fn last_stream(&self) -> Address {
        self.arena.streams[self.shape.blocks]
    }

    fn update(&mut self, adamw: &AdamW) -> Result<(), CudaError> {
        crate::update::update(self, adamw, self.step + 1)
    }
}

/// The nearest bf16, ties to even.
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}
