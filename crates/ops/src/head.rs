//! The final norm, the output projection and the cross entropy of the next token. The logits of a whole batch are never in
//! memory.

use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use crate::IGNORE;
use crate::buffer::Workspace;
use crate::element::{Element, narrow};
use crate::exp::{exp, maximum, sum_exp};
use crate::product::{
    Group, LeftRows, Matrix, NR, OuterProduct, Rhs, RightOperand, Shared, Tiling, multiply, multiply_shared,
    outer_products, pack_all, packed_len, with_rows,
};
use crate::scratch::with_scratch;
use crate::{rms_norm, vector};

/// Largest number of positions whose logits are in memory at the same time. It is large because each such chunk packs the
/// projection's weights and reads its gradient once.
const ROWS: usize = 1024;
/// Entries of the vocabulary whose weights are packed at the same time.
const ENTRIES: usize = 2048;

/// The head of a path and its input.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) workspace: &'a Workspace,
    /// The last block's output (rows, D).
    pub(crate) x: &'a [f32],
    /// The final norm's weight (D).
    pub(crate) norm: &'a [f32],
    /// The output projection (V, D).
    pub(crate) projection: &'a [f32],
    pub(crate) epsilon: f32,
    /// One target per row, or [`IGNORE`].
    pub(crate) targets: &'a [u32],
}

/// The gradients of a head, to write.
pub(crate) struct HeadGradients<'a> {
    /// The gradient of x (rows, D), added to.
    pub(crate) dx: &'a mut [f32],
    /// Factor of each counted position's loss, such as `1 / counted`.
    pub(crate) scale: f32,
    /// The gradients of the weights; absent for a frozen head.
    pub(crate) weights: Option<HeadWeightGradients<'a>>,
}

/// The gradients of a head's weights, to write.
pub(crate) struct HeadWeightGradients<'a> {
    /// The gradient of the norm's weight (D), added to.
    pub(crate) norm: &'a mut [f32],
    /// The gradient of the projection (V, D).
    pub(crate) projection: &'a mut [f32],
    /// True if the projection's gradient is overwritten, false if it is added to.
    pub(crate) fresh: bool,
}

/// Consecutive positions whose logits are in memory at the same time.
struct Chunk<'a, E> {
    /// The last block's output (rows, D).
    x: &'a [f32],
    /// `x` after the norm (rows, D).
    h: &'a [E],
    /// The logits' gradients, as E at the start of each f32 row of logits.
    d_logits: &'a [f32],
}

impl Head<'_> {
    /// `ln p(target)` in nats of each position, 0 where the target is [`IGNORE`].
    ///
    /// With `gradients`, also the gradients of `-scale · Σ ln p(target)`. They are computed in the same pass over the
    /// logits, because the gradient of a sum is known beforehand (the idea of Liger-Kernel's fused linear cross entropy,
    /// arXiv:2410.10989 §3.2).
    pub(crate) fn log_probs<E: Element>(
        &self,
        log_probs: &mut [f32],
        mut gradients: Option<HeadGradients<'_>>,
    ) {
        let (width, rows) = (self.norm.len(), self.targets.len());
        let vocabulary = self.vocabulary();
        let most = head_rows(rows);
        let mut h_memory = self.workspace.take(E::room(most * width));
        let h = E::of_mut(&mut h_memory);
        let mut logits = self.workspace.take(most * row_stride(vocabulary));
        for first in (0..rows).step_by(most) {
            let count = most.min(rows - first);
            let x = &self.x[first * width..][..count * width];
            let targets = &self.targets[first..first + count];
            let h = &mut h[..count * width];
            rms_norm::forward_all(x, self.norm, h, self.epsilon);
            self.logits(h, &mut logits);
            let scale = gradients.as_ref().map(|gradients| gradients.scale);
            softmax::<E>(&mut logits, targets, &mut log_probs[first..first + count], scale, vocabulary);
            if let Some(all) = &mut gradients {
                let own = HeadGradients {
                    dx: &mut all.dx[first * width..][..count * width],
                    scale: all.scale,
                    weights: all.weights.as_mut().map(|weights| HeadWeightGradients {
                        norm: &mut *weights.norm,
                        projection: &mut *weights.projection,
                        // The first chunk overwrites the gradient, later chunks add to it.
                        fresh: weights.fresh && first == 0,
                    }),
                };
                self.backward(&Chunk { x, h, d_logits: &logits }, own);
            }
        }
        self.workspace.give(h_memory);
        self.workspace.give(logits);
    }

    fn vocabulary(&self) -> usize {
        self.projection.len() / self.norm.len()
    }

    /// `h · Wᵀ`: h (rows, D), logits (rows, [`row_stride`]).
    fn logits<E: Element>(&self, h: &[E], logits: &mut [f32]) {
        let (group, width, vocabulary) = (Group::of::<E>(), self.norm.len(), self.vocabulary());
        let (count, stride) = (h.len() / width, row_stride(vocabulary));
        let mut memory = self.workspace.take(packed_len(group, width, ENTRIES.min(vocabulary), NR));
        let packed: &mut [u32] = bytemuck::cast_slice_mut(&mut memory);
        for entries in chunks(vocabulary) {
            let weights = &self.projection[entries.start * width..];
            pack_all(group, Matrix::columns(weights, width, entries.len()), NR, packed);
            let rhs = Rhs::new(packed, group, width, entries.len());
            let shared = Shared::new(&mut logits[..count * stride]);
            tasks::<E>(count, entries.len()).for_each(|Task { rows, columns }| {
                let h = LeftRows::contiguous(&h[rows.start * width..rows.end * width], width);
                with_rows(h, |h| {
                    let at = rows.start * stride + entries.start + columns.start;
                    // SAFETY: tasks are disjoint blocks of rows and columns.
                    unsafe { multiply_shared(h, rhs, columns, &shared, at, stride, false) };
                });
            });
        }
        self.workspace.give(memory);
    }

    /// Adds the gradients of one chunk of positions, given the gradients of its logits.
    fn backward<E: Element>(&self, chunk: &Chunk<'_, E>, gradients: HeadGradients<'_>) {
        let (workspace, width, vocabulary) = (self.workspace, self.norm.len(), self.vocabulary());
        let count = chunk.x.len() / width;
        let stride = row_stride(vocabulary) * E::PER_F32;
        let d_logits = &E::of(chunk.d_logits)[..count * stride];
        let mut dh = workspace.take(count * width);
        let Tiling { panel, .. } = Tiling::of::<E>();
        let HeadGradients { dx, weights: mut gradients, .. } = gradients;
        let h = RightOperand::new::<E, E>(workspace, Matrix::rows(chunk.h, count, width));
        // Both products finish some entries before the next entries, while the gradients of their logits are in a cache.
        for entries in chunks(vocabulary) {
            let own = &self.projection[entries.start * width..entries.end * width];
            let weights = RightOperand::new::<E, f32>(workspace, Matrix::rows(own, entries.len(), width));
            dh.par_chunks_mut(panel * width).enumerate().for_each(|(p, dh)| {
                let data = &d_logits[p * panel * stride + entries.start..];
                let rows = LeftRows { data, count: dh.len() / width, depth: entries.len(), stride };
                with_rows(rows, |d_logits| {
                    multiply(d_logits, weights.rhs(), 0..width, dh, width, entries.start > 0);
                });
            });
            weights.give(workspace);
            if let Some(HeadWeightGradients { projection, fresh, .. }) = &mut gradients {
                let c = &mut projection[entries.start * width..entries.end * width];
                let a = &d_logits[entries.start..];
                let product = OuterProduct { a, stride, rows: entries.len(), rhs: h.rhs(), c };
                outer_products(&mut [product], count, !*fresh);
            }
        }
        h.give(workspace);
        let norm = gradients.map(|gradients| gradients.norm);
        rms_norm::backward_all::<E>(workspace, chunk.x, self.norm, &dh, dx, norm, self.epsilon);
        workspace.give(dh);
    }
}

/// Number of positions, of `rows` in all, whose logits are in memory at the same time. Except for a handful of rows, it is
/// fewer than all.
#[must_use]
pub fn head_rows(rows: usize) -> usize {
    // The larger panel where the types differ.
    let panel = Tiling::of::<bf16>().panel.max(Tiling::of::<f32>().panel);
    ROWS.min(rows.div_ceil(2).next_multiple_of(panel)).min(rows).max(1)
}

/// f32 from one row of logits to the next: even, so that pairs of bf16 stay whole.
fn row_stride(vocabulary: usize) -> usize {
    vocabulary.next_multiple_of(2)
}

fn chunks(vocabulary: usize) -> impl Iterator<Item = Range<usize>> {
    (0..vocabulary).step_by(ENTRIES).map(move |first| first..vocabulary.min(first + ENTRIES))
}

/// A block of rows and columns of logits.
struct Task {
    rows: Range<usize>,
    columns: Range<usize>,
}

fn tasks<E: Element>(rows: usize, columns: usize) -> impl ParallelIterator<Item = Task> {
    const WIDTH: usize = 512;
    let Tiling { panel, .. } = Tiling::of::<E>();
    let across = columns.div_ceil(WIDTH);
    (0..rows.div_ceil(panel) * across).into_par_iter().map(move |task| {
        let (row, column) = (task / across * panel, task % across * WIDTH);
        Task { rows: row..rows.min(row + panel), columns: column..columns.min(column + WIDTH) }
    })
}

/// The log-probability of each row's target. With a scale, each row of logits becomes its gradient, as E.
fn softmax<E: Element>(
    logits: &mut [f32],
    targets: &[u32],
    log_probs: &mut [f32],
    scale: Option<f32>,
    vocabulary: usize,
) {
    let stride = row_stride(vocabulary);
    let rows = logits.par_chunks_exact_mut(stride).zip(targets).zip(log_probs).with_min_len(8);
    rows.for_each(|((row, &target), log_prob)| {
        *log_prob = 0.0;
        if target == IGNORE {
            if scale.is_some() {
                row.fill(0.0);
            }
            return;
        }
        vector::dispatch_with(
            #[inline(always)]
            |units| {
                let logits = &mut row[..vocabulary];
                let largest = maximum(logits);
                let log_sum = largest + sum_exp(units, logits, largest).ln();
                *log_prob = logits[target as usize] - log_sum;
                let Some(scale) = scale else { return };
                for logit in logits.iter_mut() {
                    *logit = exp(units, *logit - log_sum) * scale;
                }
                logits[target as usize] -= scale;
            },
        );
        if scale.is_some() && E::PER_F32 > 1 {
            // Through a copy, because the narrow row takes the place of the f32 row that it is made from.
            with_scratch(vocabulary, |copy| {
                copy.copy_from_slice(&row[..vocabulary]);
                vector::dispatch(
                    #[inline(always)]
                    || narrow(copy, &mut E::of_mut(row)[..vocabulary]),
                );
            });
        }
    });
}

/// `ln Σ exp(logit)` of one row.
pub(crate) fn log_sum_exp(row: &[f32]) -> f32 {
    vector::dispatch_with(
        #[inline(always)]
        |units| {
            let largest = maximum(row);
            largest + sum_exp(units, row, largest).ln()
        },
    )
}
