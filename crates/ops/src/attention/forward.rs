//! The forward pass of one head.

use super::{HeadRows, even, scale};
use crate::element::Element;
use crate::exp::{LANES, Lanes, exp, maximum, total};
use crate::product::{
    Group, LeftRows, MOST_PANEL, Matrix, NR, Order, Rhs, Tiling, multiply, packed_len, with_rows,
};
use crate::scratch::{split_off, whole_lines, with_scratch};
use crate::vector::{self, Units};

/// The input of one head: the queries belong to the last `queries` of `keys` positions.
pub(super) struct HeadInput<'a, E> {
    pub(super) q: HeadRows<'a, E>,
    pub(super) k: HeadRows<'a, E>,
    pub(super) v: HeadRows<'a, E>,
    pub(super) queries: usize,
    pub(super) keys: usize,
}

/// Scratch memory of one head, or the lengths of its parts in f32. N is the number of queries in a block, Tk that of keys.
struct ForwardBuffers<T> {
    /// Kᵀ (Dh × Tk) as a right operand.
    k_transposed: T,
    /// V (Tk × Dh) as a right operand.
    v: T,
    /// Scores of a block (N, Tk), f32.
    scores: T,
    /// Exponentials of the scores (N, Tk), E.
    weights: T,
    /// The result of a block (N, Dh), f32.
    y: T,
}

impl<T> ForwardBuffers<T> {
    fn map<U>(self, mut f: impl FnMut(T) -> U) -> ForwardBuffers<U> {
        ForwardBuffers {
            k_transposed: f(self.k_transposed),
            v: f(self.v),
            scores: f(self.scores),
            weights: f(self.weights),
            y: f(self.y),
        }
    }
}

impl ForwardBuffers<usize> {
    fn lengths<E: Element>(keys: usize, head_dim: usize) -> Self {
        let (group, Tiling { panel: block, .. }) = (Group::of::<E>(), Tiling::of::<E>());
        // Only the stride of the rows of scores is padded to whole tiles, so that each row begins on a cache line.
        let wide = keys.next_multiple_of(NR);
        Self {
            k_transposed: packed_len(group, head_dim, keys, NR),
            v: packed_len(group, keys, head_dim, NR),
            scores: block * wide,
            weights: E::room(block * wide),
            y: block * head_dim.next_multiple_of(NR),
        }
    }
}

/// Attention of one head. `write` gets each query's number and result (Dh). Writes the logarithm of each query's sum of
/// exponentials to `log_sums` (Tq).
pub(super) fn head<E: Element>(
    input: HeadInput<'_, E>,
    log_sums: &mut [f32],
    mut write: impl FnMut(usize, &[f32]),
) {
    let HeadInput { q, k, v, queries, keys } = input;
    let head_dim = q.head_dim;
    let group = Group::of::<E>();
    // Queries whose scores are in memory at the same time.
    let Tiling { panel: block, .. } = Tiling::of::<E>();
    let mut total = 0;
    let lengths = ForwardBuffers::lengths::<E>(keys, head_dim).map(|length| {
        total += whole_lines(length);
        length
    });
    with_scratch(total, |mut memory| {
        let buffers = lengths.map(|length| split_off(&mut memory, length));
        let ForwardBuffers { scores, y, .. } = buffers;
        let weights = E::of_mut(buffers.weights);
        // Both are packed once and serve all blocks of queries.
        let k =
            Matrix { data: k.data, order: Order::Columns, stride: k.stride, depth: head_dim, lanes: keys };
        let k = Rhs::pack(group, k, buffers.k_transposed);
        let v = Matrix { data: v.data, order: Order::Rows, stride: v.stride, depth: keys, lanes: head_dim };
        let v = Rhs::pack(group, v, buffers.v);
        for first in (0..queries).step_by(block) {
            let count = block.min(queries - first);
            // The last query of the block sees this many keys; scores of later keys are not computed.
            let seen = keys - queries + first + count;
            let wide = seen.next_multiple_of(NR);
            with_rows(q.left(first, count), |q| multiply(q, k, 0..seen, scores, wide, false));
            // Weights of hidden keys are zero up to here, so that the last pair of weights is whole.
            let depth = even(group, seen);
            let rows = scores.chunks_exact(wide).zip(weights.chunks_exact_mut(wide)).take(count);
            let sums: [f32; MOST_PANEL] = vector::dispatch_with(
                #[inline(always)]
                |units| {
                    let mut sums = [0.0; MOST_PANEL];
                    for (i, (scores, weights)) in rows.enumerate() {
                        let own = seen - (count - 1 - i);
                        let (sum, log_sum) =
                            softmax(units, &scores[..own], &mut weights[..depth], scale(head_dim));
                        sums[i] = sum;
                        log_sums[first + i] = log_sum;
                    }
                    sums
                },
            );
            let rows = LeftRows { data: &*weights, count, depth, stride: wide };
            with_rows(rows, |weights| multiply(weights, v, 0..head_dim, y, head_dim, false));
            // Dividing the Dh results is less work than dividing the weights of all keys.
            for ((i, y), sum) in y.chunks_exact_mut(head_dim).take(count).enumerate().zip(sums) {
                let inverse = 1.0 / sum;
                vector::dispatch(
                    #[inline(always)]
                    || y.iter_mut().for_each(|y| *y *= inverse),
                );
                write(first + i, y);
            }
        }
    });
}

/// Writes the exponentials `exp(scale · (score - largest))` of one row of scores to `weights`, and zeros after them. Gives
/// the sum of the exponentials and the logarithm of the sum of `exp(scale · score)`.
#[inline(always)]
fn softmax<E: Element>(units: Units, scores: &[f32], weights: &mut [E], scale: f32) -> (f32, f32) {
    let largest = maximum(scores);
    let mut lanes = Lanes([0f32; LANES]);
    let (weights, hidden) = weights.split_at_mut(scores.len());
    let (score_lines, score_rest) = scores.as_chunks::<LANES>();
    let (weight_lines, weight_rest) = weights.as_chunks_mut::<LANES>();
    let one = |lane: &mut f32, score: f32, weight: &mut E| {
        let value = exp(units, (score - largest) * scale);
        // The sum is of f32 values, before the weight is rounded to E.
        *lane += value;
        *weight = E::from_f32(value);
    };
    for (scores, weights) in score_lines.iter().zip(weight_lines) {
        for ((lane, score), weight) in lanes.0.iter_mut().zip(scores).zip(weights) {
            one(lane, *score, weight);
        }
    }
    for ((lane, score), weight) in lanes.0.iter_mut().zip(score_rest).zip(weight_rest) {
        one(lane, *score, weight);
    }
    hidden.fill(E::default());
    let sum = total(&lanes);
    (sum, largest * scale + sum.ln())
}
