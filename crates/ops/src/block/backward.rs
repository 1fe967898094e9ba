//! The backward pass of a block.

use std::ops::Range;

use rayon::prelude::*;

use super::{Activations, BlockGradients, BlockInput, BlockShape, BlockWeights, Stack};
use crate::attention;
use crate::buffer::{Buffer, Workspace};
use crate::element::Element;
use crate::product::{
    LeftRows, Matrix, OuterProduct, Rhs, RightOperand, RowSplitter, WIDTH, by_columns, multiply,
    outer_products, part, rounded_product, row_tasks, with_rows,
};
use crate::profile::Phase;
use crate::rms_norm::{self, WeightSums, summed};
use crate::scratch::with_scratch;
use crate::swiglu;
use crate::vector::convert;

/// The weights of a block as right operands of the products that lead back to their inputs: W (n, k) of `x · Wᵀ` is the
/// operand (n × k) itself.
struct BackwardWeights<'a> {
    qkv: RightOperand<'a>,
    o: RightOperand<'a>,
    gate_up: RightOperand<'a>,
    down: RightOperand<'a>,
}

impl<'a> BackwardWeights<'a> {
    fn new<E: Element>(stack: &Stack, weights: BlockWeights<'a>) -> Self {
        let shape = &stack.shape;
        let (d, a, f) = (shape.width, shape.attention(), shape.ffn);
        let pack = |matrix, k, n| RightOperand::new::<E, f32>(&stack.workspace, Matrix::rows(matrix, k, n));
        let ((qkv, o), (gate_up, down)) = rayon::join(
            || rayon::join(|| pack(weights.qkv, shape.qkv(), d), || pack(weights.o, d, a)),
            || rayon::join(|| pack(weights.gate_up, 2 * f, d), || pack(weights.down, d, f)),
        );
        Self { qkv, o, gate_up, down }
    }

    fn give(self, workspace: &Workspace) {
        for right in [self.qkv, self.o, self.gate_up, self.down] {
            right.give(workspace);
        }
    }
}

/// Replaces the gradient of the block's output, `dx` (rows, D), by the gradient of its input, and adds the parameters'
/// gradients to `gradients`; frozen parameters have none. Overwrites the activations with their gradients.
pub(crate) fn backward<E: Element>(
    input: BlockInput<'_>,
    activations: &mut Activations<'_, E>,
    dx: &mut [f32],
    mut gradients: Option<BlockGradients<'_>>,
) {
    let BlockInput { stack, weights, batch, .. } = input;
    let (workspace, rows, a) = (&stack.workspace, batch.rows(), stack.shape.attention());
    if let Some(gradients) = gradients.as_mut().filter(|gradients| gradients.fresh) {
        // The partial sums of the norms' gradients are always added; the products overwrite the matrices' gradients.
        gradients.input_norm.fill(0.0);
        gradients.post_norm.fill(0.0);
    }
    let tasks = row_tasks::<E>(rows);
    let mut dy_memory = workspace.take(E::room(rows * a));
    // The halves run in the reverse order of the forward pass, with attention, which mixes rows, between them.
    let right = stack.profile.time(Phase::Products, || {
        let right = BackwardWeights::new::<E>(stack, weights);
        let dy = &mut E::of_mut(&mut dy_memory)[..rows * a];
        feed_forward(input, &right, activations, StreamGradients { dx, dy }, gradients.as_mut(), &tasks);
        right
    });
    stack.profile.time(Phase::Attention, || {
        let dy = &E::of_mut(&mut dy_memory)[..rows * a];
        let Activations { qkv, y, log_sums, .. } = activations;
        attention::backward_all(qkv, y, dy, log_sums, &stack.shape.rope, stack.attention_shape(batch));
    });
    workspace.give(dy_memory);
    stack.profile.time(Phase::Products, || {
        // Attention has replaced queries, keys and values by their gradients.
        project_qkv(input, &right, activations.qkv, dx, gradients.as_mut(), &tasks);
        right.give(workspace);
    });
}

/// The gradients on both sides of attention's output projection.
struct StreamGradients<'a, E> {
    /// Of the residual stream (rows, D): on entry behind the block, on exit behind attention.
    dx: &'a mut [f32],
    /// Of attention's result (rows, H, Dh): written.
    dy: &'a mut [E],
}

/// Rounded matrices of all rows, which the products of the weights' gradients need after the last task.
struct FeedForwardBuffers {
    /// The gradient of the block's output (rows, D).
    d_out: Buffer,
    /// `silu(gate) · up` (rows, F).
    gated: Buffer,
    /// The input of gate and up: `middle` after its norm (rows, D).
    h: Buffer,
    /// The gradient of the residual stream behind attention (rows, D).
    d_middle: Buffer,
}

impl FeedForwardBuffers {
    fn take<E: Element>(workspace: &Workspace, shape: &BlockShape, rows: usize) -> Self {
        let take = |width| workspace.take(E::room(rows * width));
        Self {
            d_out: take(shape.width),
            gated: take(shape.ffn),
            h: take(shape.width),
            d_middle: take(shape.width),
        }
    }

    fn give(self, workspace: &Workspace) {
        for buffer in [self.d_out, self.gated, self.h, self.d_middle] {
            workspace.give(buffer);
        }
    }
}

/// One task's rows of all matrices of the half after attention.
struct FeedForwardTask<'a, E> {
    middle: &'a [f32],
    /// Gate and up, which their gradients replace.
    gate_up: &'a mut [E],
    dx: &'a mut [f32],
    dy: &'a mut [E],
    norm_sums: &'a mut [f32],
    d_out: &'a mut [E],
    gated: &'a mut [E],
    h: &'a mut [E],
    d_middle: &'a mut [E],
}

/// The half of a block after attention. Each task takes its rows through all of it, so that they stay in its cache. The
/// weights' gradients, which sum over all rows, follow.
fn feed_forward<E: Element>(
    input: BlockInput<'_>,
    right: &BackwardWeights<'_>,
    activations: &mut Activations<'_, E>,
    stream: StreamGradients<'_, E>,
    gradients: Option<&mut BlockGradients<'_>>,
    tasks: &[Range<usize>],
) {
    let BlockInput { stack, weights, batch, .. } = input;
    let (shape, workspace, count) = (&stack.shape, &stack.workspace, batch.rows());
    let (d, a, f) = (shape.width, shape.attention(), shape.ffn);
    let mut buffers = FeedForwardBuffers::take::<E>(workspace, shape, count);
    let mut norm_sums = WeightSums::take::<E>(workspace, count, d);

    let mut gate_up = RowSplitter::new(activations.gate_up, 2 * f);
    let (mut dx, mut dy) = (RowSplitter::new(stream.dx, d), RowSplitter::new(stream.dy, a));
    let mut sums = norm_sums.split();
    let mut d_out = RowSplitter::new(E::of_mut(&mut buffers.d_out), d);
    let mut gated = RowSplitter::new(E::of_mut(&mut buffers.gated), f);
    let mut h = RowSplitter::new(E::of_mut(&mut buffers.h), d);
    let mut d_middle = RowSplitter::new(E::of_mut(&mut buffers.d_middle), d);
    let task = |rows: &Range<usize>| FeedForwardTask {
        middle: part(&*activations.middle, d, rows),
        gate_up: gate_up.next(rows.len()),
        dx: dx.next(rows.len()),
        dy: dy.next(rows.len()),
        norm_sums: sums.next(summed::<E>(rows)),
        d_out: d_out.next(rows.len()),
        gated: gated.next(rows.len()),
        h: h.next(rows.len()),
        d_middle: d_middle.next(rows.len()),
    };
    let tasks: Vec<_> = tasks.iter().map(task).collect();
    tasks.into_par_iter().with_max_len(1).for_each(|task| {
        // dx changes below, and the gradient of `down` needs it as it is now.
        convert(task.dx, task.d_out);
        gate_and_up(LeftRows::contiguous(task.d_out, d), right.down.rhs(), task.gate_up, task.gated);
        let norm = Norm { x: task.middle, weight: weights.post_norm, epsilon: shape.epsilon };
        let d_gate_up = LeftRows::contiguous(&*task.gate_up, 2 * f);
        norm.backward(d_gate_up, right.gate_up.rhs(), task.dx, task.norm_sums, task.h);
        // Now dx is the gradient behind attention: of the residual stream, and of the output projection `o`.
        convert(task.dx, task.d_middle);
        rounded_product(LeftRows::contiguous(task.d_middle, d), right.o.rhs(), task.dy);
    });
    if let Some(gradients) = gradients {
        norm_sums.add_to(gradients.post_norm);
        add_weight_gradients(workspace, shape, activations, &buffers, gradients);
    }
    norm_sums.give(workspace);
    buffers.give(workspace);
}

/// The gradients of the matrices gate and up, down, and o, from the gradients of their outputs and their inputs.
fn add_weight_gradients<E: Element>(
    workspace: &Workspace,
    shape: &BlockShape,
    activations: &Activations<'_, E>,
    buffers: &FeedForwardBuffers,
    gradients: &mut BlockGradients<'_>,
) {
    let (d, a, f) = (shape.width, shape.attention(), shape.ffn);
    let rows = activations.middle.len() / d;
    let operand = |matrix, n| RightOperand::new::<E, E>(workspace, Matrix::rows(matrix, rows, n));
    let (gated, (h, y)) = rayon::join(
        || operand(&E::of(&buffers.gated)[..rows * f], f),
        || rayon::join(|| operand(&E::of(&buffers.h)[..rows * d], d), || operand(activations.y, a)),
    );
    let (d_out, d_middle) = (E::of(&buffers.d_out), E::of(&buffers.d_middle));
    let BlockGradients { down, gate_up, o, fresh, .. } = gradients;
    // One call for all three: their tasks fill the threads together.
    let mut products = [
        OuterProduct { a: &*activations.gate_up, stride: 2 * f, rows: 2 * f, rhs: h.rhs(), c: gate_up },
        OuterProduct { a: d_out, stride: d, rows: d, rhs: gated.rhs(), c: down },
        OuterProduct { a: d_middle, stride: d, rows: d, rhs: y.rhs(), c: o },
    ];
    outer_products(&mut products, rows, !*fresh);
    for operand in [gated, h, y] {
        operand.give(workspace);
    }
}

/// The half of a block before attention: adds to `dx` (rows, D) the gradient that comes through queries, keys and values,
/// given their gradients `d_qkv` (rows, H + 2 · Hkv, Dh).
fn project_qkv<E: Element>(
    input: BlockInput<'_>,
    right: &BackwardWeights<'_>,
    d_qkv: &[E],
    dx: &mut [f32],
    gradients: Option<&mut BlockGradients<'_>>,
    tasks: &[Range<usize>],
) {
    struct Task<'a, E> {
        x: &'a [f32],
        d_qkv: &'a [E],
        dx: &'a mut [f32],
        norm_sums: &'a mut [f32],
        h: &'a mut [E],
    }

    let BlockInput { stack, weights, batch, .. } = input;
    let (shape, workspace, count) = (&stack.shape, &stack.workspace, batch.rows());
    let (d, columns) = (shape.width, shape.qkv());
    let mut memory = workspace.take(E::room(count * d));
    let mut norm_sums = WeightSums::take::<E>(workspace, count, d);

    let (mut dx, mut sums) = (RowSplitter::new(dx, d), norm_sums.split());
    let mut h = RowSplitter::new(E::of_mut(&mut memory), d);
    let task = |rows: &Range<usize>| Task {
        x: part(input.x, d, rows),
        d_qkv: part(d_qkv, columns, rows),
        dx: dx.next(rows.len()),
        norm_sums: sums.next(summed::<E>(rows)),
        h: h.next(rows.len()),
    };
    let tasks: Vec<_> = tasks.iter().map(task).collect();
    tasks.into_par_iter().with_max_len(1).for_each(|Task { x, d_qkv, dx, norm_sums, h }| {
        let norm = Norm { x, weight: weights.input_norm, epsilon: shape.epsilon };
        norm.backward(LeftRows::contiguous(d_qkv, columns), right.qkv.rhs(), dx, norm_sums, h);
    });
    if let Some(BlockGradients { input_norm, qkv, fresh, .. }) = gradients {
        norm_sums.add_to(input_norm);
        let h = &E::of(&memory)[..count * d];
        let rhs = RightOperand::new::<E, E>(workspace, Matrix::rows(h, count, d));
        let product = OuterProduct { a: d_qkv, stride: columns, rows: columns, rhs: rhs.rhs(), c: qkv };
        outer_products(&mut [product], count, !*fresh);
        rhs.give(workspace);
    }
    norm_sums.give(workspace);
    workspace.give(memory);
}

/// Replaces gate and up (rows, 2, F) by their gradients, given the gradient `dy` of the block's output (rows, D), and
/// computes `silu(gate) · up` (rows, F) once more.
fn gate_and_up<E: Element>(dy: LeftRows<'_, E>, down: Rhs<'_>, gate_up: &mut [E], gated: &mut [E]) {
    let f = down.columns();
    with_scratch(dy.count * WIDTH, |scratch| {
        by_columns(dy, f, WIDTH, |columns, dy| {
            let width = columns.len();
            multiply(dy, down, columns.clone(), scratch, width, false);
            let saved = gate_up.chunks_exact_mut(2 * f).zip(gated.chunks_exact_mut(f));
            for ((saved, gated), d_gated) in saved.zip(scratch.chunks_exact(width)) {
                let (gate, up) = saved.split_at_mut(f);
                let (gate, up) = (&mut gate[columns.clone()], &mut up[columns.clone()]);
                swiglu::backward(d_gated, gate, up, &mut gated[columns.clone()]);
            }
        });
    });
}

/// An RMSNorm of a task's rows (rows, D) whose output was multiplied by a matrix.
struct Norm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    epsilon: f32,
}

impl Norm<'_> {
    /// Adds the gradient of x to `dx` (rows, D) when the gradient of the norm's output is `dy · B`: dy (rows, k),
    /// B (k × D). Writes the partial sums of the weight's gradient, and the norm's output `h` (rows, D).
    fn backward<E: Element>(
        &self,
        dy: LeftRows<'_, E>,
        rhs: Rhs<'_>,
        dx: &mut [f32],
        sums: &mut [f32],
        h: &mut [E],
    ) {
        let d = self.weight.len();
        rms_norm::forward(self.x, self.weight, h, self.epsilon);
        with_scratch(self.x.len(), |dh| {
            with_rows(dy, |dy| multiply(dy, rhs, 0..d, dh, d, false));
            rms_norm::backward::<E>(self.x, self.weight, dh, dx, sums, self.epsilon);
        });
    }
}
