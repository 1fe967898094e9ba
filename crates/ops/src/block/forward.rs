//! The forward pass of a block.
//!
//! A block is implemented three times, and the three must change together: here for training and scoring whole sequences,
//! in `packed_block.rs` for serving, and in `crates/cuda/src/passes.rs` for the GPU.

use std::ops::Range;

use rayon::prelude::*;

use super::{Activations, BlockInput, BlockWeights, Stack};
use crate::attention;
use crate::buffer::Workspace;
use crate::element::{Element, narrow};
use crate::product::{
    LeftRows, Matrix, NR, Rhs, RightOperand, RowSplitter, WIDTH, by_columns, multiply, part, row_tasks,
    with_rows,
};
use crate::profile::Phase;
use crate::rope::RopeTable;
use crate::scratch::with_scratch;
use crate::{rms_norm, swiglu, vector};

/// The weights of a block as right operands: W (n, k) of `x · Wᵀ` is the transpose of the operand (k × n).
struct ForwardWeights<'a> {
    qkv: RightOperand<'a>,
    o: RightOperand<'a>,
    gate: RightOperand<'a>,
    up: RightOperand<'a>,
    down: RightOperand<'a>,
}

impl<'a> ForwardWeights<'a> {
    fn new<E: Element>(stack: &Stack, weights: BlockWeights<'a>) -> Self {
        let shape = &stack.shape;
        let (d, a, f) = (shape.width, shape.attention(), shape.ffn);
        let pack =
            |matrix, k, n| RightOperand::new::<E, f32>(&stack.workspace, Matrix::columns(matrix, k, n));
        // Gate and up are two operands, because a task needs the same columns of both at the same time.
        let (gate, up) = weights.gate_up.split_at(f * d);
        let ((qkv, o), (gate, (up, down))) = rayon::join(
            || rayon::join(|| pack(weights.qkv, d, shape.qkv()), || pack(weights.o, a, d)),
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

/// `y = block(x)` for x and y (rows, D); fills `activations`.
pub(crate) fn forward<E: Element>(
    input: BlockInput<'_>,
    y: &mut [f32],
    activations: &mut Activations<'_, E>,
) {
    let BlockInput { stack, weights, batch, .. } = input;
    let tasks = row_tasks::<E>(batch.rows());
    let right = stack.profile.time(Phase::Products, || {
        let right = ForwardWeights::new::<E>(stack, weights);
        project_qkv(input, right.qkv.rhs(), activations.qkv, &tasks);
        right
    });
    // Attention mixes the rows of a sequence, so it waits for all tasks of the projection and they wait for it.
    stack.profile.time(Phase::Attention, || {
        let Activations { qkv, y, log_sums, .. } = activations;
        attention::forward_all(qkv, y, log_sums, stack.attention_shape(batch));
    });
    stack.profile.time(Phase::Products, || {
        feed_forward(input, &right, y, activations, &tasks);
        right.give(&stack.workspace);
    });
}

/// The half of a block before attention: queries, keys and values (rows, H + 2 · Hkv, Dh) of x (rows, D) after its norm.
/// Queries and keys are rotated.
fn project_qkv<E: Element>(input: BlockInput<'_>, weights: Rhs<'_>, qkv: &mut [E], tasks: &[Range<usize>]) {
    struct Task<'a, E> {
        rows: Range<usize>,
        x: &'a [f32],
        qkv: &'a mut [E],
    }

    let shape = &input.stack.shape;
    let (d, all, rope) = (shape.width, shape.qkv(), &shape.rope);
    // Queries and keys come before the values, which are not rotated.
    let turned = (shape.heads + shape.kv_heads) * rope.head_dim();
    let step = whole_heads(rope);
    let mut qkv = RowSplitter::new(qkv, all);
    let task = |rows: &Range<usize>| Task {
        rows: rows.clone(),
        x: part(input.x, d, rows),
        qkv: qkv.next(rows.len()),
    };
    let tasks: Vec<_> = tasks.iter().map(task).collect();
    tasks.into_par_iter().with_max_len(1).for_each(|Task { rows, x, qkv }| {
        let normed = Normed { x, norm: input.weights.input_norm, epsilon: shape.epsilon };
        normed.with::<E>(|h| {
            with_scratch(rows.len() * step, |scratch| {
                by_columns(LeftRows::contiguous(h, d), all, step, |columns, h| {
                    let width = columns.len();
                    multiply(h, weights, columns.clone(), scratch, width, false);
                    let rotated = width.min(turned.saturating_sub(columns.start));
                    let results = scratch.chunks_exact_mut(width).zip(qkv.chunks_exact_mut(all));
                    // Rotated in f32 and rounded once.
                    vector::dispatch(
                        #[inline(always)]
                        || {
                            for (position, (row, qkv)) in rows.clone().zip(results) {
                                rope.rotate(&mut row[..rotated], position % input.batch.time, 1.0);
                                narrow(row, &mut qkv[columns.clone()]);
                            }
                        },
                    );
                });
            });
        });
    });
}

/// The half of a block after attention. Each task takes its rows through all of it, so that they stay in its cache.
fn feed_forward<E: Element>(
    input: BlockInput<'_>,
    right: &ForwardWeights<'_>,
    y: &mut [f32],
    activations: &mut Activations<'_, E>,
    tasks: &[Range<usize>],
) {
    struct Task<'a, E> {
        x: &'a [f32],
        attended: &'a [E],
        middle: &'a mut [f32],
        gate_up: &'a mut [E],
        y: &'a mut [f32],
    }

    let shape = &input.stack.shape;
    let (d, a, f) = (shape.width, shape.attention(), shape.ffn);
    let mut middle = RowSplitter::new(activations.middle, d);
    let mut gate_up = RowSplitter::new(activations.gate_up, 2 * f);
    let mut y = RowSplitter::new(y, d);
    let task = |rows: &Range<usize>| Task {
        x: part(input.x, d, rows),
        attended: part(&*activations.y, a, rows),
        middle: middle.next(rows.len()),
        gate_up: gate_up.next(rows.len()),
        y: y.next(rows.len()),
    };
    let tasks: Vec<_> = tasks.iter().map(task).collect();
    tasks.into_par_iter().with_max_len(1).for_each(|Task { x, attended, middle, gate_up, y }| {
        add_product(x, LeftRows::contiguous(attended, a), right.o.rhs(), middle);
        let elements = x.len() / d * f;
        with_scratch(E::room(elements), |memory| {
            // Not saved: the backward pass computes it from gate and up.
            let gated = &mut E::of_mut(memory)[..elements];
            let normed = Normed { x: middle, norm: input.weights.post_norm, epsilon: shape.epsilon };
            normed.with::<E>(|h| gate_and_up(LeftRows::contiguous(h, d), right, gate_up, gated));
            add_product(middle, LeftRows::contiguous(gated, f), right.down.rhs(), y);
        });
    });
}

/// A task's rows of x (rows, D) and the norm that they go through.
struct Normed<'a> {
    x: &'a [f32],
    norm: &'a [f32],
    epsilon: f32,
}

impl Normed<'_> {
    /// Runs `f` on the rows after their norm. They are not saved: the backward pass computes them once more from x.
    fn with<E: Element>(&self, f: impl FnOnce(&[E])) {
        with_scratch(E::room(self.x.len()), |memory| {
            let h = &mut E::of_mut(memory)[..self.x.len()];
            rms_norm::forward(self.x, self.norm, h, self.epsilon);
            f(h);
        });
    }
}

/// About [`WIDTH`] columns that are whole heads, for the rotations, and whole tiles, for the kernels.
fn whole_heads(rope: &RopeTable) -> usize {
    let mut both = rope.head_dim();
    while !both.is_multiple_of(NR) {
        both += rope.head_dim();
    }
    both * (WIDTH / both).max(1)
}

/// `z = y + x · B`: x (rows, k), y and z (rows, n).
fn add_product<E: Element>(y: &[f32], x: LeftRows<'_, E>, rhs: Rhs<'_>, z: &mut [f32]) {
    let n = rhs.columns();
    z.copy_from_slice(y);
    with_rows(x, |x| multiply(x, rhs, 0..n, z, n, true));
}

/// Gate and up (rows, 2, F) of h (rows, D), and `silu(gate) · up` (rows, F).
fn gate_and_up<E: Element>(
    h: LeftRows<'_, E>,
    right: &ForwardWeights<'_>,
    gate_up: &mut [E],
    gated: &mut [E],
) {
    let f = right.gate.rhs().columns();
    let room = h.count * WIDTH;
    with_scratch(2 * room, |scratch| {
        let (gate, up) = scratch.split_at_mut(room);
        by_columns(h, f, WIDTH, |columns, h| {
            let width = columns.len();
            multiply(h, right.gate.rhs(), columns.clone(), gate, width, false);
            multiply(h, right.up.rhs(), columns.clone(), up, width, false);
            let saved = gate_up.chunks_exact_mut(2 * f).zip(gated.chunks_exact_mut(f));
            let results = gate.chunks_exact(width).zip(up.chunks_exact(width));
            for ((saved, gated), (gate, up)) in saved.zip(results) {
                // From the f32 results, before they are rounded to be saved.
                swiglu::forward(gate, up, &mut gated[columns.clone()]);
                let (saved_gate, saved_up) = saved.split_at_mut(f);
                vector::convert(gate, &mut saved_gate[columns.clone()]);
                vector::convert(up, &mut saved_up[columns.clone()]);
            }
        });
    });
}
