//! Causal attention, block by block (arXiv:2205.14135): the T × T scores are never in memory.

mod backward;
mod forward;

use rayon::prelude::*;

use crate::element::Element;
use crate::exp::{dot, exp, maximum};
use crate::product::{Group, Shared};
use crate::rope::RopeTable;
use crate::vector::{self, Units};

/// The shape of a batch's attention but for the number of sequences: queries, keys and values of a position lie one after the other, (B, T, 3, H, Dh).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) time: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
}

impl Shape {
    /// H × Dh.
    fn width(self) -> usize {
        self.heads * self.head_dim
    }
}

/// Strided rows of one head: row `t` begins at `t * stride`.
#[derive(Clone, Copy)]
struct Head<'a, E> {
    data: &'a [E],
    stride: usize,
    head_dim: usize,
}

impl<'a, E: Element> Head<'a, E> {
    fn row(&self, t: usize) -> &'a [E] {
        &self.data[t * self.stride..][..self.head_dim]
    }

    fn from(&self, t: usize) -> &'a [E] {
        &self.data[t * self.stride..]
    }
}

fn scale(head_dim: usize) -> f32 {
    1.0 / (head_dim as f32).sqrt()
}

/// `softmax(q · kᵀ / sqrt(Dh)) · v` with a causal mask: qkv (B, T, 3, H, Dh), y (B, T, H, Dh) and the logarithm of each
/// row's sum of exponentials, `log_sums` (B, H, T).
pub(crate) fn forward_all<E: Element>(qkv: &[E], y: &mut [E], log_sums: &mut [f32], shape: Shape) {
    let Shape { time, heads, head_dim, .. } = shape;
    let width = shape.width();
    let y = Shared::new(y);
    log_sums.par_chunks_mut(time).enumerate().for_each(|(task, log_sums)| {
        let (sequence, head) = (task / heads, task % heads);
        let part = |which: usize| Head {
            data: &qkv[sequence * time * 3 * width + which * width + head * head_dim..],
            stride: 3 * width,
            head_dim,
        };
        forward::head(part(0), part(1), part(2), (time, time), log_sums, |t, row| {
            let at = (sequence * time + t) * width + head * head_dim;
            // SAFETY: each task writes the columns of its own sequence and head.
            crate::element::convert(row, unsafe { y.part(at..at + head_dim) });
        });
    });
}

/// Replaces qkv by its gradient, given y and its gradient, and turns queries' and keys' gradients back by the rotation
/// that they had.
pub(crate) fn backward_all<E: Element>(
    qkv: &mut [E],
    y: &[E],
    dy: &[E],
    log_sums: &[f32],
    rope: &RopeTable,
    shape: Shape,
) {
    let Shape { time, heads, head_dim, .. } = shape;
    let width = shape.width();
    let qkv = Shared::new(qkv);
    log_sums.par_chunks(time).enumerate().for_each(|(task, log_sums)| {
        let (sequence, head) = (task / heads, task % heads);
        let at = |which: usize, t: usize| {
            let at = (sequence * time + t) * 3 * width + which * width + head * head_dim;
            at..at + head_dim
        };
        let result = |data| Head { data, stride: width, head_dim };
        let from = sequence * time * width + head * head_dim;
        // SAFETY: each task reads and writes the columns of its own sequence and head, one row at a time.
        let row = |which: usize, t: usize| unsafe { qkv.part(at(which, t)) };
        backward::head(&row, result(&y[from..]), result(&dy[from..]), log_sums, rope);
    });
}

/// The keys and values of one sequence: `length` positions of `heads` heads of `head_dim` elements each.
#[derive(Clone, Copy, Debug)]
pub struct KeyValues<'a> {
    /// The keys (Tk, H, Dh).
    pub keys: &'a [f32],
    /// The values (Tk, H, Dh).
    pub values: &'a [f32],
    /// Tk.
    pub length: usize,
    /// H.
    pub heads: usize,
    /// Dh.
    pub head_dim: usize,
}

/// Causal attention of one sequence without gradients: `q` and `y` are (Tq, H, Dh), the queries are the last of the
/// sequence's positions.
///
/// # Panics
/// When a slice is shorter than the sizes say.
pub fn attend(q: &[f32], past: KeyValues<'_>, y: &mut [f32]) {
    let KeyValues { keys, values, length, heads, head_dim } = past;
    let row = heads * head_dim;
    let queries = q.len() / row;
    assert!(keys.len() >= length * row && values.len() >= length * row && queries <= length);
    assert!(y.len() >= queries * row, "the result is too short");
    if queries == 1 {
        let mut scores = vec![0.0; length];
        for head in 0..heads {
            let at = head * head_dim..(head + 1) * head_dim;
            let (keys, values) = (&keys[at.start..], &values[at.start..]);
            vector::dispatch_with(
                #[inline(always)]
                |units| attend_one(units, &q[at.clone()], keys, values, &mut scores, &mut y[at.clone()], row),
            );
        }
        return;
    }
    let y = Shared::new(y);
    (0..heads).into_par_iter().for_each(|head| {
        let part = |data| Head { data, stride: row, head_dim };
        let from = head * head_dim;
        let mut log_sums = vec![0.0; queries];
        let (q, k, v) = (part(&q[from..]), part(&keys[from..]), part(&values[from..]));
        forward::head(q, k, v, (queries, length), &mut log_sums, |t, row_of_y| {
            // SAFETY: each task writes the columns of its own head.
            unsafe { y.part(t * row + from..t * row + from + head_dim) }.copy_from_slice(row_of_y);
        });
    });
}

/// One head of one query.
#[inline(always)]
fn attend_one(
    units: Units,
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    scores: &mut [f32],
    y: &mut [f32],
    row: usize,
) {
    let scale = scale(q.len());
    for (score, key) in scores.iter_mut().zip(keys.chunks(row)) {
        *score = dot(units, q, &key[..q.len()]) * scale;
    }
    let largest = maximum(scores);
    let mut sum = 0.0;
    y.fill(0.0);
    for (score, value) in scores.iter().zip(values.chunks(row)) {
        let weight = exp(units, score - largest);
        sum += weight;
        for (y, value) in y.iter_mut().zip(value) {
            *y += weight * value;
        }
    }
    for y in y {
        *y /= sum;
    }
}

/// An even number of elements for pairs.
fn even(group: Group, elements: usize) -> usize {
    match group {
        Group::Single => elements,
        Group::Pair => elements.next_multiple_of(2),
    }
}
