//! The backward pass of a block.

use rayon::prelude::*;

use super::forward::WIDTH;
use super::{Batch, BlockGradients, BlockWeights, Kept, Packed, Stack};
use crate::attention;
use crate::buffer::Workspace;
use crate::element::{Element, convert};
use crate::product::{Order, PANEL, Rhs, for_each_tile, multiply, outer_product, task_rows, with_scratch};
use crate::profile::Phase;
use crate::{rms_norm, swiglu};

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
    let (d, a, f, rows) = (shape.width, shape.attention(), shape.ffn, batch.rows());
    let gradients = BlockGradients::new(shape, gradients);
    if fresh {
        gradients.input_norm.fill(0.0);
        gradients.post_norm.fill(0.0);
    }
    let mut narrow_memory = workspace.take(E::room(rows * d));
    let mut h_memory = workspace.take(E::room(rows * d));
    let narrowed = &mut E::of_mut(&mut narrow_memory)[..rows * d];
    let h = &mut E::of_mut(&mut h_memory)[..rows * d];

    let mut dy_memory = stack.profile.time(Phase::Products, || {
        narrow_all(dx, narrowed);
        let packed = Packed::new::<E, f32>(workspace, Order::Rows, weights.down, f, (d, f));
        let mut memory = workspace.take(E::room(rows * f));
        let gated = &mut E::of_mut(&mut memory)[..rows * f];
        gate_and_up(narrowed, packed.rhs(), kept.gate_up, gated, (d, f));
        workspace.give(packed.memory);
        weight_gradient(workspace, (narrowed, d), (gated, f), rows, gradients.down, fresh);
        workspace.give(memory);

        rms_norm::forward_all(kept.middle, weights.post_norm, h, shape.epsilon);
        weight_gradient(workspace, (kept.gate_up, 2 * f), (h, d), rows, gradients.gate_up, fresh);
        let packed = Packed::new::<E, f32>(workspace, Order::Rows, weights.gate_up, d, (2 * f, d));
        let norm = Norm { x: kept.middle, weight: weights.post_norm, epsilon: shape.epsilon };
        norm.backward(workspace, (kept.gate_up, 2 * f), packed.rhs(), dx, gradients.post_norm);
        workspace.give(packed.memory);

        narrow_all(dx, narrowed);
        weight_gradient(workspace, (narrowed, d), (kept.y, a), rows, gradients.o, fresh);
        let packed = Packed::new::<E, f32>(workspace, Order::Rows, weights.o, a, (d, a));
        let mut dy_memory = workspace.take(E::room(rows * a));
        project(narrowed, packed.rhs(), &mut E::of_mut(&mut dy_memory)[..rows * a], (d, a));
        workspace.give(packed.memory);
        dy_memory
    });
    stack.profile.time(Phase::Attention, || {
        let dy = &E::of_mut(&mut dy_memory)[..rows * a];
        let attention = stack.attention_shape(batch);
        attention::backward_all(kept.qkv, kept.y, dy, kept.log_sums, &shape.rope, attention);
    });
    workspace.give(dy_memory);
    stack.profile.time(Phase::Products, || {
        rms_norm::forward_all(x, weights.input_norm, h, shape.epsilon);
        weight_gradient(workspace, (kept.qkv, 3 * a), (h, d), rows, gradients.qkv, fresh);
        let packed = Packed::new::<E, f32>(workspace, Order::Rows, weights.qkv, d, (3 * a, d));
        let norm = Norm { x, weight: weights.input_norm, epsilon: shape.epsilon };
        norm.backward(workspace, (kept.qkv, 3 * a), packed.rhs(), dx, gradients.input_norm);
        workspace.give(packed.memory);
    });
    workspace.give(narrow_memory);
    workspace.give(h_memory);
}

/// Converts with all threads.
fn narrow_all<E: Element>(from: &[f32], to: &mut [E]) {
    const CHUNK: usize = 1 << 15;
    to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(|(to, from)| {
        convert(from, to);
    });
}

/// `C = Aᵀ · B` or `C += …`: A (rows, m), B (rows, n), C (m, n).
fn weight_gradient<E: Element>(
    workspace: &Workspace,
    (a, m): (&[E], usize),
    (b, n): (&[E], usize),
    rows: usize,
    c: &mut [f32],
    fresh: bool,
) {
    let packed = Packed::new::<E, E>(workspace, Order::Rows, b, n, (rows, n));
    outer_product((a, m), (rows, m), packed.rhs(), c, !fresh);
    workspace.give(packed.memory);
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
    let height = task_rows(dx.len() / d);
    let tasks = gate_up.par_chunks_mut(height * 2 * f).zip(gated.par_chunks_mut(height * f));
    tasks.zip(dx.par_chunks(height * d)).for_each(|((gate_up, gated), dx)| {
        with_scratch(PANEL * WIDTH, |scratch| {
            for_each_tile(dx, d, (f, WIDTH), |rows, columns, dx| {
                let width = columns.len();
                multiply(dx, down, columns.clone(), scratch, width, false);
                let kept = gate_up[rows.start * 2 * f..rows.end * 2 * f].chunks_exact_mut(2 * f);
                let kept = kept.zip(gated[rows.start * f..rows.end * f].chunks_exact_mut(f));
                for ((kept, gated), dy) in kept.zip(scratch.chunks_exact(width)) {
                    let (gate, up) = kept.split_at_mut(f);
                    let (gate, up) = (&mut gate[columns.clone()], &mut up[columns.clone()]);
                    swiglu::backward(dy, gate, up, &mut gated[columns.clone()]);
                }
            });
        });
    });
}

/// `y = x · B`, rounded: x (rows, k), y (rows, n).
fn project<E: Element>(x: &[E], rhs: Rhs<'_>, y: &mut [E], (k, n): (usize, usize)) {
    let height = task_rows(x.len() / k);
    y.par_chunks_mut(height * n).zip(x.par_chunks(height * k)).for_each(|(y, x)| {
        with_scratch(PANEL * WIDTH, |scratch| {
            for_each_tile(x, k, (n, WIDTH), |rows, columns, x| {
                let width = columns.len();
                multiply(x, rhs, columns.clone(), scratch, width, false);
                let results = y[rows.start * n..rows.end * n].chunks_exact_mut(n);
                for (result, y) in scratch.chunks_exact(width).zip(results) {
                    convert(result, &mut y[columns.clone()]);
                }
            });
        });
    });
}

/// An RMSNorm whose output was multiplied by a matrix.
struct Norm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    epsilon: f32,
}

impl Norm<'_> {
    /// Adds to `dx` (rows, D) what comes through the norm when the gradient of its output is `dy · B`: dy (rows, k),
    /// B (k × D). Adds the weight's gradient to `dw`.
    fn backward<E: Element>(
        &self,
        workspace: &Workspace,
        (dy, k): (&[E], usize),
        rhs: Rhs<'_>,
        dx: &mut [f32],
        dw: &mut [f32],
    ) {
        let d = self.weight.len();
        let height = task_rows(self.x.len() / d);
        let mut dh = workspace.take(self.x.len());
        dh.par_chunks_mut(height * d).zip(dy.par_chunks(height * k)).for_each(|(dh, dy)| {
            for_each_tile(dy, k, (d, WIDTH), |rows, columns, dy| {
                multiply(dy, rhs, columns.clone(), &mut dh[rows.start * d + columns.start..], d, false);
            });
        });
        rms_norm::backward_all(workspace, self.x, self.weight, &dh, dx, dw, self.epsilon);
        workspace.give(dh);
    }
}
