//! The backward pass of a block.

use std::ops::Range;

use rayon::prelude::*;

use super::forward::WIDTH;
use super::{Batch, BlockGradients, BlockWeights, Kept, Stack};
use crate::attention;
use crate::buffer::Workspace;
use crate::element::{Element, convert};
use crate::product::{
    Order, OuterProduct, Rhs, RightOperand, by_columns, multiply, outer_products, parts, parts_mut,
    row_tasks, with_rows, with_scratch,
};
use crate::profile::Phase;
use crate::rms_norm::{self, WeightSums};
use crate::swiglu;

/// The weights of a block as right operands of the products that lead back to their inputs.
struct RightWeights<'a> {
    qkv: RightOperand<'a>,
    o: RightOperand<'a>,
    gate_up: RightOperand<'a>,
    down: RightOperand<'a>,
}

impl<'a> RightWeights<'a> {
    fn new<E: Element>(stack: &Stack, weights: BlockWeights<'a>) -> Self {
        let shape = &stack.shape;
        let (d, a, f) = (shape.width, shape.attention(), shape.ffn);
        let pack =
            |matrix, k, n| RightOperand::new::<E, f32>(&stack.workspace, Order::Rows, matrix, n, (k, n));
        let ((qkv, o), (gate_up, down)) = rayon::join(
            || rayon::join(|| pack(weights.qkv, 3 * a, d), || pack(weights.o, d, a)),
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

/// Replaces the gradient of the block's output, `dx` (rows, D), by that of its input x; overwrites what was kept.
/// The gradients of the parameters are added to `gradients` (`fresh`: written over it).
#[expect(clippy::too_many_arguments, reason = "a block, its input, its results and their gradients")]
pub(crate) fn backward<E: Element>(
    stack: &Stack,
    weights: BlockWeights<'_>,
    x: &[f32],
    kept: &mut Kept<'_, E>,
    dx: &mut [f32],
    gradients: &mut [f32],
    fresh: bool,
    batch: Batch,
) {
    let (shape, workspace) = (&stack.shape, &stack.workspace);
    let (a, rows) = (shape.attention(), batch.rows());
    let mut gradients = BlockGradients::new(shape, gradients);
    if fresh {
        gradients.input_norm.fill(0.0);
        gradients.post_norm.fill(0.0);
    }
    let tasks = row_tasks(rows);
    let mut dy_memory = workspace.take(E::room(rows * a));
    let right = stack.profile.time(Phase::Products, || {
        let right = RightWeights::new::<E>(stack, weights);
        let dy = &mut E::of_mut(&mut dy_memory)[..rows * a];
        feed_forward(stack, &right, weights.post_norm, kept, (dx, dy), &mut gradients, (&tasks, fresh));
        right
    });
    stack.profile.time(Phase::Attention, || {
        let dy = &E::of_mut(&mut dy_memory)[..rows * a];
        let attention = stack.attention_shape(batch);
        attention::backward_all(kept.qkv, kept.y, dy, kept.log_sums, &shape.rope, attention);
    });
    workspace.give(dy_memory);
    stack.profile.time(Phase::Products, || {
        project_qkv(stack, &right, (x, weights.input_norm), kept.qkv, dx, &mut gradients, (&tasks, fresh));
        right.give(workspace);
    });
}

/// What comes after attention: replaces the gradient of the block's output, `dx` (rows, D), by that of the residual stream
/// behind attention, and computes that of attention's result, `dy` (rows, H, Dh). Each task takes its rows through all of
/// it, so that they stay in its cache; the weights' gradients, which need all rows, follow.
fn feed_forward<E: Element>(
    stack: &Stack,
    right: &RightWeights<'_>,
    norm: &[f32],
    kept: &mut Kept<'_, E>,
    (dx, dy): (&mut [f32], &mut [E]),
    gradients: &mut BlockGradients<'_>,
    (tasks, fresh): (&[Range<usize>], bool),
) {
    let (shape, workspace) = (&stack.shape, &stack.workspace);
    let (d, a, f) = (shape.width, shape.attention(), shape.ffn);
    let rows = dx.len() / d;
    let sizes = [d, f, d, d].map(|width| rows * width);
    let mut memory = sizes.map(|size| workspace.take(E::room(size)));
    let mut norm_sums = WeightSums::take(workspace, rows, d);
    let [d_out, gated, h, d_middle] = &mut memory;
    let all = tasks.par_iter().zip(parts(tasks, kept.middle, d)).zip(parts_mut(tasks, kept.gate_up, 2 * f));
    let all = all.zip(parts_mut(tasks, dx, d)).zip(parts_mut(tasks, dy, a)).zip(norm_sums.parts(tasks));
    let all = all.zip(parts_mut(tasks, &mut E::of_mut(d_out)[..sizes[0]], d));
    let all = all.zip(parts_mut(tasks, &mut E::of_mut(gated)[..sizes[1]], f));
    let all = all.zip(parts_mut(tasks, &mut E::of_mut(h)[..sizes[2]], d));
    let all = all.zip(parts_mut(tasks, &mut E::of_mut(d_middle)[..sizes[3]], d));
    all.with_max_len(1).for_each(
        |(((((((((_, middle), gate_up), dx), dy), sums), d_out), gated), h), d_middle)| {
            convert(dx, d_out);
            gate_and_up(d_out, right.down.rhs(), gate_up, gated, (d, f));
            let norm = Norm { x: middle, weight: norm, epsilon: shape.epsilon };
            norm.backward((&*gate_up, 2 * f), right.gate_up.rhs(), dx, sums, h);
            convert(dx, d_middle);
            project(d_middle, right.o.rhs(), dy, (d, a));
        },
    );
    norm_sums.add_to(gradients.post_norm, workspace);
    let operand = |matrix, n| RightOperand::new::<E, E>(workspace, Order::Rows, matrix, n, (rows, n));
    let [d_out, gated, h, d_middle] = memory.each_ref().map(|memory| E::of(memory));
    let (gated_rhs, (h, y)) = rayon::join(
        || operand(&gated[..sizes[1]], f),
        || rayon::join(|| operand(&h[..sizes[2]], d), || operand(kept.y, a)),
    );
    let BlockGradients { down, gate_up, o, .. } = gradients;
    let mut products = [
        OuterProduct { a: &*kept.gate_up, stride: 2 * f, rows: 2 * f, rhs: h.rhs(), c: gate_up },
        OuterProduct { a: d_out, stride: d, rows: d, rhs: gated_rhs.rhs(), c: down },
        OuterProduct { a: d_middle, stride: d, rows: d, rhs: y.rhs(), c: o },
    ];
    outer_products(&mut products, rows, !fresh);
    for operand in [gated_rhs, h, y] {
        operand.give(workspace);
    }
    for memory in memory {
        workspace.give(memory);
    }
}

/// What comes before attention: adds to `dx` (rows, D) what comes through queries, keys and values, given their gradients
/// `d_qkv` (rows, 3, H, Dh).
fn project_qkv<E: Element>(
    stack: &Stack,
    right: &RightWeights<'_>,
    (x, norm): (&[f32], &[f32]),
    d_qkv: &[E],
    dx: &mut [f32],
    gradients: &mut BlockGradients<'_>,
    (tasks, fresh): (&[Range<usize>], bool),
) {
    let (shape, workspace) = (&stack.shape, &stack.workspace);
    let (d, a) = (shape.width, shape.attention());
    let rows = dx.len() / d;
    let mut memory = workspace.take(E::room(rows * d));
    let h = &mut E::of_mut(&mut memory)[..rows * d];
    let mut norm_sums = WeightSums::take(workspace, rows, d);
    let all = parts(tasks, x, d).into_par_iter().zip(parts(tasks, d_qkv, 3 * a)).zip(parts_mut(tasks, dx, d));
    let all = all.zip(parts_mut(tasks, h, d)).zip(norm_sums.parts(tasks));
    all.with_max_len(1).for_each(|((((x, d_qkv), dx), h), sums)| {
        let norm = Norm { x, weight: norm, epsilon: shape.epsilon };
        norm.backward((d_qkv, 3 * a), right.qkv.rhs(), dx, sums, h);
    });
    norm_sums.add_to(gradients.input_norm, workspace);
    let rhs = RightOperand::new::<E, E>(workspace, Order::Rows, &*h, d, (rows, d));
    let product = OuterProduct { a: d_qkv, stride: 3 * a, rows: 3 * a, rhs: rhs.rhs(), c: gradients.qkv };
    outer_products(&mut [product], rows, !fresh);
    rhs.give(workspace);
    workspace.give(memory);
}

/// Replaces gate and up (rows, 2, F) by their gradients, given that of the output (rows, D), and computes
/// `silu(gate) · up` (rows, F) once more.
fn gate_and_up<E: Element>(
    dx: &[E],
    down: Rhs<'_>,
    gate_up: &mut [E],
    gated: &mut [E],
    (d, f): (usize, usize),
) {
    with_scratch(dx.len() / d * WIDTH, |scratch| {
        by_columns(dx, d, (f, WIDTH), |columns, dx| {
            let width = columns.len();
            multiply(dx, down, columns.clone(), scratch, width, false);
            let kept = gate_up.chunks_exact_mut(2 * f).zip(gated.chunks_exact_mut(f));
            for ((kept, gated), dy) in kept.zip(scratch.chunks_exact(width)) {
                let (gate, up) = kept.split_at_mut(f);
                let (gate, up) = (&mut gate[columns.clone()], &mut up[columns.clone()]);
                swiglu::backward(dy, gate, up, &mut gated[columns.clone()]);
            }
        });
    });
}

/// `y = x · B`, rounded: x (rows, k), y (rows, n).
fn project<E: Element>(x: &[E], rhs: Rhs<'_>, y: &mut [E], (k, n): (usize, usize)) {
    with_scratch(x.len() / k * WIDTH, |scratch| {
        by_columns(x, k, (n, WIDTH), |columns, x| {
            let width = columns.len();
            multiply(x, rhs, columns.clone(), scratch, width, false);
            for (result, y) in scratch.chunks_exact(width).zip(y.chunks_exact_mut(n)) {
                convert(result, &mut y[columns.clone()]);
            }
        });
    });
}

/// An RMSNorm of a task's rows whose output was multiplied by a matrix.
struct Norm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    epsilon: f32,
}

impl Norm<'_> {
    /// Adds to `dx` (rows, D) what comes through the norm when the gradient of its output is `dy · B`: dy (rows, k),
    /// B (k × D). Writes the sums of the weight's gradient, and the norm's output `h` (rows, D).
    fn backward<E: Element>(
        &self,
        (dy, k): (&[E], usize),
        rhs: Rhs<'_>,
        dx: &mut [f32],
        sums: &mut [f32],
        h: &mut [E],
    ) {
        let d = self.weight.len();
        rms_norm::forward(self.x, self.weight, h, self.epsilon);
        with_scratch(self.x.len(), |dh| {
            with_rows(dy, (dy.len() / k, k, k), |dy| multiply(dy, rhs, 0..d, dh, d, false));
            rms_norm::backward(self.x, self.weight, dh, dx, sums, self.epsilon);
        });
    }
}
