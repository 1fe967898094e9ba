//! The forward pass of a block.

use rayon::prelude::*;

use super::{Batch, BlockWeights, Kept, Packed, Stack};
use crate::attention;
use crate::element::{Element, narrow};
use crate::product::{NR, Order, PANEL, Rhs, multiply, with_rows, with_scratch};
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
    let mut memory = workspace.take(E::room(rows * d));
    let h = &mut E::of_mut(&mut memory)[..rows * d];

    stack.profile.time(Phase::Products, || {
        rms_norm::forward_all(x, weights.input_norm, h, shape.epsilon);
        let packed = Packed::new::<E, f32>(workspace, Order::Columns, weights.qkv, d, (d, 3 * a));
        project_qkv(stack, h, packed.rhs(), kept.qkv, batch.time);
        workspace.give(packed.memory);
    });
    stack.profile.time(Phase::Attention, || {
        attention::forward_all(kept.qkv, kept.y, kept.log_sums, stack.attention_shape(batch));
    });
    stack.profile.time(Phase::Products, || {
        let packed = Packed::new::<E, f32>(workspace, Order::Columns, weights.o, a, (a, d));
        add_product(x, kept.y, packed.rhs(), kept.middle, (a, d));
        workspace.give(packed.memory);

        rms_norm::forward_all(kept.middle, weights.post_norm, h, shape.epsilon);
        let (gate, up) = weights.gate_up.split_at(f * d);
        let gate = Packed::new::<E, f32>(workspace, Order::Columns, gate, d, (d, f));
        let up = Packed::new::<E, f32>(workspace, Order::Columns, up, d, (d, f));
        let mut memory = workspace.take(E::room(rows * f));
        let gated = &mut E::of_mut(&mut memory)[..rows * f];
        gate_and_up(h, gate.rhs(), up.rhs(), kept.gate_up, gated, (d, f));
        workspace.give(gate.memory);
        workspace.give(up.memory);

        let packed = Packed::new::<E, f32>(workspace, Order::Columns, weights.down, f, (f, d));
        add_product(kept.middle, gated, packed.rhs(), y, (f, d));
        workspace.give(packed.memory);
        workspace.give(memory);
    });
    workspace.give(memory);
}

/// Queries, keys and values (rows, 3, H, Dh) of h (rows, D), queries and keys rotated.
fn project_qkv<E: Element>(stack: &Stack, h: &[E], weights: Rhs<'_>, qkv: &mut [E], time: usize) {
    let shape = &stack.shape;
    let (d, a, rope) = (shape.width, shape.attention(), &shape.rope);
    let step = chunk(rope);
    let panels = qkv.par_chunks_mut(PANEL * 3 * a).zip(h.par_chunks(PANEL * d)).enumerate();
    panels.for_each(|(p, (qkv, h))| {
        let rows = h.len() / d;
        with_rows(h, (rows, d, d), |h| {
            with_scratch(PANEL * step, |scratch| {
                for first in (0..3 * a).step_by(step) {
                    let width = step.min(3 * a - first);
                    multiply(h, weights, first..first + width, scratch, width, false);
                    vector::dispatch(
                        #[inline(always)]
                        || {
                            for (i, row) in scratch.chunks_exact_mut(width).take(rows).enumerate() {
                                // Values are not rotated.
                                let rotated = width.min((2 * a).saturating_sub(first));
                                rope.rotate(&mut row[..rotated], (p * PANEL + i) % time, 1.0);
                                narrow(row, &mut qkv[i * 3 * a + first..][..width]);
                            }
                        },
                    );
                }
            });
        });
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
    let panels = z.par_chunks_mut(PANEL * n).zip(y.par_chunks(PANEL * n)).zip(x.par_chunks(PANEL * k));
    panels.for_each(|((z, y), x)| {
        z.copy_from_slice(y);
        with_rows(x, (x.len() / k, k, k), |x| multiply(x, rhs, 0..n, z, n, true));
    });
}

/// Gate and up (rows, 2, F) of h (rows, D), and `silu(gate) · up` (rows, F).
fn gate_and_up<E: Element>(
    h: &[E],
    gate: Rhs<'_>,
    up: Rhs<'_>,
    gate_up: &mut [E],
    gated: &mut [E],
    (d, f): (usize, usize),
) {
    let panels = gate_up.par_chunks_mut(PANEL * 2 * f).zip(gated.par_chunks_mut(PANEL * f));
    panels.zip(h.par_chunks(PANEL * d)).for_each(|((gate_up, gated), h)| {
        let rows = h.len() / d;
        with_rows(h, (rows, d, d), |h| {
            with_scratch(2 * PANEL * WIDTH, |scratch| {
                let (g, u) = scratch.split_at_mut(PANEL * WIDTH);
                for first in (0..f).step_by(WIDTH) {
                    let columns = first..f.min(first + WIDTH);
                    let width = columns.len();
                    multiply(h, gate, columns.clone(), g, width, false);
                    multiply(h, up, columns, u, width, false);
                    let kept = gate_up.chunks_exact_mut(2 * f).zip(gated.chunks_exact_mut(f));
                    let results = g.chunks_exact(width).zip(u.chunks_exact(width));
                    for ((kept, gated), (g, u)) in kept.zip(results).take(rows) {
                        swiglu::forward(g, u, &mut gated[first..first + width]);
                        vector::dispatch(
                            #[inline(always)]
                            || {
                                narrow(g, &mut kept[first..first + width]);
                                narrow(u, &mut kept[f + first..][..width]);
                            },
                        );
                    }
                }
            });
        });
    });
}
