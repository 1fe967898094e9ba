//! Attention of the new tokens of a sequence over its pages.

use std::ops::Range;

use super::scale;
use crate::element::Element;
use crate::exp::{LANES, Lanes, exp, maximum, total};
use crate::kv_pages::{KvShape, PAGE_TOKENS, SequencePages, SharedMemory};
use crate::product::Shared;
use crate::scratch::with_scratch;
use crate::vector::{self, Units};

/// Queries that read a page together. Their sums fit the registers.
const QUERIES: usize = 4;

/// The queries of a step and where its results go: rows of several sequences.
pub(crate) struct PagedQueries<'a> {
    /// Queries, keys and values (rows, (H + 2 · Hkv) × Dh).
    pub(crate) qkv: &'a [f32],
    /// (H + 2 · Hkv) × Dh.
    pub(crate) stride: usize,
    /// H.
    pub(crate) heads: usize,
    /// The results (rows, H × Dh).
    pub(crate) y: Shared<f32>,
}

/// Causal attention of one sequence, for one head of keys and values and all query heads that share it. `first` is the row
/// of the sequence's first query. Results have the same bits for any number of rows: each query runs the same operations.
///
/// # Safety
/// No other thread may write the pages of the sequence, or use these heads of these rows of y, meanwhile.
pub(crate) unsafe fn attend(
    queries: &PagedQueries<'_>,
    sequence: &SequencePages<'_>,
    block: usize,
    kv_head: usize,
    first: usize,
) {
    match &sequence.memory {
        // SAFETY: passed on.
        SharedMemory::F32(memory) => unsafe { attend_as(queries, sequence, memory, block, kv_head, first) },
        // SAFETY: passed on.
        SharedMemory::Bf16(memory) => unsafe { attend_as(queries, sequence, memory, block, kv_head, first) },
    }
}

/// # Safety
/// See [`attend`].
unsafe fn attend_as<E: Element>(
    queries: &PagedQueries<'_>,
    sequence: &SequencePages<'_>,
    memory: &Shared<E>,
    block: usize,
    kv_head: usize,
    first: usize,
) {
    let (shape, place) = (sequence.shape, sequence.place);
    let members = queries.heads / shape.kv_heads;
    let count = place.rows * members;
    let page = |index: usize| {
        let at = sequence.at(block, index, kv_head);
        // SAFETY: nobody writes the pages meanwhile, by this function's contract.
        unsafe { memory.read(at..at + shape.head()) }
    };
    for start in (0..count).step_by(QUERIES) {
        let range = start..count.min(start + QUERIES);
        // SAFETY: passed on.
        unsafe {
            match range.len() {
                1 => some::<1, E>(queries, shape, place.start, members, kv_head, first, range, page),
                2 => some::<2, E>(queries, shape, place.start, members, kv_head, first, range, page),
                3 => some::<3, E>(queries, shape, place.start, members, kv_head, first, range, page),
                _ => some::<4, E>(queries, shape, place.start, members, kv_head, first, range, page),
            }
        }
    }
}

/// The queries `range`, which are numbered row by row and within a row by their head among the `members` of the group.
///
/// # Safety
/// See [`attend`].
#[expect(clippy::too_many_arguments, reason = "one caller, which calls it once for each number of queries")]
unsafe fn some<'p, const N: usize, E: Element>(
    queries: &PagedQueries<'_>,
    shape: KvShape,
    past: usize,
    members: usize,
    kv_head: usize,
    first: usize,
    range: Range<usize>,
    page: impl Fn(usize) -> &'p [E],
) {
    let head_dim = shape.head_dim;
    let row = |i: usize| (range.start + i) / members;
    let column = |i: usize| (kv_head * members + (range.start + i) % members) * head_dim;
    let q: [&[f32]; N] =
        std::array::from_fn(|i| &queries.qkv[(first + row(i)) * queries.stride + column(i)..][..head_dim]);
    let seen: [usize; N] = std::array::from_fn(|i| past + row(i) + 1);
    // SAFETY: these rows and heads of y are ours by this function's contract, and queries differ in row or head.
    let y: [&mut [f32]; N] = std::array::from_fn(|i| unsafe {
        let at = (first + row(i)) * queries.heads * head_dim + column(i);
        queries.y.part(at..at + head_dim)
    });
    let wide = seen[N - 1].next_multiple_of(PAGE_TOKENS);
    with_scratch(N * wide, |weights| {
        vector::dispatch_with(
            #[inline(always)]
            |units| together(units, shape, q, seen, weights, &page, y),
        );
    });
}

/// A few queries of one head. Query i sees the first `seen[i]` keys, the last query sees most. `weights` is memory for
/// (N, keys in whole pages).
#[inline(always)]
fn together<'p, const N: usize, E: Element>(
    units: Units,
    shape: KvShape,
    q: [&[f32]; N],
    seen: [usize; N],
    weights: &mut [f32],
    page: &impl Fn(usize) -> &'p [E],
    y: [&mut [f32]; N],
) {
    let (head_dim, stride) = (shape.head_dim, shape.value_stride());
    let keys = seen[N - 1];
    let wide = keys.next_multiple_of(PAGE_TOKENS);
    for index in 0..wide / PAGE_TOKENS {
        let mut sums = [[0f32; PAGE_TOKENS]; N];
        let (keys, _) = page(index)[..head_dim * PAGE_TOKENS].as_chunks::<PAGE_TOKENS>();
        for (d, keys) in keys.iter().enumerate() {
            let keys = keys.map(E::to_f32);
            for (sums, q) in sums.iter_mut().zip(q) {
                let q = q[d];
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = units.mul_add(q, key, *sum);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            weights[i * wide + index * PAGE_TOKENS..][..PAGE_TOKENS].copy_from_slice(sums);
        }
    }
    let mut inverse = [0f32; N];
    for (i, row) in weights.chunks_exact_mut(wide).enumerate() {
        let (own, hidden) = row.split_at_mut(seen[i]);
        inverse[i] = 1.0 / softmax(units, own, scale(head_dim));
        // Later keys have no weight. The last of them may lie in a part of the page that nobody wrote.
        hidden.fill(0.0);
    }
    let mut y = y;
    for column in (0..stride).step_by(PAGE_TOKENS) {
        let mut sums = [[0f32; PAGE_TOKENS]; N];
        for index in 0..wide / PAGE_TOKENS {
            let first = index * PAGE_TOKENS;
            let values = &page(index)[head_dim * PAGE_TOKENS..];
            for t in 0..PAGE_TOKENS.min(keys - first) {
                let (values, _) = values[t * stride + column..][..PAGE_TOKENS].as_chunks::<PAGE_TOKENS>();
                let values = values[0].map(E::to_f32);
                for (i, sums) in sums.iter_mut().enumerate() {
                    let weight = weights[i * wide + first + t];
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = units.mul_add(weight, value, *sum);
                    }
                }
            }
        }
        for ((y, sums), inverse) in y.iter_mut().zip(sums).zip(inverse) {
            for (y, sum) in y.iter_mut().skip(column).zip(sums) {
                *y = sum * inverse;
            }
        }
    }
}

/// Replaces scores by `exp(scale · (score - largest))` and returns their sum.
#[inline(always)]
fn softmax(units: Units, scores: &mut [f32], scale: f32) -> f32 {
    let largest = maximum(scores);
    let mut lanes = Lanes([0f32; LANES]);
    for scores in scores.chunks_mut(LANES) {
        for (lane, score) in lanes.0.iter_mut().zip(scores) {
            *score = exp(units, (*score - largest) * scale);
            *lane += *score;
        }
    }
    total(&lanes)
}
