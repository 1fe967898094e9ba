//! The forward pass of a block.

use rayon::prelude::*;

use super::{Batch, BlockWeights, Kept, Packed, Stack};
use crate::attention;
use crate::element::{Element, convert, narrow};
use crate::product::{NR, Order, PANEL, Rhs, multiply, task_rows, with_rows, with_scratch};
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
                for first in (0..3 * a).step_by(step) {
                    let width = step.min(3 * a - first);
                    let panels = h.chunks(PANEL * d).zip(qkv.chunks_mut(PANEL * 3 * a)).enumerate();
                    for (p, (h, qkv)) in panels {
                        with_rows(h, (h.len() / d, d, d), |h| {
                            multiply(h, weights, first..first + width, scratch, width, false);
                        });
                        vector::dispatch(
                            #[inline(always)]
                            || {
                                // Values are not rotated.
                                let rotated = width.min((2 * a).saturating_sub(first));
                                let rows = scratch.chunks_exact_mut(width).zip(qkv.chunks_exact_mut(3 * a));
                                for (i, (row, qkv)) in rows.enumerate() {
                                    let position = (task * height + p * PANEL + i) % time;
                                    rope.rotate(&mut row[..rotated], position, 1.0);
                                    narrow(row, &mut qkv[first..first + width]);
                                }
                            },
                        );
                    }
                }
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
        for first in (0..n).step_by(WIDTH) {
            let columns = first..n.min(first + WIDTH);
            for (z, x) in z.chunks_mut(PANEL * n).zip(x.chunks(PANEL * k)) {
                with_rows(x, (x.len() / k, k, k), |x| {
                    multiply(x, rhs, columns.clone(), &mut z[first..], n, true);
                });
            }
        }
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
                for first in (0..f).step_by(WIDTH) {
                    let columns = first..f.min(first + WIDTH);
                    let width = columns.len();
                    let kept = gate_up.chunks_mut(PANEL * 2 * f).zip(gated.chunks_mut(PANEL * f));
                    for (h, (kept, gated)) in h.chunks(PANEL * d).zip(kept) {
                        with_rows(h, (h.len() / d, d, d), |h| {
                            multiply(h, gate, columns.clone(), g, width, false);
                            multiply(h, up, columns.clone(), u, width, false);
                        });
                        let kept = kept.chunks_exact_mut(2 * f).zip(gated.chunks_exact_mut(f));
                        let results = g.chunks_exact(width).zip(u.chunks_exact(width));
                        for ((kept, gated), (g, u)) in kept.zip(results) {
                            swiglu::forward(g, u, &mut gated[columns.clone()]);
                            let (kept_gate, kept_up) = kept.split_at_mut(f);
                            convert(g, &mut kept_gate[columns.clone()]);
                            convert(u, &mut kept_up[columns.clone()]);
                        }
                    }
                }
            });
        });
    });
}
