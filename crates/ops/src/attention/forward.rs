//! The forward pass of one head.

use super::{Head, even, scale};
use crate::element::Element;
use crate::exp::{LANES, exp, maximum, total};
use crate::product::{Group, NR, Order, PANEL, Rhs, multiply, pack, packed_len, with_rows, with_scratch};
use crate::vector::{self, Units};

/// Queries of the same task.
const BLOCK: usize = PANEL;

/// Attention of the last `queries` of `keys` positions. `write` gets each query's number and result (Dh).
pub(super) fn head<E: Element>(
    q: Head<'_, E>,
    k: Head<'_, E>,
    v: Head<'_, E>,
    (queries, keys): (usize, usize),
    log_sums: &mut [f32],
    mut write: impl FnMut(usize, &[f32]),
) {
    let head_dim = q.head_dim;
    let group = Group::of::<E>();
    let sizes = [
        packed_len(group, head_dim, keys, NR),
        packed_len(group, keys, head_dim, NR),
        BLOCK * keys.next_multiple_of(NR),
        E::room(BLOCK * keys.next_multiple_of(NR)),
        BLOCK * head_dim.next_multiple_of(NR),
    ]
    .map(|size| size.next_multiple_of(16));
    with_scratch(sizes.iter().sum(), |scratch| {
        let (k_packed, rest) = scratch.split_at_mut(sizes[0]);
        let (v_packed, rest) = rest.split_at_mut(sizes[1]);
        let (scores, rest) = rest.split_at_mut(sizes[2]);
        let (weights, y) = rest.split_at_mut(sizes[3]);
        let weights = E::of_mut(weights);
        let (k_packed, v_packed) = (bytemuck::cast_slice_mut(k_packed), bytemuck::cast_slice_mut(v_packed));
        pack(group, Order::Columns, k.data, k.stride, (head_dim, keys), NR, k_packed);
        pack(group, Order::Rows, v.data, v.stride, (keys, head_dim), NR, v_packed);
        let k = Rhs::new(k_packed, group, head_dim, keys);
        let v = Rhs::new(v_packed, group, keys, head_dim);
        for first in (0..queries).step_by(BLOCK) {
            let count = BLOCK.min(queries - first);
            // The last of these queries sees this many keys.
            let seen = keys - queries + first + count;
            let wide = seen.next_multiple_of(NR);
            with_rows(q.from(first), (count, head_dim, q.stride), |q| {
                multiply(q, k, 0..seen, scores, wide, false);
            });
            let depth = even(group, seen);
            let rows = scores.chunks_exact(wide).zip(weights.chunks_exact_mut(wide)).take(count);
            let sums: [f32; BLOCK] = vector::dispatch_with(
                #[inline(always)]
                |units| {
                    let mut sums = [0.0; BLOCK];
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
            with_rows(weights, (count, depth, wide), |weights| {
                multiply(weights, v, 0..head_dim, y, head_dim, false);
            });
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

/// The exponentials of one row of scores, not divided by their sum, and zeros after them; gives the sum and the logarithm
/// of the sum of `exp(scale · score)`.
#[inline(always)]
fn softmax<E: Element>(units: Units, scores: &[f32], weights: &mut [E], scale: f32) -> (f32, f32) {
    let largest = maximum(scores);
    let mut lanes = [0f32; LANES];
    let (weights, hidden) = weights.split_at_mut(scores.len());
    let (score_lines, score_rest) = scores.as_chunks::<LANES>();
    let (weight_lines, weight_rest) = weights.as_chunks_mut::<LANES>();
    let one = |lane: &mut f32, score: f32, weight: &mut E| {
        let value = exp(units, (score - largest) * scale);
        *lane += value;
        *weight = E::from_f32(value);
    };
    for (scores, weights) in score_lines.iter().zip(weight_lines) {
        for ((lane, score), weight) in lanes.iter_mut().zip(scores).zip(weights) {
            one(lane, *score, weight);
        }
    }
    for ((lane, score), weight) in lanes.iter_mut().zip(score_rest).zip(weight_rest) {
        one(lane, *score, weight);
    }
    hidden.fill(E::default());
    let sum = total(&lanes);
    (sum, largest * scale + sum.ln())
}
