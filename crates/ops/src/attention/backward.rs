//! The backward pass of one head (arXiv:2205.14135 §3.1): scores are computed once more, block by block.

use super::{Head, even, scale};
use crate::element::{Element, convert, narrow};
use crate::exp::{dot, exp};
use crate::product::{
    Group, Lhs, NR, Order, PANEL, Rhs, multiply, pack, packed_len, with_rows, with_scratch,
};
use crate::rope::RopeTable;
use crate::vector::{self, Units};

/// Queries whose weights are in memory at the same time.
const BLOCK: usize = 2 * NR;

/// Replaces the queries, keys and values of one head, which `row` gives by which of the three it is and the position, by
/// their gradients.
pub(super) fn head<'a, E: Element>(
    row: &impl Fn(usize, usize) -> &'a mut [E],
    y: Head<'_, E>,
    dy: Head<'_, E>,
    log_sums: &[f32],
    rope: &RopeTable,
) {
    let (time, head_dim) = (log_sums.len(), y.head_dim);
    let group = Group::of::<E>();
    // Keys and values are copied together, as the gradients take their place.
    let elements = E::room(time * head_dim);
    let sizes = [
        elements,
        elements,
        E::room(BLOCK * head_dim),
        E::room(BLOCK * head_dim),
        packed_len(group, time, head_dim, NR),
        packed_len(group, head_dim, BLOCK, NR),
        packed_len(group, head_dim, BLOCK, NR),
        packed_len(group, BLOCK, head_dim, NR),
        packed_len(group, BLOCK, head_dim, NR),
        PANEL * BLOCK,
        PANEL * BLOCK,
        E::room(PANEL * BLOCK),
        E::room((time + 1) * BLOCK),
        packed_len(group, time, BLOCK, BLOCK),
        time * head_dim,
        time * head_dim,
        BLOCK * head_dim,
    ]
    .map(|size| size.next_multiple_of(16));
    with_scratch(sizes.iter().sum(), |scratch| {
        let mut rest = scratch;
        let mut parts = sizes.map(|size| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(size);
            rest = after;
            part
        });
        let [
            k,
            v,
            q_block,
            dy_block,
            k_rows,
            q_columns,
            dy_columns,
            q_rows,
            dy_rows,
            scores,
            d_weights,
            weights,
            d_scores,
            d_scores_packed,
            dk,
            dv,
            dq,
        ] = &mut parts;
        let (k, v) = (E::of_mut(k), E::of_mut(v));
        let (q_block, dy_block) = (E::of_mut(q_block), E::of_mut(dy_block));
        let (weights, d_scores) = (E::of_mut(weights), E::of_mut(d_scores));
        for (t, (k, v)) in
            k.chunks_exact_mut(head_dim).zip(v.chunks_exact_mut(head_dim)).take(time).enumerate()
        {
            k.copy_from_slice(row(1, t));
            v.copy_from_slice(row(2, t));
        }
        let k_rows = packed(group, Order::Rows, k, (time, head_dim), k_rows);
        dk.fill(0.0);
        dv.fill(0.0);
        for first in (0..time).step_by(BLOCK) {
            let count = BLOCK.min(time - first);
            let seen = first + count;
            let mut deltas = [0f32; BLOCK];
            let mut sums = [f32::MAX; BLOCK];
            let rows = q_block.chunks_exact_mut(head_dim).zip(dy_block.chunks_exact_mut(head_dim));
            for (i, (q, d)) in rows.take(count).enumerate() {
                q.copy_from_slice(row(0, first + i));
                d.copy_from_slice(dy.row(first + i));
                deltas[i] = vector::dispatch_with(
                    #[inline(always)]
                    |units| dot(units, d, y.row(first + i)),
                );
                sums[i] = log_sums[first + i];
            }
            let q_columns = packed(group, Order::Columns, q_block, (head_dim, count), q_columns);
            let dy_columns = packed(group, Order::Columns, dy_block, (head_dim, count), dy_columns);
            let q_rows = packed(group, Order::Rows, q_block, (count, head_dim), q_rows);
            let dy_rows = packed(group, Order::Rows, dy_block, (count, head_dim), dy_rows);
            // Weights are kept transposed, a row per key, so that one vector holds the same key for many queries.
            for key in (0..seen).step_by(PANEL) {
                let panel = PANEL.min(seen - key);
                let sizes = (panel, head_dim, head_dim);
                with_rows(&k[key * head_dim..], sizes, |k| {
                    multiply(k, q_columns, 0..count, scores, BLOCK, false);
                });
                with_rows(&v[key * head_dim..], sizes, |v| {
                    multiply(v, dy_columns, 0..count, d_weights, BLOCK, false);
                });
                let d_scores = &mut d_scores[key * BLOCK..][..panel * BLOCK];
                vector::dispatch_with(
                    #[inline(always)]
                    |units| {
                        let rows = scores.as_chunks::<BLOCK>().0.iter().zip(d_weights.as_chunks::<BLOCK>().0);
                        let results = weights.as_chunks_mut::<BLOCK>().0.iter_mut();
                        let results = results.zip(d_scores.as_chunks_mut::<BLOCK>().0);
                        for (i, ((s, d), (w, ds))) in rows.zip(results).take(panel).enumerate() {
                            // Queries before this key do not see it; those past the last have no weights.
                            let hidden = (key + i).saturating_sub(first);
                            softmax_gradient(units, s, d, &sums, &deltas, scale(head_dim), w, ds);
                            w[..hidden.min(BLOCK)].fill(E::default());
                            ds[..hidden.min(BLOCK)].fill(E::default());
                            w[count..].fill(E::default());
                            ds[count..].fill(E::default());
                        }
                    },
                );
                let depth = even(group, count);
                with_rows(weights, (panel, depth, BLOCK), |weights| {
                    multiply(weights, dy_rows, 0..head_dim, &mut dv[key * head_dim..], head_dim, true);
                });
                with_rows(d_scores, (panel, depth, BLOCK), |d_scores| {
                    multiply(d_scores, q_rows, 0..head_dim, &mut dk[key * head_dim..], head_dim, true);
                });
            }
            let d_scores_packed: &mut [u32] = bytemuck::cast_slice_mut(d_scores_packed);
            pack(group, Order::Rows, d_scores, BLOCK, (seen, BLOCK), BLOCK, d_scores_packed);
            let lhs = Lhs::packed(d_scores_packed, group, count, seen, BLOCK);
            multiply(lhs, k_rows, 0..head_dim, dq, head_dim, false);
            for (i, dq) in dq.chunks_exact_mut(head_dim).take(count).enumerate() {
                rotate_back(rope, dq, first + i, row(0, first + i));
            }
        }
        for (t, (dk, dv)) in
            dk.chunks_exact_mut(head_dim).zip(dv.chunks_exact(head_dim)).take(time).enumerate()
        {
            rotate_back(rope, dk, t, row(1, t));
            convert(dv, row(2, t));
        }
    });
}

/// Turns the gradient of a rotated row back and stores it.
fn rotate_back<E: Element>(rope: &RopeTable, gradient: &mut [f32], position: usize, row: &mut [E]) {
    vector::dispatch(
        #[inline(always)]
        || {
            rope.rotate(gradient, position, -1.0);
            narrow(gradient, row);
        },
    );
}

/// Packs rows that lie one after the other.
fn packed<'a, E: Element>(
    group: Group,
    order: Order,
    matrix: &[E],
    (depth, lanes): (usize, usize),
    memory: &'a mut [f32],
) -> Rhs<'a> {
    let stride = match order {
        Order::Rows => lanes,
        Order::Columns => depth,
    };
    let packed: &mut [u32] = bytemuck::cast_slice_mut(memory);
    pack(group, order, matrix, stride, (depth, lanes), NR, packed);
    Rhs::new(packed, group, depth, lanes)
}

/// One key: the weights `exp(scale · s - log_sum)` of the queries and the gradients of their scores.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one row of everything")]
fn softmax_gradient<E: Element>(
    units: Units,
    scores: &[f32; BLOCK],
    d_weights: &[f32; BLOCK],
    log_sums: &[f32; BLOCK],
    deltas: &[f32; BLOCK],
    scale: f32,
    weights: &mut [E; BLOCK],
    d_scores: &mut [E; BLOCK],
) {
    for j in 0..BLOCK {
        let weight = exp(units, units.mul_add(scores[j], scale, -log_sums[j]));
        weights[j] = E::from_f32(weight);
        d_scores[j] = E::from_f32(weight * (d_weights[j] - deltas[j]) * scale);
    }
}
