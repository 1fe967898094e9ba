//! The forward pass of a block.

use rayon::prelude::*;

use super::{Batch, BlockWeights, Kept, Packed, Stack};
use crate::attention;
use crate::element::{Element, convert, narrow};
use crate::product::{NR, Order, PANEL, Rhs, for_each_tile, multiply, task_rows, with_scratch};
use crate::profile::Phase;
use crate::rope::RopeTable;
use crate::{rms_norm, swiglu, vector};

/// Columns whose f32 results wait in scratch memory for what is done with them.
pub(super) const WIDTH: usize = 256;

/// `y = block(x)` for x and y (rows, D); fills `kept`.
pub(crate) fn forward<E: Element>(
    stack: &Stack,
    weights: BlockWeights<'_>,
    x: &[f32],
    y: &mut [f32],
    kept: &mut Kept<'_, E>,
    batch: Batch,
) {
    let (shape, workspace) = (&stack.shape, &stack.workspace);
    let (d, a, f, rows) = (shape.width, shape.attention(), shape.ffn, batch.rows());
    stack.profile.time(Phase::Products, || {
        let packed = Packed::new::<E, f32>(workspace, Order::Columns, weights.qkv, d, (d, 3 * a));
        project_qkv(stack, (x, weights.input_norm), packed.rhs(), kept.qkv, batch.time);
        workspace.give(packed.memory);
    });
    stack.profile.time(Phase::Attention, || {
        attention::forward_all(kept.qkv, kept.y, kept.log_sums, stack.attention_shape(batch));
    });
    stack.profile.time(Phase::Products, || {
        let (gate, up) = weights.gate_up.split_at(f * d);
        let pack = |weights, k, n| Packed::new::<E, f32>(workspace, Order::Columns, weights, k, (k, n));
        let (packed, (gate, up)) =
            rayon::join(|| pack(weights.o, a, d), || rayon::join(|| pack(gate, d, f), || pack(up, d, f)));
        add_product(x, kept.y, packed.rhs(), kept.middle, (a, d));
        workspace.give(packed.memory);

        let mut memory = workspace.take(E::room(rows * f));
        let gated = &mut E::of_mut(&mut memory)[..rows * f];
        let input = (&*kept.middle, weights.post_norm);
        gate_and_up(stack, input, gate.rhs(), up.rhs(), kept.gate_up, gated);
        workspace.give(gate.memory);
        workspace.give(up.memory);

        let packed = Packed::new::<E, f32>(workspace, Order::Columns, weights.down, f, (f, d));
        add_product(kept.middle, gated, packed.rhs(), y, (f, d));
        workspace.give(packed.memory);
        workspace.give(memory);
    });
}

/// Queries, keys and values (rows, 3, H, Dh) of x (rows, D) after its norm, queries and keys rotated.
fn project_qkv<E: Element>(
    stack: &Stack,
    (x, norm): (&[f32], &[f32]),
    weights: Rhs<'_>,
    qkv: &mut [E],
    time: usize,
) {
    let shape = &stack.shape;
    let (d, a, rope) = (shape.width, shape.attention(), &shape.rope);
    let (step, height) = (chunk(rope), task_rows(x.len() / d));
    let tasks = qkv.par_chunks_mut(height * 3 * a).zip(x.par_chunks(height * d)).enumerate();
    tasks.for_each(|(task, (qkv, x))| {
        with_normed::<E>(x, norm, shape.epsilon, |h| {
            with_scratch(PANEL * step, |scratch| {
                for_each_tile(h, d, (3 * a, step), |rows, columns, h| {
                    let width = columns.len();
                    multiply(h, weights, columns.clone(), scratch, width, false);
                    // Values are not rotated.
                    let rotated = width.min((2 * a).saturating_sub(columns.start));
                    let first = task * height + rows.start;
                    let results = qkv[rows.start * 3 * a..rows.end * 3 * a].chunks_exact_mut(3 * a);
                    vector::dispatch(
                        #[inline(always)]
                        || {
                            for (i, (row, qkv)) in scratch.chunks_exact_mut(width).zip(results).enumerate() {
                                rope.rotate(&mut row[..rotated], (first + i) % time, 1.0);
                                narrow(row, &mut qkv[columns.clone()]);
                            }
                        },
                    );
                });
            });
        });
    });
}

/// Runs `f` on rows of x (rows, D) after their norm.
fn with_normed<E: Element>(x: &[f32], norm: &[f32], epsilon: f32, f: impl FnOnce(&[E])) {
    with_scratch(E::room(x.len()), |memory| {
        let h = &mut E::of_mut(memory)[..x.len()];
        rms_norm::forward(x, norm, h, epsilon);
        f(h);
    });
}

/// Columns that are whole heads and whole tiles, about [`WIDTH`].
fn chunk(rope: &RopeTable) -> usize {
    let mut both = rope.head_dim();
    while !both.is_multiple_of(NR) {
        both += rope.head_dim();
    }
    both * (WIDTH / both).max(1)
}

/// `z = y + x · B`: x (rows, k), y and z (rows, n).
fn add_product<E: Element>(y: &[f32], x: &[E], rhs: Rhs<'_>, z: &mut [f32], (k, n): (usize, usize)) {
    let height = task_rows(z.len() / n);
    let tasks = z.par_chunks_mut(height * n).zip(y.par_chunks(height * n)).zip(x.par_chunks(height * k));
    tasks.for_each(|((z, y), x)| {
        z.copy_from_slice(y);
        for_each_tile(x, k, (n, WIDTH), |rows, columns, x| {
            multiply(x, rhs, columns.clone(), &mut z[rows.start * n + columns.start..], n, true);
        });
    });
}

/// Gate and up (rows, 2, F) of x (rows, D) after its norm, and `silu(gate) · up` (rows, F).
fn gate_and_up<E: Element>(
    stack: &Stack,
    (x, norm): (&[f32], &[f32]),
    gate: Rhs<'_>,
    up: Rhs<'_>,
    gate_up: &mut [E],
    gated: &mut [E],
) {
    let (d, f) = (stack.shape.width, stack.shape.ffn);
    let height = task_rows(x.len() / d);
    let tasks = gate_up.par_chunks_mut(height * 2 * f).zip(gated.par_chunks_mut(height * f));
    tasks.zip(x.par_chunks(height * d)).for_each(|((gate_up, gated), x)| {
        with_normed::<E>(x, norm, stack.shape.epsilon, |h| {
            with_scratch(2 * PANEL * WIDTH, |scratch| {
                let (g, u) = scratch.split_at_mut(PANEL * WIDTH);
                for_each_tile(h, d, (f, WIDTH), |rows, columns, h| {
                    let width = columns.len();
                    multiply(h, gate, columns.clone(), g, width, false);
                    multiply(h, up, columns.clone(), u, width, false);
                    let kept = gate_up[rows.start * 2 * f..rows.end * 2 * f].chunks_exact_mut(2 * f);
                    let kept = kept.zip(gated[rows.start * f..rows.end * f].chunks_exact_mut(f));
                    let results = g.chunks_exact(width).zip(u.chunks_exact(width));
                    for ((kept, gated), (g, u)) in kept.zip(results) {
                        swiglu::forward(g, u, &mut gated[columns.clone()]);
                        let (kept_gate, kept_up) = kept.split_at_mut(f);
                        convert(g, &mut kept_gate[columns.clone()]);
                        convert(u, &mut kept_up[columns.clone()]);
                    }
                });
            });
        });
    });
}
