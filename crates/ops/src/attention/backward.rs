//! The backward pass of one head of keys and values and its query heads (arXiv:2205.14135 §3.1). Weights are computed once
//! more from the scores, block by block.
//!
//! With P the weights (queries × keys), S the scaled scores and Y the result, per head:
//! `dV = Pᵀ · dY`, `dP = dY · Vᵀ`, `dS = P ∘ (dP - delta) · scale` with `delta = rowsum(dY ∘ Y)`, `dQ = dS · K`,
//! `dK = dSᵀ · Q`. A block of queries goes through all panels of keys that it sees before the next block begins. dK and dV
//! sum over the query heads, one after the other.

use super::{HeadRows, Part, even, scale};
use crate::element::{Element, narrow};
use crate::exp::{dot, exp};
use crate::product::{
    Group, LeftRows, Matrix, NR, Rhs, Tiling, left_len, multiply, pack_left, packed_len, with_rows,
};
use crate::rope::RopeTable;
use crate::scratch::{split_off, whole_lines, with_scratch};
use crate::vector::{self, Units, convert};

/// Queries whose weights are in memory at the same time.
const BLOCK: usize = 2 * NR;

/// The result of one head's forward pass, its gradient, and the logarithm of each query's sum of exponentials.
pub(super) struct HeadResult<'a, E> {
    /// (T, Dh).
    pub(super) y: HeadRows<'a, E>,
    /// (T, Dh).
    pub(super) dy: HeadRows<'a, E>,
    /// (T).
    pub(super) log_sums: &'a [f32],
}

/// Scratch memory of one group, or the lengths of its parts in f32. N is [`BLOCK`], M is [`Tiling::panel`].
struct BackwardBuffers<T> {
    /// The keys (T, Dh), E. Copies without gaps: every block of queries reads them again, while rows of qkv lie
    /// (H + 2 · Hkv) · Dh elements apart.
    keys: T,
    /// The values (T, Dh), E, likewise.
    values: T,
    /// K (T × Dh) as a right operand, for the queries' gradients.
    keys_packed: T,
    /// Sums of the keys' gradients (T, Dh), f32.
    dk: T,
    /// Sums of the values' gradients (T, Dh), f32.
    dv: T,

    /// The queries of a block (N, Dh), E.
    queries: T,
    /// The gradients of the block's results (N, Dh), E.
    dy: T,
    /// Qᵀ (Dh × N) as a right operand, for the scores.
    queries_transposed: T,
    /// dYᵀ (Dh × N) as a right operand, for the weights' gradients.
    dy_transposed: T,
    /// Q (N × Dh) as a right operand, for the keys' gradients.
    queries_packed: T,
    /// dY (N × Dh) as a right operand, for the values' gradients.
    dy_packed: T,
    /// The scores' gradients of all keys (T, N), E: the queries' gradients sum over all keys.
    d_scores: T,
    /// `d_scores` as a left operand.
    d_scores_packed: T,
    /// The gradients of the block's queries (N, Dh), f32.
    dq: T,

    /// Scores of a panel of keys (M, N), f32.
    scores: T,
    /// Gradients of the weights of a panel (M, N), f32.
    d_weights: T,
    /// Weights of a panel (M, N), E.
    weights: T,
}

impl<T> BackwardBuffers<T> {
    fn map<U>(self, mut f: impl FnMut(T) -> U) -> BackwardBuffers<U> {
        BackwardBuffers {
            keys: f(self.keys),
            values: f(self.values),
            keys_packed: f(self.keys_packed),
            dk: f(self.dk),
            dv: f(self.dv),
            queries: f(self.queries),
            dy: f(self.dy),
            queries_transposed: f(self.queries_transposed),
            dy_transposed: f(self.dy_transposed),
            queries_packed: f(self.queries_packed),
            dy_packed: f(self.dy_packed),
            d_scores: f(self.d_scores),
            d_scores_packed: f(self.d_scores_packed),
            dq: f(self.dq),
            scores: f(self.scores),
            d_weights: f(self.d_weights),
            weights: f(self.weights),
        }
    }
}

impl BackwardBuffers<usize> {
    fn lengths<E: Element>(time: usize, head_dim: usize) -> Self {
        let (group, Tiling { panel, .. }) = (Group::of::<E>(), Tiling::of::<E>());
        let (all_keys, block) = (time * head_dim, BLOCK * head_dim);
        Self {
            keys: E::room(all_keys),
            values: E::room(all_keys),
            keys_packed: packed_len(group, time, head_dim, NR),
            dk: all_keys,
            dv: all_keys,
            queries: E::room(block),
            dy: E::room(block),
            queries_transposed: packed_len(group, head_dim, BLOCK, NR),
            dy_transposed: packed_len(group, head_dim, BLOCK, NR),
            queries_packed: packed_len(group, BLOCK, head_dim, NR),
            dy_packed: packed_len(group, BLOCK, head_dim, NR),
            d_scores: E::room(time * BLOCK),
            d_scores_packed: left_len(group, time, BLOCK),
            dq: block,
            scores: panel * BLOCK,
            d_weights: panel * BLOCK,
            weights: E::room(panel * BLOCK),
        }
    }
}

/// Replaces the queries, keys and values of a group by their gradients. `results` has the query heads in their order,
/// `row` gives the row of a part and position, to read and write.
pub(super) fn group<'a, 'b, E: Element>(
    row: &impl Fn(Part, usize) -> &'a mut [E],
    results: impl Iterator<Item = HeadResult<'b, E>>,
    rope: &RopeTable,
    time: usize,
) {
    let head_dim = rope.head_dim();
    let group = Group::of::<E>();
    let mut total = 0;
    let lengths = BackwardBuffers::lengths::<E>(time, head_dim).map(|length| {
        total += whole_lines(length);
        length
    });
    with_scratch(total, |mut memory| {
        let mut buffers = lengths.map(|length| split_off(&mut memory, length));
        copy_rows(|t| row(Part::Key, t), time, head_dim, E::of_mut(buffers.keys));
        copy_rows(|t| row(Part::Value, t), time, head_dim, E::of_mut(buffers.values));
        let keys = Matrix::rows(E::of(buffers.keys), time, head_dim);
        let keys_packed = Rhs::pack(group, keys, std::mem::take(&mut buffers.keys_packed));
        // Every block of queries adds to the gradients of the keys that it sees.
        buffers.dk.fill(0.0);
        buffers.dv.fill(0.0);
        for (member, result) in results.enumerate() {
            let row = |t| row(Part::Query { member }, t);
            for first in (0..time).step_by(BLOCK) {
                query_block(&row, &result, first, keys_packed, rope, &mut buffers);
            }
        }
        let sums = buffers.dk.chunks_exact_mut(head_dim).zip(buffers.dv.chunks_exact(head_dim));
        for (t, (dk, dv)) in sums.take(time).enumerate() {
            rotate_back(rope, dk, t, row(Part::Key, t));
            convert(dv, row(Part::Value, t));
        }
    });
}

/// Takes the queries of one head from `first` on, as many as make up a block, through all keys that they see: adds to `dk`
/// and `dv`, and replaces the queries by their gradients.
fn query_block<'a, E: Element>(
    row: &impl Fn(usize) -> &'a mut [E],
    result: &HeadResult<'_, E>,
    first: usize,
    keys_packed: Rhs<'_>,
    rope: &RopeTable,
    buffers: &mut BackwardBuffers<&mut [f32]>,
) {
    let (head_dim, group) = (rope.head_dim(), Group::of::<E>());
    let count = BLOCK.min(result.log_sums.len() - first);
    let (queries, dy) = (E::of_mut(buffers.queries), E::of_mut(buffers.dy));
    let statistics = load(row, result, first, queries, dy);
    let columns = |rows| Matrix::columns(rows, head_dim, count);
    let block = QueryBlock {
        first,
        count,
        statistics,
        q_transposed: Rhs::pack(group, columns(&*queries), buffers.queries_transposed),
        dy_transposed: Rhs::pack(group, columns(&*dy), buffers.dy_transposed),
        q: Rhs::pack(group, Matrix::rows(queries, count, head_dim), buffers.queries_packed),
        dy: Rhs::pack(group, Matrix::rows(dy, count, head_dim), buffers.dy_packed),
    };
    let (keys, values) = (E::of(buffers.keys), E::of(buffers.values));
    let (weights, d_scores) = (E::of_mut(buffers.weights), E::of_mut(buffers.d_scores));
    let seen = first + count;
    let Tiling { panel: keys_at_once, .. } = Tiling::of::<E>();
    for key in (0..seen).step_by(keys_at_once) {
        let panel = KeyPanel {
            first: key,
            count: keys_at_once.min(seen - key),
            keys: &keys[key * head_dim..],
            values: &values[key * head_dim..],
            scores: &mut *buffers.scores,
            d_weights: &mut *buffers.d_weights,
            weights: &mut *weights,
            d_scores: &mut d_scores[key * BLOCK..],
            dk: &mut buffers.dk[key * head_dim..],
            dv: &mut buffers.dv[key * head_dim..],
        };
        panel.add_gradients(&block, head_dim);
    }
    // The queries' gradients come last: they sum over all panels, in one product. Their rows of qkv are written now, since
    // no later block reads these queries.
    let packed: &mut [u32] = bytemuck::cast_slice_mut(&mut *buffers.d_scores_packed);
    let lhs = pack_left(group, Matrix::rows(d_scores, seen, BLOCK), packed).first(count);
    multiply(lhs, keys_packed, 0..head_dim, buffers.dq, head_dim, false);
    for (i, dq) in buffers.dq.chunks_exact_mut(head_dim).take(count).enumerate() {
        rotate_back(rope, dq, first + i, row(first + i));
    }
}

/// Copies `count` rows (Dh) into an array without gaps (rows, Dh).
fn copy_rows<'a, E: Element>(
    row: impl Fn(usize) -> &'a mut [E],
    count: usize,
    head_dim: usize,
    rows: &mut [E],
) {
    for (t, copy) in rows.chunks_exact_mut(head_dim).take(count).enumerate() {
        copy.copy_from_slice(row(t));
    }
}

/// Numbers of each query of a block that the gradients of its scores need.
struct Statistics {
    /// The logarithm of the query's sum of exponentials.
    log_sums: [f32; BLOCK],
    /// `dy · y` of the query: the weighted mean of its weights' gradients, which softmax takes off each of them.
    deltas: [f32; BLOCK],
}

/// Copies the queries from `first` on, as many as make up a block, and the gradients of their results to `queries` and
/// `dy` (N, Dh).
fn load<'a, E: Element>(
    row: &impl Fn(usize) -> &'a mut [E],
    result: &HeadResult<'_, E>,
    first: usize,
    queries: &mut [E],
    dy: &mut [E],
) -> Statistics {
    let head_dim = result.y.head_dim;
    // The largest log sum for rows without a query keeps their exponentials, which are not used, finite.
    let mut statistics = Statistics { log_sums: [f32::MAX; BLOCK], deltas: [0.0; BLOCK] };
    let rows = queries.chunks_exact_mut(head_dim).zip(dy.chunks_exact_mut(head_dim)).take(BLOCK);
    for (i, ((query, d), &log_sum)) in rows.zip(&result.log_sums[first..]).enumerate() {
        query.copy_from_slice(row(first + i));
        d.copy_from_slice(result.dy.row(first + i));
        statistics.deltas[i] = vector::dispatch_with(
            #[inline(always)]
            |units| dot(units, d, result.y.row(first + i)),
        );
        statistics.log_sums[i] = log_sum;
    }
    statistics
}

/// A block of queries: the right operands of its products with each panel of keys.
struct QueryBlock<'a> {
    first: usize,
    count: usize,
    statistics: Statistics,
    /// Qᵀ (Dh × N).
    q_transposed: Rhs<'a>,
    /// dYᵀ (Dh × N).
    dy_transposed: Rhs<'a>,
    /// Q (N × Dh).
    q: Rhs<'a>,
    /// dY (N × Dh).
    dy: Rhs<'a>,
}

/// A panel of keys, its memory and its gradients; the slices begin at the panel's first key and may reach past its last.
struct KeyPanel<'a, E> {
    first: usize,
    count: usize,
    keys: &'a [E],
    values: &'a [E],
    scores: &'a mut [f32],
    d_weights: &'a mut [f32],
    weights: &'a mut [E],
    d_scores: &'a mut [E],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
}

impl<E: Element> KeyPanel<'_, E> {
    /// Adds the gradients that come from a block of queries to `dk` and `dv`, and writes `d_scores`.
    fn add_gradients(mut self, block: &QueryBlock<'_>, head_dim: usize) {
        let count = self.count;
        let rows = |data| LeftRows { data, count, depth: head_dim, stride: head_dim };
        with_rows(rows(self.keys), |k| {
            multiply(k, block.q_transposed, 0..block.count, self.scores, BLOCK, false);
        });
        with_rows(rows(self.values), |v| {
            multiply(v, block.dy_transposed, 0..block.count, self.d_weights, BLOCK, false);
        });
        self.differentiate_softmax(block, scale(head_dim));
        // Pairs need an even depth; the row after an odd last query holds zeros.
        let depth = even(Group::of::<E>(), block.count);
        with_rows(LeftRows { data: &*self.weights, count, depth, stride: BLOCK }, |weights| {
            multiply(weights, block.dy, 0..head_dim, self.dv, head_dim, true);
        });
        with_rows(LeftRows { data: &*self.d_scores, count, depth, stride: BLOCK }, |d_scores| {
            multiply(d_scores, block.q, 0..head_dim, self.dk, head_dim, true);
        });
    }

    /// Computes the weights and the scores' gradients from scores and weights' gradients. All four have a row per key, so
    /// that one vector holds the same key for many queries.
    fn differentiate_softmax(&mut self, block: &QueryBlock<'_>, scale: f32) {
        let inputs = self.scores.as_chunks::<BLOCK>().0.iter().zip(self.d_weights.as_chunks::<BLOCK>().0);
        let results = self.weights.as_chunks_mut::<BLOCK>().0.iter_mut();
        let results = results.zip(self.d_scores.as_chunks_mut::<BLOCK>().0);
        let rows = inputs.zip(results).take(self.count).enumerate();
        vector::dispatch_with(
            #[inline(always)]
            |units| {
                for (i, ((scores, d_weights), (weights, d_scores))) in rows {
                    softmax_gradient(units, scores, d_weights, &block.statistics, scale, weights, d_scores);
                    // Queries before this key do not see it, and the last block of a sequence may have fewer than N queries.
                    let hidden = (self.first + i).saturating_sub(block.first).min(BLOCK);
                    weights[..hidden].fill(E::default());
                    d_scores[..hidden].fill(E::default());
                    weights[block.count..].fill(E::default());
                    d_scores[block.count..].fill(E::default());
                }
            },
        );
    }
}

/// One key: the queries' weights `exp(scale · s - log_sum)` and the gradients of their scores.
#[inline(always)]
fn softmax_gradient<E: Element>(
    units: Units,
    scores: &[f32; BLOCK],
    d_weights: &[f32; BLOCK],
    statistics: &Statistics,
    scale: f32,
    weights: &mut [E; BLOCK],
    d_scores: &mut [E; BLOCK],
) {
    let Statistics { log_sums, deltas } = statistics;
    for j in 0..BLOCK {
        let weight = exp(units, units.mul_add(scores[j], scale, -log_sums[j]));
        weights[j] = E::from_f32(weight);
        d_scores[j] = E::from_f32(weight * (d_weights[j] - deltas[j]) * scale);
    }
}

/// Rotates the gradient of a rotated row back and stores it.
fn rotate_back<E: Element>(rope: &RopeTable, gradient: &mut [f32], position: usize, row: &mut [E]) {
    vector::dispatch(
        #[inline(always)]
        || {
            rope.rotate(gradient, position, -1.0);
            narrow(gradient, row);
        },
    );
}
