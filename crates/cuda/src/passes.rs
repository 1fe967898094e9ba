//! The forward and the backward pass through the blocks.
//!
//! One block is written down three times: in `dipaco-ops` (`block/forward.rs` and `block/backward.rs`) for training on
//! the CPU and in its `packed_block.rs` for serving, and here for training on a GPU. Change all
//! three together; the tests of this package and of `dipaco-model` compare their results.

use dipaco_model::Dtype;

use crate::CudaError;
use crate::arena::{NORM_GROUPS, Purpose};
use crate::batch::BatchOffsets;
use crate::device::{Address, Grid, KernelDevice};
use crate::engine::Engine;
use crate::kernels::attention_rows;
use crate::operands::{Destination, Projection};
use crate::pass::Rows;

/// Threads of a block of a kernel that gives each row to one warp.
const ROW_THREADS: usize = 256;
/// Threads of a block of RMSNorm's backward kernel; NORM_THREADS of the kernel.
const NORM_THREADS: usize = 128;
/// Threads of a block of the attention kernels.
const ATTENTION_THREADS: usize = 128;

/// The projections of one block for N rows.
struct BlockProjections {
    qkv: Projection,
    output: Projection,
    gate_up: Projection,
    down: Projection,
}

/// The norm of one place of the path and the rows that it normalises.
#[derive(Clone, Copy)]
struct Norm {
    /// Input (N, D), f32.
    x: Address,
    /// Number of the first weight among the parameters.
    weight: usize,
    rows: Rows,
}

/// The gradients of weights.
#[derive(Clone, Copy, Debug)]
struct WeightGradients {
    /// False for frozen weights: only the gradient of the input is computed.
    wanted: bool,
    /// True to add to the gradients of the previous micro-batches instead of replacing them.
    accumulate: bool,
}

impl<D: KernelDevice> Engine<D> {
    /// Computes the residual stream after the first `blocks` blocks from the uploaded tokens.
    pub(crate) fn stream_after(&mut self, blocks: usize, rows: Rows) -> Result<(), CudaError> {
        let arguments = [self.arena.streams[0].into(), self.arena.weights.into(), self.arena.batch.into()];
        self.run("embedding_forward", Grid::line(rows.count()), 128, &arguments)?;
        for i in 0..blocks {
            self.block_forward(i, rows)?;
        }
        Ok(())
    }

    /// Computes the output of the final norm from the uploaded tokens.
    pub(crate) fn forward(&mut self, rows: Rows) -> Result<(), CudaError> {
        self.stream_after(self.config.blocks, rows)?;
        let norm = Norm { x: self.last_stream(), weight: self.layout.final_norm, rows };
        self.norm(norm, self.arena.normed)
    }

    fn projections(&self, i: usize, rows: Rows) -> BlockProjections {
        let (d, a, f) = (self.config.hidden_size, self.config.attention_size(), self.config.ffn_size);
        let (start, at) = (self.layout.block_start(i), self.layout.block);
        let projection = |weight: usize, inputs: usize, outputs: usize| Projection {
            weight: start + weight,
            rows: rows.count(),
            inputs,
            outputs,
        };
        BlockProjections {
            qkv: projection(at.qkv, d, a + 2 * self.config.key_value_size()),
            output: projection(at.output, a, d),
            gate_up: projection(at.gate_up, d, 2 * f),
            down: projection(at.down, f, d),
        }
    }

    fn block_forward(&mut self, i: usize, rows: Rows) -> Result<(), CudaError> {
        let (start, at) = (self.layout.block_start(i), self.layout.block);
        let BlockProjections { qkv, output, gate_up, down } = self.projections(i, rows);
        let (x, y) = (self.arena.streams[i], self.arena.streams[i + 1]);
        let (saved, activated) = (self.arena.saved[i], self.arena.activated);
        let number = self.config.dtype;
        let plain = |address: Address| Destination { address, number, added: None };
        let residual = |address: Address, added: Address| Destination {
            address,
            number: Dtype::F32,
            added: Some(added),
        };
        self.norm(Norm { x, weight: start + at.input_norm, rows }, saved.input_normed)?;
        self.project(qkv, saved.input_normed, plain(saved.qkv))?;
        self.rotate(saved.qkv, rows, 1.0)?;
        let grid = self.attention_grids(rows).forward;
        let arguments =
            [saved.attended.into(), saved.log_sums.into(), saved.qkv.into(), (rows.time as i32).into()];
        self.run("attention_forward", grid, ATTENTION_THREADS, &arguments)?;
        self.project(output, saved.attended, residual(saved.middle, x))?;

        self.norm(Norm { x: saved.middle, weight: start + at.post_norm, rows }, saved.post_normed)?;
        self.project(gate_up, saved.post_normed, plain(saved.gate_up))?;
        let arguments = [activated.into(), saved.gate_up.into()];
        self.run("swiglu_forward", Grid::line(rows.count()), 256, &arguments)?;
        self.project(down, activated, residual(y, saved.middle))
    }

    /// Computes the gradients of all parameters that train, except the output projection, from the gradient of the final
    /// norm's output. With `accumulate` they are added to the gradients of the previous micro-batches.
    pub(crate) fn backward(&mut self, rows: Rows, accumulate: bool) -> Result<(), CudaError> {
        let norm = Norm { x: self.last_stream(), weight: self.layout.final_norm, rows };
        let gradients = WeightGradients { wanted: self.trained.final_norm, accumulate };
        self.norm_backward(norm, false, gradients)?;
        for i in self.trained.reached().rev() {
            // All blocks share one set of activations then, which still holds the last block's.
            let recompute = self.purpose == Purpose::Training { checkpointing: true };
            if recompute && i + 1 < self.config.blocks {
                self.block_forward(i, rows)?;
            }
            let wanted = self.trained.blocks[i];
            self.block_backward(i, rows, WeightGradients { wanted, accumulate })?;
        }
        if !self.trained.embedding {
            return Ok(());
        }
        if !accumulate && !self.config.tie_embeddings {
            // The kernel below adds to the rows of tokens that occur and leaves all others as they are. With tied
            // embeddings the head has written all rows before.
            let bytes = 4 * self.config.vocab_size * self.config.hidden_size;
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
        self.run("embedding_backward", Grid::line(rows.count()), 128, &arguments)
    }

    fn block_backward(&mut self, i: usize, rows: Rows, gradients: WeightGradients) -> Result<(), CudaError> {
        let (start, at) = (self.layout.block_start(i), self.layout.block);
        let BlockProjections { qkv, output, gate_up, down } = self.projections(i, rows);
        let (saved, activated, normed_slope) =
            (self.arena.saved[i], self.arena.activated, self.arena.normed_slope);
        let slope = self.arena.slope_copy;
        self.project_back(down, slope, activated)?;
        // In place: the gate and up projections become their gradients, and `activated` the result of SwiGLU, which the
        // gradient of the down projection needs.
        let arguments = [saved.gate_up.into(), activated.into()];
        self.run("swiglu_backward", Grid::line(rows.count()), 256, &arguments)?;
        self.matrix_gradient(down, slope, activated, gradients)?;
        self.matrix_gradient(gate_up, saved.gate_up, saved.post_normed, gradients)?;
        self.project_back(gate_up, saved.gate_up, normed_slope)?;
        let norm = Norm { x: saved.middle, weight: start + at.post_norm, rows };
        self.norm_backward(norm, true, gradients)?;

        let (attended_slope, qkv_slope) = (self.arena.attended_slope, self.arena.qkv_slope);
        self.project_back(output, slope, attended_slope)?;
        self.matrix_gradient(output, slope, saved.attended, gradients)?;
        self.attention_backward(i, rows)?;
        self.rotate(qkv_slope, rows, -1.0)?;
        self.matrix_gradient(qkv, qkv_slope, saved.input_normed, gradients)?;
        self.project_back(qkv, qkv_slope, normed_slope)?;
        let norm = Norm { x: self.arena.streams[i], weight: start + at.input_norm, rows };
        self.norm_backward(norm, true, gradients)
    }

    /// Computes the gradient of a projection's matrix, if it is wanted.
    fn matrix_gradient(
        &mut self,
        projection: Projection,
        dy: Address,
        x: Address,
        gradients: WeightGradients,
    ) -> Result<(), CudaError> {
        if gradients.wanted { self.weight_gradient(projection, dy, x, gradients.accumulate) } else { Ok(()) }
    }

    fn attention_backward(&mut self, i: usize, rows: Rows) -> Result<(), CudaError> {
        let (saved, delta, slope) = (self.arena.saved[i], self.arena.delta, self.arena.attended_slope);
        let time = rows.time as i32;
        let items = rows.count() * self.config.heads;
        let arguments =
            [delta.into(), saved.attended.into(), slope.into(), (rows.count() as i32).into(), time.into()];
        let grid = Grid::line(items.div_ceil(ROW_THREADS / 32));
        self.run("attention_delta", grid, ROW_THREADS, &arguments)?;
        let grids = self.attention_grids(rows);
        let arguments = [
            self.arena.qkv_slope.into(),
            saved.qkv.into(),
            slope.into(),
            saved.log_sums.into(),
            delta.into(),
            time.into(),
        ];
        self.run("attention_query_gradient", grids.queries, ATTENTION_THREADS, &arguments)?;
        self.run("attention_key_value_gradient", grids.keys, ATTENTION_THREADS, &arguments)
    }

    fn attention_grids(&self, rows: Rows) -> AttentionGrids {
        let tile = attention_rows(&self.config);
        let heads = rows.sequences * self.config.heads;
        let backward = rows.time.div_ceil(tile.backward);
        AttentionGrids {
            forward: Grid { x: rows.time.div_ceil(tile.forward), y: heads },
            queries: Grid { x: backward, y: heads },
            keys: Grid { x: backward, y: rows.sequences * self.config.key_value_heads() },
        }
    }

    /// Rotates queries and keys of `qkv` in place; `sign` -1 rotates back.
    fn rotate(&mut self, qkv: Address, rows: Rows, sign: f32) -> Result<(), CudaError> {
        let Self { arena, .. } = self;
        let arguments =
            [qkv.into(), arena.cosines.into(), arena.sines.into(), (rows.time as i32).into(), sign.into()];
        self.run("rope", Grid::line(rows.count()), 128, &arguments)
    }

    fn norm(&mut self, norm: Norm, y: Address) -> Result<(), CudaError> {
        let weight = self.arena.weights.plus(4 * norm.weight);
        let epsilon = self.config.rms_norm_eps as f32;
        let count = norm.rows.count();
        let arguments = [y.into(), norm.x.into(), weight.into(), epsilon.into(), (count as i32).into()];
        self.run("rms_norm_forward", Grid::line(count.div_ceil(ROW_THREADS / 32)), ROW_THREADS, &arguments)
    }

    /// Reads the gradient of the norm's output from `normed_slope` and writes the gradient of its input to `slope`.
    /// With `residual` it is added there to the gradient of the residual stream.
    fn norm_backward(
        &mut self,
        norm: Norm,
        residual: bool,
        gradients: WeightGradients,
    ) -> Result<(), CudaError> {
        let arena = &self.arena;
        let Norm { x, weight, rows } = norm;
        let group = rows.count().div_ceil(NORM_GROUPS);
        let groups = rows.count().div_ceil(group);
        let bf16 = self.config.dtype == Dtype::Bf16;
        let arguments = [
            arena.slope.into(),
            if bf16 { arena.slope_copy } else { Address::NULL }.into(),
            arena.norm_partial.into(),
            arena.normed_slope.into(),
            x.into(),
            arena.weights.plus(4 * weight).into(),
            (self.config.rms_norm_eps as f32).into(),
            (rows.count() as i32).into(),
            (group as i32).into(),
            i32::from(residual).into(),
        ];
        let total = [
            arena.gradient.plus(4 * weight).into(),
            arena.norm_partial.into(),
            (groups as i32).into(),
            i32::from(gradients.accumulate).into(),
        ];
        self.run("rms_norm_backward", Grid::line(groups), NORM_THREADS, &arguments)?;
        if !gradients.wanted {
            return Ok(());
        }
        let grid = Grid::line(self.config.hidden_size.div_ceil(32));
        self.run("rms_norm_weight_gradient", grid, 256, &total)
    }
}

/// Grids of the attention kernels.
struct AttentionGrids {
    forward: Grid,
    /// Of the gradients of queries.
    queries: Grid,
    /// Of the gradients of keys and values.
    keys: Grid,
}
