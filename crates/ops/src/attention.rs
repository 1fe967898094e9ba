//! Causal attention, block by block (arXiv:2205.14135): the T × T scores are never in memory.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor};
use rayon::prelude::*;

use crate::OpsError;
use crate::error::shape;
use crate::exp::{dot, exp, maximum};
use crate::matmul::{Strided, Threads, matmul};
use crate::memory::{elements, read};

/// Query rows whose scores are in memory at the same time.
const BLOCK: usize = 64;

/// `softmax(q · kᵀ / sqrt(Dh)) · v` with a causal mask: q (B, Tq, H, Dh), k and v (B, Tk, H, Dh), result
/// (B, Tq, H, Dh), f32. The queries are the last Tq of the Tk positions.
///
/// The heads stay where the projections put them, so nothing is transposed. Memory beyond the result: one number per
/// query and head, and 64 × Tk scores per task.
///
/// # Errors
/// When the shapes do not fit each other or Tq > Tk.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor, OpsError> {
    let fits = q.rank() == 4 && k.rank() == 4 && k.dims() == v.dims() && q.elem_count() > 0 && {
        let (q, k) = (q.dims(), k.dims());
        q[0] == k[0] && q[2..] == k[2..] && q[1] <= k[1]
    };
    if !fits {
        let problem = format!("q {:?}, k {:?} and v {:?} do not fit", q.dims(), k.dims(), v.dims());
        return Err(shape("attention", problem));
    }
    Ok(q.apply_op3(k, v, Attention { log_sums: OnceLock::new() })?)
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
    let sizes = Sizes { queries: q.len() / row, keys: length, head_dim, row };
    assert!(keys.len() >= length * row && values.len() >= length * row && sizes.queries <= length);
    if sizes.queries == 1 {
        let mut scores = vec![0.0; length];
        for head in 0..heads {
            let at = head * head_dim..(head + 1) * head_dim;
            attend_one(&q[at.clone()], &keys[at.start..], &values[at.start..], &mut scores, &mut y[at], row);
        }
        return;
    }
    let heads: Vec<(Vec<f32>, Vec<f32>)> = (0..heads)
        .into_par_iter()
        .map(|head| forward(sizes, &q[head * head_dim..], &keys[head * head_dim..], &values[head * head_dim..]))
        .collect();
    for (head, (result, _)) in heads.iter().enumerate() {
        place(result, y, head * head_dim, head_dim, row);
    }
}

/// One head of one query.
fn attend_one(q: &[f32], keys: &[f32], values: &[f32], scores: &mut [f32], y: &mut [f32], row: usize) {
    let scale = 1.0 / (q.len() as f32).sqrt();
    for (score, key) in scores.iter_mut().zip(keys.chunks(row)) {
        *score = dot(q, &key[..q.len()]) * scale;
    }
    let largest = maximum(scores);
    let mut sum = 0.0;
    y.fill(0.0);
    for (score, value) in scores.iter().zip(values.chunks(row)) {
        let weight = exp(score - largest);
        sum += weight;
        for (y, value) in y.iter_mut().zip(value) {
            *y += weight * value;
        }
    }
    for y in y {
        *y /= sum;
    }
}

/// The sizes of one head's problem.
#[derive(Clone, Copy)]
struct Sizes {
    /// Tq.
    queries: usize,
    /// Tk.
    keys: usize,
    /// Dh.
    head_dim: usize,
    /// Elements from one position to the next, H × Dh.
    row: usize,
}

impl Sizes {
    fn scale(self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// The blocks of queries: first query, number of queries, number of keys that the last of them sees.
    fn blocks(self) -> impl Iterator<Item = (usize, usize, usize)> {
        let offset = self.keys - self.queries;
        (0..self.queries).step_by(BLOCK).map(move |first| {
            let count = BLOCK.min(self.queries - first);
            (first, count, offset + first + count)
        })
    }

    /// Keys that a query sees.
    fn seen(self, query: usize) -> usize {
        self.keys - self.queries + query + 1
    }
}

/// One head: the result (Tq, Dh) and the logarithm of each query's sum of exponentials.
fn forward(sizes: Sizes, q: &[f32], k: &[f32], v: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let Sizes { queries, head_dim, row, .. } = sizes;
    let strided = Strided::rows(row);
    let mut y = vec![0.0; queries * head_dim];
    let mut log_sums = vec![0.0; queries];
    let mut scores = vec![0.0; BLOCK.min(queries) * sizes.keys];
    for (first, count, seen) in sizes.blocks() {
        let scores = &mut scores[..count * seen];
        let grid = Strided::rows(seen);
        let q = &q[first * row..];
        matmul((count, seen, head_dim), q, strided, k, strided.t(), scores, grid, sizes.scale(), false, Threads::One);
        for (i, scores) in scores.chunks_exact_mut(seen).enumerate() {
            let (scores, hidden) = scores.split_at_mut(sizes.seen(first + i));
            hidden.fill(0.0);
            let largest = maximum(scores);
            for score in scores.iter_mut() {
                *score = exp(*score - largest);
            }
            let sum = total(scores);
            let inverse = 1.0 / sum;
            for score in scores.iter_mut() {
                *score *= inverse;
            }
            log_sums[first + i] = largest + sum.ln();
        }
        let y = &mut y[first * head_dim..][..count * head_dim];
        let out = Strided::rows(head_dim);
        matmul((count, head_dim, seen), scores, grid, v, strided, y, out, 1.0, false, Threads::One);
    }
    (y, log_sums)
}

/// The sum, in 16 running sums that are added in a fixed order.
fn total(values: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let mut chunks = values.chunks_exact(16);
    for chunk in &mut chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    lanes.iter().sum::<f32>() + chunks.remainder().iter().sum::<f32>()
}

/// What the gradient of one head needs.
struct Saved<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    y: &'a [f32],
    dy: &'a [f32],
    log_sums: &'a [f32],
}

/// The gradients of one head: dq (Tq, Dh), dk and dv (Tk, Dh).
fn backward(sizes: Sizes, saved: &Saved<'_>) -> [Vec<f32>; 3] {
    let Sizes { queries, keys, head_dim, row } = sizes;
    let (strided, dense, scale) = (Strided::rows(row), Strided::rows(head_dim), sizes.scale());
    let (mut dq, mut dk, mut dv) =
        (vec![0.0; queries * head_dim], vec![0.0; keys * head_dim], vec![0.0; keys * head_dim]);
    let area = BLOCK.min(queries) * keys;
    let (mut weights, mut gradients) = (vec![0.0; area], vec![0.0; area]);
    let one = Threads::One;
    for (first, count, seen) in sizes.blocks() {
        let (weights, gradients) = (&mut weights[..count * seen], &mut gradients[..count * seen]);
        let grid = Strided::rows(seen);
        let (q, dy) = (&saved.q[first * row..], &saved.dy[first * row..]);
        matmul((count, seen, head_dim), q, strided, saved.k, strided.t(), weights, grid, scale, false, one);
        matmul((count, seen, head_dim), dy, strided, saved.v, strided.t(), gradients, grid, 1.0, false, one);
        let rows = weights.chunks_exact_mut(seen).zip(gradients.chunks_exact_mut(seen));
        for (i, (weights, gradients)) in rows.enumerate() {
            let query = first + i;
            let (weights, hidden) = weights.split_at_mut(sizes.seen(query));
            hidden.fill(0.0);
            gradients[weights.len()..].fill(0.0);
            let log_sum = saved.log_sums[query];
            let at = query * row..query * row + head_dim;
            let delta = dot(&saved.dy[at.clone()], &saved.y[at]);
            for (weight, gradient) in weights.iter_mut().zip(gradients) {
                *weight = exp(*weight - log_sum);
                *gradient = *weight * (*gradient - delta) * scale;
            }
        }
        matmul((seen, head_dim, count), weights, grid.t(), dy, strided, &mut dv, dense, 1.0, true, one);
        let dq = &mut dq[first * head_dim..][..count * head_dim];
        matmul((count, head_dim, seen), gradients, grid, saved.k, strided, dq, dense, 1.0, false, one);
        matmul((seen, head_dim, count), gradients, grid.t(), q, strided, &mut dk, dense, 1.0, true, one);
    }
    [dq, dk, dv]
}

/// Writes one head's rows (T, Dh) into `all` (T, row) from column `column`.
fn place(head: &[f32], all: &mut [f32], column: usize, head_dim: usize, row: usize) {
    for (from, to) in head.chunks_exact(head_dim).zip(all.chunks_exact_mut(row)) {
        to[column..column + head_dim].copy_from_slice(from);
    }
}

/// Puts the heads of a whole batch, in the order (B, H), into (B, T, H, Dh).
fn interleave<'a>(heads: impl Iterator<Item = &'a Vec<f32>>, sizes: (usize, usize, usize, usize)) -> Vec<f32> {
    let (batch, time, count, head_dim) = sizes;
    let row = count * head_dim;
    let mut all = vec![0.0; batch * time * row];
    for (i, head) in heads.enumerate() {
        place(head, &mut all[i / count * time * row..][..time * row], i % count * head_dim, head_dim, row);
    }
    all
}

struct Attention {
    /// (B × H) vectors of Tq numbers.
    log_sums: OnceLock<Vec<Vec<f32>>>,
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (batch, queries, heads, head_dim) = q_layout.shape().dims4()?;
        let (_, keys, _, _) = k_layout.shape().dims4()?;
        let row = heads * head_dim;
        let sizes = Sizes { queries, keys, head_dim, row };
        let (q, k, v) = (elements(q, q_layout)?, elements(k, k_layout)?, elements(v, v_layout)?);
        let results: Vec<(Vec<f32>, Vec<f32>)> = (0..batch * heads)
            .into_par_iter()
            .map(|i| {
                let (sequence, column) = (i / heads, i % heads * head_dim);
                let from = sequence * keys * row + column;
                forward(sizes, &q[sequence * queries * row + column..], &k[from..], &v[from..])
            })
            .collect();
        let y = interleave(results.iter().map(|(y, _)| y), (batch, queries, heads, head_dim));
        // A second forward pass of the same op would find the same numbers here.
        let _ = self.log_sums.set(results.into_iter().map(|(_, log_sums)| log_sums).collect());
        Ok((CpuStorage::F32(y), q_layout.shape().clone()))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Some(log_sums) = self.log_sums.get() else {
            candle_core::bail!("attention has no forward pass to differentiate");
        };
        let (batch, queries, heads, head_dim) = q.dims4()?;
        let keys = k.dim(1)?;
        let row = heads * head_dim;
        let sizes = Sizes { queries, keys, head_dim, row };
        let dy = dy.contiguous()?;
        let gradients = |q: &[f32], k: &[f32], v: &[f32], y: &[f32], dy: &[f32]| -> Vec<[Vec<f32>; 3]> {
            let heads = log_sums.par_iter().enumerate().map(|(i, log_sums)| {
                let (sequence, column) = (i / heads, i % heads * head_dim);
                let (query, key) = (sequence * queries * row + column, sequence * keys * row + column);
                let (q, y, dy) = (&q[query..], &y[query..], &dy[query..]);
                backward(sizes, &Saved { q, k: &k[key..], v: &v[key..], y, dy, log_sums })
            });
            heads.collect()
        };
        let heads_gradients = read(q, |q| {
            read(k, |k| read(v, |v| read(y, |y| read(&dy, |dy| gradients(q, k, v, y, dy)))))
        })?????;
        let tensor = |which: usize, like: &Tensor| {
            let all = heads_gradients.iter().map(|head| &head[which]);
            Tensor::from_vec(interleave(all, (batch, like.dim(1)?, heads, head_dim)), like.shape(), like.device())
        };
        Ok((Some(tensor(0, q)?), Some(tensor(1, k)?), Some(tensor(2, v)?)))
    }
}
