//! The forward pass of a block.

use std::ops::Range;

use rayon::prelude::*;

use super::{Batch, BlockWeights, Kept, Stack};
use crate::attention;
use crate::buffer::Workspace;
use crate::element::{Element, convert, narrow};
use crate::product::{
    NR, Order, Rhs, RightOperand, by_columns, multiply, parts, parts_mut, row_tasks, with_rows, with_scratch,
};
use crate::profile::Phase;
use crate::rope::RopeTable;
use crate::{rms_norm, swiglu, vector};

/// Columns whose f32 results wait in scratch memory for what is done with them.
pub(super) const WIDTH: usize = 256;

/// The weights of a block as right operands.
struct RightWeights<'a> {
    qkv: RightOperand<'a>,
    o: RightOperand<'a>,
    gate: RightOperand<'a>,
    up: RightOperand<'a>,
    down: RightOperand<'a>,
}

impl<'a> RightWeights<'a> {
    fn new<E: Element>(stack: &Stack, weights: BlockWeights<'a>) -> Self {
        let shape = &stack.shape;
        let (d, a, f) = (shape.width, shape.attention(), shape.ffn);
        let pack =
            |matrix, k, n| RightOperand::new::<E, f32>(&stack.workspace, Order::Columns, matrix, k, (k, n));
        let (gate, up) = weights.gate_up.split_at(f * d);
        let ((qkv, o), (gate, (up, down))) = rayon::join(
            || rayon::join(|| pack(weights.qkv, d, 3 * a), || pack(weights.o, a, d)),
            || {
                rayon::join(
                    || pack(gate, d, f),
                    || rayon::join(|| pack(up, d, f), || pack(weights.down, f, d)),
                )
            },
        );
        Self { qkv, o, gate, up, down }
    }

    fn give(self, workspace: &Workspace) {
        for right in [self.qkv, self.o, self.gate, self.up, self.down] {
            right.give(workspace);
        }
    }
}

/// `y = block(x)` for x and y (rows, D); fills `kept`.
pub(crate) fn forward<E: Element>(
    stack: &Stack,
    weights: BlockWeights<'_>,
    x: &[f32],
    y: &mut [f32],
    kept: &mut Kept<'_, E>,
    batch: Batch,
) {
    let tasks = row_tasks(batch.rows());
    let right = stack.profile.time(Phase::Products, || {
        let right = RightWeights::new::<E>(stack, weights);
        project_qkv(stack, (x, weights.input_norm), right.qkv.rhs(), kept.qkv, &tasks, batch.time);
        right
    });
    stack.profile.time(Phase::Attention, || {
        attention::forward_all(kept.qkv, kept.y, kept.log_sums, stack.attention_shape(batch));
    });
    stack.profile.time(Phase::Products, || {
        feed_forward(stack, &right, weights.post_norm, x, y, kept, &tasks);
        right.give(&stack.workspace);
    });
}

/// Queries, keys and values (rows, 3, H, Dh) of x (rows, D) after its norm, queries and keys rotated.
fn project_qkv<E: Element>(
    stack: &Stack,
    (x, norm): (&[f32], &[f32]),
    weights: Rhs<'_>,
    qkv: &mut [E],
    tasks: &[Range<usize>],
    time: usize,
) {
    let shape = &stack.shape;
    let (d, a, rope) = (shape.width, shape.attention(), &shape.rope);
    let step = chunk(rope);
    let results = parts_mut(tasks, qkv, 3 * a).into_par_iter();
    tasks.par_iter().zip(parts(tasks, x, d)).zip(results).with_max_len(1).for_each(|((task, x), qkv)| {
        with_normed::<E>(x, norm, shape.epsilon, |h| {
            with_scratch(task.len() * step, |scratch| {
                by_columns(h, d, (3 * a, step), |columns, h| {
                    let width = columns.len();
                    multiply(h, weights, columns.clone(), scratch, width, false);
                    // Values are not rotated.
                    let rotated = width.min((2 * a).saturating_sub(columns.start));
                    let rows = scratch.chunks_exact_mut(width).zip(qkv.chunks_exact_mut(3 * a));
                    vector::dispatch(
                        #[inline(always)]
                        || {
                            for (position, (row, qkv)) in task.clone().zip(rows) {
                                rope.rotate(&mut row[..rotated], position % time, 1.0);
                                narrow(row, &mut qkv[columns.clone()]);
                            }
                        },
                    );
                });
            });
        });
    });
}

/// What comes after attention: each task takes its rows through all of it, so that they stay in its cache.
fn feed_forward<E: Element>(
    stack: &Stack,
    right: &RightWeights<'_>,
    norm: &[f32],
    x: &[f32],
    y: &mut [f32],
    kept: &mut Kept<'_, E>,
    tasks: &[Range<usize>],
) {
    let shape = &stack.shape;
    let (d, a, f) = (shape.width, shape.attention(), shape.ffn);
    let middle = parts_mut(tasks, kept.middle, d).into_par_iter();
    let gate_up = parts_mut(tasks, kept.gate_up, 2 * f).into_par_iter();
    let inputs = parts(tasks, x, d).into_par_iter().zip(parts(tasks, kept.y, a));
    inputs.zip(middle).zip(gate_up).zip(parts_mut(tasks, y, d)).with_max_len(1).for_each(
        |((((x, attended), middle), gate_up), y)| {
            add_product(x, attended, right.o.rhs(), middle, (a, d));
            with_scratch(E::room(x.len() / d * f), |memory| {
                let gated = &mut E::of_mut(memory)[..x.len() / d * f];
                with_normed::<E>(middle, norm, shape.epsilon, |h| {
                    gate_and_up(h, (right.gate.rhs(), right.up.rhs()), gate_up, gated, (d, f));
                });
                add_product(middle, gated, right.down.rhs(), y, (f, d));
            });
        },
    );
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
    z.copy_from_slice(y);
    with_rows(x, (x.len() / k, k, k), |x| multiply(x, rhs, 0..n, z, n, true));
}

/// Gate and up (rows, 2, F) of h (rows, D), and `silu(gate) · up` (rows, F).
fn gate_and_up<E: Element>(
    h: &[E],
    (gate, up): (Rhs<'_>, Rhs<'_>),
    gate_up: &mut [E],
    gated: &mut [E],
    (d, f): (usize, usize),
) {
    let room = h.len() / d * WIDTH;
    with_scratch(2 * room, |scratch| {
        let (g, u) = scratch.split_at_mut(room);
        by_columns(h, d, (f, WIDTH), |columns, h| {
            let width = columns.len();
            multiply(h, gate, columns.clone(), g, width, false);
            multiply(h, up, columns.clone(), u, width, false);
            let kept = gate_up.chunks_exact_mut(2 * f).zip(gated.chunks_exact_mut(f));
            let results = g.chunks_exact(width).zip(u.chunks_exact(width));
            for ((kept, gated), (g, u)) in kept.zip(results) {
                swiglu::forward(g, u, &mut gated[columns.clone()]);
                let (kept_gate, kept_up) = kept.split_at_mut(f);
                convert(g, &mut kept_gate[columns.clone()]);
                convert(u, &mut kept_up[columns.clone()]);
            }
        });
    });
}
