//! The forward and the backward pass through the blocks.

use crate::arena::NORM_GROUPS;
use crate::batch::BatchOffsets;
use crate::device::{Address, Device, Number};
use crate::engine::{Engine, Rows};
use crate::kernels::attention_rows;
use crate::{CudaError, Precision};

/// Threads of a block whose warps have a row each.
const ROW_THREADS: usize = 256;
/// Threads of the backward block of a norm; the kernel's NORM_THREADS.
const NORM_THREADS: usize = 128;
/// Threads of an attention block.
const ATTENTION_THREADS: usize = 128;

impl<D: Device> Engine<D> {
    /// From the uploaded tokens to the final norm's output.
    pub(crate) fn forward(&mut self, rows: Rows) -> Result<(), CudaError> {
        let arguments = [self.arena.streams[0].into(), self.arena.weights.into(), self.arena.batch.into()];
        self.run("embedding_forward", (rows.count(), 1), 128, &arguments)?;
        for i in 0..self.shape.blocks {
            self.block_forward(i, rows)?;
        }
        let (x, y) = (self.last_stream(), self.arena.normed);
        self.norm(x, self.shape.final_norm(), y, rows)
    }

    fn block_forward(&mut self, i: usize, rows: Rows) -> Result<(), CudaError> {
        let (d, a, f) = (self.shape.hidden_size, self.shape.attention(), self.shape.ffn_size);
        let (start, at, n) = (self.shape.block_start(i), self.shape.block(), rows.count());
        let (x, y) = (self.arena.streams[i], self.arena.streams[i + 1]);
        let (saved, activated, element) = (self.arena.saved[i], self.arena.activated, self.element());
        self.norm(x, start + at.input_norm, saved.input_normed, rows)?;
        self.project(saved.input_normed, start + at.qkv, (n, d, 3 * a), saved.qkv, element, None)?;
        self.turn(saved.qkv, rows, 1.0)?;
        let grid = self.attention_grid(rows).0;
        let arguments =
            [saved.attended.into(), saved.log_sums.into(), saved.qkv.into(), (rows.time as i32).into()];
        self.run("attention_forward", grid, ATTENTION_THREADS, &arguments)?;
        self.project(saved.attended, start + at.output, (n, a, d), saved.middle, Number::F32, Some(x))?;
        self.norm(saved.middle, start + at.post_norm, saved.post_normed, rows)?;
        self.project(saved.post_normed, start + at.gate_up, (n, d, 2 * f), saved.gate_up, element, None)?;
        self.run("swiglu_forward", (n, 1), 256, &[activated.into(), saved.gate_up.into()])?;
        self.project(activated, start + at.down, (n, f, d), y, Number::F32, Some(saved.middle))
    }

    /// From the gradient of the final norm's output to the gradients of all parameters but the output projection's,
    /// added to those of the micro-batches before when `accumulate` says so.
    pub(crate) fn backward(&mut self, rows: Rows, accumulate: bool) -> Result<(), CudaError> {
        self.norm_backward(self.last_stream(), self.shape.final_norm(), rows, false, accumulate)?;
        for i in (0..self.shape.blocks).rev() {
            if self.options.checkpointing && i + 1 < self.shape.blocks {
                self.block_forward(i, rows)?;
            }
            self.block_backward(i, rows, accumulate)?;
        }
        if !accumulate && !self.shape.tie_embeddings {
            // Only rows of tokens that occur are written.
            let bytes = 4 * self.shape.vocab_size * self.shape.hidden_size;
            self.device.zero(self.arena.gradient, bytes)?;
        }
        let at = BatchOffsets::new(rows.count());
        let batch = self.arena.batch;
        let arguments = [
            self.arena.gradient.into(),
            self.arena.slope.into(),
            batch.into(),
            batch.plus(4 * at.order).into(),
            batch.plus(4 * at.starts).into(),
        ];
        self.run("embedding_backward", (rows.count(), 1), 128, &arguments)
    }

    fn block_backward(&mut self, i: usize, rows: Rows, accumulate: bool) -> Result<(), CudaError> {
        let (d, a, f) = (self.shape.hidden_size, self.shape.attention(), self.shape.ffn_size);
        let (start, at, n) = (self.shape.block_start(i), self.shape.block(), rows.count());
        let (saved, activated, normed_slope) =
            (self.arena.saved[i], self.arena.activated, self.arena.normed_slope);
        let slope = self.arena.slope_copy;
        let (down, gate_up) = (start + at.down, start + at.gate_up);
        self.project_back(slope, down, (n, f, d), activated)?;
        // Now the gate and up projections become their gradients, and `activated` SwiGLU's result.
        self.run("swiglu_backward", (n, 1), 256, &[saved.gate_up.into(), activated.into()])?;
        self.weight_gradient(slope, activated, down, (n, f, d), accumulate)?;
        self.weight_gradient(saved.gate_up, saved.post_normed, gate_up, (n, d, 2 * f), accumulate)?;
        self.project_back(saved.gate_up, gate_up, (n, d, 2 * f), normed_slope)?;
        self.norm_backward(saved.middle, start + at.post_norm, rows, true, accumulate)?;

        let (output, qkv) = (start + at.output, start + at.qkv);
        let (attended_slope, qkv_slope) = (self.arena.attended_slope, self.arena.qkv_slope);
        self.project_back(slope, output, (n, a, d), attended_slope)?;
        self.weight_gradient(slope, saved.attended, output, (n, a, d), accumulate)?;
        self.attention_backward(i, rows)?;
        self.turn(qkv_slope, rows, -1.0)?;
        self.weight_gradient(qkv_slope, saved.input_normed, qkv, (n, d, 3 * a), accumulate)?;
        self.project_back(qkv_slope, qkv, (n, d, 3 * a), normed_slope)?;
        self.norm_backward(self.arena.streams[i], start + at.input_norm, rows, true, accumulate)
    }

    fn attention_backward(&mut self, i: usize, rows: Rows) -> Result<(), CudaError> {
        let (saved, delta, slope) = (self.arena.saved[i], self.arena.delta, self.arena.attended_slope);
        let time = rows.time as i32;
        let items = rows.count() * self.shape.heads;
        let arguments =
            [delta.into(), saved.attended.into(), slope.into(), (rows.count() as i32).into(), time.into()];
        self.run("attention_delta", (items.div_ceil(ROW_THREADS / 32), 1), ROW_THREADS, &arguments)?;
        let grid = self.attention_grid(rows).1;
        let arguments = [
            self.arena.qkv_slope.into(),
            saved.qkv.into(),
            slope.into(),
            saved.log_sums.into(),
            delta.into(),
            time.into(),
        ];
        self.run("attention_query_gradient", grid, ATTENTION_THREADS, &arguments)?;
        self.run("attention_key_value_gradient", grid, ATTENTION_THREADS, &arguments)
    }

    /// The attention kernels' grids: of the forward pass and of the backward passes.
    fn attention_grid(&self, rows: Rows) -> ((usize, usize), (usize, usize)) {
        let (forward, backward) = attention_rows(&self.shape, self.options.precision);
        let heads = rows.sequences * self.shape.heads;
        ((rows.time.div_ceil(forward), heads), (rows.time.div_ceil(backward), heads))
    }

    fn turn(&mut self, qkv: Address, rows: Rows, sign: f32) -> Result<(), CudaError> {
        let Self { arena, .. } = self;
        let arguments =
            [qkv.into(), arena.cosines.into(), arena.sines.into(), (rows.time as i32).into(), sign.into()];
        self.run("rope", (rows.count(), 1), 128, &arguments)
    }

    /// `weight` is the number of the norm's first parameter.
    fn norm(&mut self, x: Address, weight: usize, y: Address, rows: Rows) -> Result<(), CudaError> {
        let weight = self.arena.weights.plus(4 * weight);
        let epsilon = self.shape.rms_norm_eps as f32;
        let arguments = [y.into(), x.into(), weight.into(), epsilon.into(), (rows.count() as i32).into()];
        self.run("rms_norm_forward", (rows.count().div_ceil(ROW_THREADS / 32), 1), ROW_THREADS, &arguments)
    }

    /// Takes the gradient of the output from `normed_slope` and adds the input's to `slope`, or begins it there.
    fn norm_backward(
        &mut self,
        x: Address,
        weight: usize,
        rows: Rows,
        residual: bool,
        accumulate: bool,
    ) -> Result<(), CudaError> {
        let arena = &self.arena;
        let group = rows.count().div_ceil(NORM_GROUPS);
        let groups = rows.count().div_ceil(group);
        let bf16 = self.options.precision == Precision::Bf16;
        let arguments = [
            arena.slope.into(),
            if bf16 { arena.slope_copy } else { Address::NULL }.into(),
            arena.norm_partial.into(),
            arena.normed_slope.into(),
            x.into(),
            arena.weights.plus(4 * weight).into(),
            (self.shape.rms_norm_eps as f32).into(),
            (rows.count() as i32).into(),
            (group as i32).into(),
            i32::from(residual).into(),
        ];
        let total = [
            arena.gradient.plus(4 * weight).into(),
            arena.norm_partial.into(),
            (groups as i32).into(),
            i32::from(accumulate).into(),
        ];
        self.run("rms_norm_backward", (groups, 1), NORM_THREADS, &arguments)?;
        self.run("rms_norm_weight_gradient", (self.shape.hidden_size.div_ceil(32), 1), 256, &total)
    }
}
