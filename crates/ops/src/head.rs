//! The final norm, the output projection and the cross entropy of the next token, without the logits of a whole batch in
//! memory.

use std::ops::Range;

use rayon::prelude::*;

use crate::IGNORE;
use crate::buffer::Workspace;
use crate::element::Element;
use crate::exp::{exp, maximum, sum_exp};
use crate::product::{
    Group, NR, Order, OuterProduct, PANEL, Rhs, RightOperand, Shared, multiply, multiply_shared,
    outer_products, pack_all, packed_len, with_rows, with_scratch,
};
use crate::{rms_norm, vector};

/// Positions whose logits are in memory at the same time, at most: many, as the projection's weights are packed and its
/// gradient is read for each such chunk.
const ROWS: usize = 1024;
/// Entries of the vocabulary whose weights are packed at the same time.
const ENTRIES: usize = 2048;

/// The head of a path and what it is applied to.
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

/// Where the gradients of a head go.
pub(crate) struct HeadGradients<'a> {
    /// The gradient of x (rows, D), added to.
    pub(crate) dx: &'a mut [f32],
    /// The norm's (D), added to.
    pub(crate) norm: &'a mut [f32],
    /// The projection's (V, D).
    pub(crate) projection: &'a mut [f32],
    /// Whether the projection's gradient is written over instead of added to.
    pub(crate) fresh: bool,
    /// What each counted position's loss is multiplied by, as in `1 / counted`.
    pub(crate) scale: f32,
}

impl Head<'_> {
    /// `ln p(target)` in nats of each position, 0 where the target is [`IGNORE`].
    pub(crate) fn log_probs<E: Element>(&self, log_probs: &mut [f32]) {
        self.run::<E>(log_probs, None);
    }

    /// [`Head::log_probs`] and the gradients of `-scale · Σ ln p(target)`, computed in the same pass over the logits, as
    /// a sum's own gradient is known beforehand (the idea of Liger-Kernel's fused linear cross entropy,
    /// arXiv:2410.10989 §3.2).
    pub(crate) fn gradients<E: Element>(&self, log_probs: &mut [f32], gradients: HeadGradients<'_>) {
        self.run::<E>(log_probs, Some(gradients));
    }

    fn run<E: Element>(&self, log_probs: &mut [f32], mut gradients: Option<HeadGradients<'_>>) {
        let (width, rows) = (self.norm.len(), self.targets.len());
        let vocabulary = self.projection.len() / width;
        let chunk = head_rows(rows);
        let mut h_memory = self.workspace.take(E::room(chunk * width));
        let h = E::of_mut(&mut h_memory);
        let mut logits = self.workspace.take(chunk * row_stride(vocabulary));
        for first in (0..rows).step_by(chunk) {
            let count = chunk.min(rows - first);
            let x = &self.x[first * width..][..count * width];
            let targets = &self.targets[first..first + count];
            let h = &mut h[..count * width];
            rms_norm::forward_all(x, self.norm, h, self.epsilon);
            self.logits(h, &mut logits, (count, width, vocabulary));
            let scale = gradients.as_ref().map(|gradients| gradients.scale);
            let log_probs = &mut log_probs[first..first + count];
            softmax::<E>(&mut logits, targets, log_probs, scale, vocabulary);
            if let Some(gradients) = &mut gradients {
                let fresh = gradients.fresh && first == 0;
                self.backward(h, x, &logits, first, (count, width, vocabulary), gradients, fresh);
            }
        }
        self.workspace.give(h_memory);
        self.workspace.give(logits);
    }

    /// `h · Wᵀ`: h (count, D), logits (count, stride).
    fn logits<E: Element>(
        &self,
        h: &[E],
        logits: &mut [f32],
        (count, width, vocabulary): (usize, usize, usize),
    ) {
        let group = Group::of::<E>();
        let stride = row_stride(vocabulary);
        let mut memory = self.workspace.take(packed_len(group, width, ENTRIES.min(vocabulary), NR));
        let packed: &mut [u32] = bytemuck::cast_slice_mut(&mut memory);
        for entries in chunks(vocabulary) {
            let weights = &self.projection[entries.start * width..];
            pack_all(group, Order::Columns, weights, width, (width, entries.len()), NR, packed);
            let rhs = Rhs::new(packed, group, width, entries.len());
            let shared = Shared::new(&mut logits[..count * stride]);
            blocks(count, entries.len()).for_each(|(rows, columns)| {
                with_rows(&h[rows.start * width..], (rows.len(), width, width), |h| {
                    let at = rows.start * stride + entries.start + columns.start;
                    // SAFETY: blocks of rows and columns are disjoint.
                    unsafe { multiply_shared(h, rhs, columns, &shared, at, stride, false) };
                });
            });
        }
        self.workspace.give(memory);
    }

    /// The gradients of one chunk of positions, given those of their logits, which lie as E at the beginning of each row
    /// of f32 logits.
    #[expect(clippy::too_many_arguments, reason = "a chunk of the operation's data")]
    fn backward<E: Element>(
        &self,
        h: &[E],
        x: &[f32],
        d_logits: &[f32],
        first: usize,
        (count, width, vocabulary): (usize, usize, usize),
        gradients: &mut HeadGradients<'_>,
        fresh: bool,
    ) {
        let workspace = self.workspace;
        let stride = row_stride(vocabulary) * E::PER_F32;
        let d_logits = &E::of(d_logits)[..count * stride];
        let mut dh = workspace.take(count * width);
        let h = RightOperand::new::<E, E>(workspace, Order::Rows, h, width, (count, width));
        for entries in chunks(vocabulary) {
            let own = &self.projection[entries.start * width..entries.end * width];
            let weights =
                RightOperand::new::<E, f32>(workspace, Order::Rows, own, width, (entries.len(), width));
            dh.par_chunks_mut(PANEL * width).enumerate().for_each(|(p, dh)| {
                let rows = &d_logits[p * PANEL * stride + entries.start..];
                with_rows(rows, (dh.len() / width, entries.len(), stride), |d_logits| {
                    multiply(d_logits, weights.rhs(), 0..width, dh, width, entries.start > 0);
                });
            });
            weights.give(workspace);
            let c = &mut gradients.projection[entries.start * width..entries.end * width];
            let a = &d_logits[entries.start..];
            outer_products(
                &mut [OuterProduct { a, stride, rows: entries.len(), rhs: h.rhs(), c }],
                count,
                !fresh,
            );
        }
        h.give(workspace);
        let dx = &mut gradients.dx[first * width..][..count * width];
        rms_norm::backward_all(workspace, x, self.norm, &dh, dx, gradients.norm, self.epsilon);
        workspace.give(dh);
    }
}

/// Positions of `rows` whose logits are in memory at the same time: all of them never are but for a handful.
#[must_use]
pub fn head_rows(rows: usize) -> usize {
    ROWS.min(rows.div_ceil(2).next_multiple_of(PANEL)).min(rows).max(1)
}

/// f32 from one row of logits to the next: even, so that pairs of bf16 stay whole.
fn row_stride(vocabulary: usize) -> usize {
    vocabulary.next_multiple_of(2)
}

fn chunks(vocabulary: usize) -> impl Iterator<Item = Range<usize>> {
    (0..vocabulary).step_by(ENTRIES).map(move |first| first..vocabulary.min(first + ENTRIES))
}

/// Blocks of rows and columns, one task each.
fn blocks(rows: usize, columns: usize) -> impl ParallelIterator<Item = (Range<usize>, Range<usize>)> {
    const WIDTH: usize = 512;
    let across = columns.div_ceil(WIDTH);
    (0..rows.div_ceil(PANEL) * across).into_par_iter().map(move |task| {
        let (row, column) = (task / across * PANEL, task % across * WIDTH);
        (row..rows.min(row + PANEL), column..columns.min(column + WIDTH))
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
            with_scratch(vocabulary, |copy| {
                copy.copy_from_slice(&row[..vocabulary]);
                vector::dispatch(
                    #[inline(always)]
                    || crate::element::narrow(copy, &mut E::of_mut(row)[..vocabulary]),
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
