//! The operations of a path and their gradients in f64, written for clarity. Central differences check the gradients.

use std::ops::Range;

use crate::support::{block_weights, numbers, wide};

/// The sizes of a block and its batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) time: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) ffn: usize,
}

pub(crate) const EPSILON: f64 = 1e-3;
pub(crate) const THETA: f64 = 100.0;

impl Sizes {
    pub(crate) fn rows(&self) -> usize {
        self.batch * self.time
    }

    fn attention(&self) -> usize {
        self.heads * self.head_dim
    }

    /// The width of keys and of values.
    pub(crate) fn kv(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The elements of a query head at a position of one sequence.
    fn query(&self, position: usize, head: usize) -> Range<usize> {
        let at = position * self.attention() + head * self.head_dim;
        at..at + self.head_dim
    }

    /// The elements of the head of keys, or of values, that a query head reads.
    fn key(&self, position: usize, head: usize) -> Range<usize> {
        let at = position * self.kv() + head / (self.heads / self.kv_heads) * self.head_dim;
        at..at + self.head_dim
    }

    /// The names and lengths of a block's parameters, in their order.
    pub(crate) fn parts(&self) -> [(&'static str, usize); 9] {
        let (d, a, f) = (self.width, self.attention(), self.ffn);
        [
            ("input norm", d),
            ("q", a * d),
            ("k", self.kv() * d),
            ("v", self.kv() * d),
            ("o", a * d),
            ("post norm", d),
            ("gate", f * d),
            ("up", f * d),
            ("down", f * d),
        ]
    }

    pub(crate) fn parameters(&self) -> usize {
        self.parts().iter().map(|(_, length)| length).sum()
    }

    pub(crate) fn split<'a, T>(&self, mut flat: &'a [T]) -> [&'a [T]; 9] {
        self.parts().map(|(_, length)| {
            let (part, rest) = flat.split_at(length);
            flat = rest;
            part
        })
    }
}

/// `x · Wᵀ`.
pub(crate) fn linear(x: &[f64], w: &[f64], inputs: usize) -> Vec<f64> {
    let dot = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(a, b)| a * b).sum::<f64>();
    x.chunks(inputs).flat_map(|x| w.chunks(inputs).map(move |w| dot(x, w))).collect()
}

/// Adds to `dx` and `dw`.
fn linear_backward(x: &[f64], w: &[f64], dy: &[f64], inputs: usize, dx: &mut [f64], dw: &mut [f64]) {
    let outputs = w.len() / inputs;
    for ((x, dx), dy) in x.chunks(inputs).zip(dx.chunks_mut(inputs)).zip(dy.chunks(outputs)) {
        for ((w, dw), dy) in w.chunks(inputs).zip(dw.chunks_mut(inputs)).zip(dy) {
            for i in 0..inputs {
                dx[i] += dy * w[i];
                dw[i] += dy * x[i];
            }
        }
    }
}

pub(crate) fn rms_norm(x: &[f64], w: &[f64]) -> Vec<f64> {
    let rows = x.chunks(w.len()).flat_map(|x| {
        let scale = inverse_rms(x);
        x.iter().zip(w).map(move |(x, w)| x * scale * w)
    });
    rows.collect()
}

fn inverse_rms(x: &[f64]) -> f64 {
    1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + EPSILON).sqrt()
}

/// Adds to `dx` and `dw`.
fn rms_norm_backward(x: &[f64], w: &[f64], dy: &[f64], dx: &mut [f64], dw: &mut [f64]) {
    let width = w.len();
    for ((x, dx), dy) in x.chunks(width).zip(dx.chunks_mut(width)).zip(dy.chunks(width)) {
        let scale = inverse_rms(x);
        let pull = (0..width).map(|i| dy[i] * w[i] * x[i]).sum::<f64>() * scale.powi(3) / width as f64;
        for i in 0..width {
            dx[i] += dy[i] * w[i] * scale - x[i] * pull;
            dw[i] += dy[i] * x[i] * scale;
        }
    }
}

/// Rotates rows of `heads` heads; a `sign` of -1 rotates back.
fn rope(x: &mut [f64], sizes: &Sizes, heads: usize, sign: f64) {
    let half = sizes.head_dim / 2;
    for (row, x) in x.chunks_mut(heads * sizes.head_dim).enumerate() {
        for head in x.chunks_mut(sizes.head_dim) {
            for j in 0..half {
                let angle = (row % sizes.time) as f64 * THETA.powf(-2.0 * j as f64 / sizes.head_dim as f64);
                let (sin, cos) = (sign * angle.sin(), angle.cos());
                let (low, high) = (head[j], head[j + half]);
                (head[j], head[j + half]) = (low * cos - high * sin, high * cos + low * sin);
            }
        }
    }
}

/// The weights of one query: `softmax(q · kᵀ / sqrt(Dh))` over the keys that it sees.
fn weights(q: &[f64], k: impl Iterator<Item = Vec<f64>>) -> Vec<f64> {
    let scale = 1.0 / (q.len() as f64).sqrt();
    let scores: Vec<f64> = k.map(|k| q.iter().zip(&k).map(|(a, b)| a * b).sum::<f64>() * scale).collect();
    let largest = scores.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
    scores.iter().map(|s| (s - largest).exp() / sum).collect()
}

/// Attention of one sequence: q (Tq, H, Dh) belongs to the last Tq of the Tk positions of k and v (Tk, Hkv, Dh).
pub(crate) fn attention(q: &[f64], k: &[f64], v: &[f64], sizes: &Sizes) -> Vec<f64> {
    let (queries, keys) = (q.len() / sizes.attention(), k.len() / sizes.kv());
    let mut y = vec![0.0; q.len()];
    for (t, h) in (0..queries).flat_map(|t| (0..sizes.heads).map(move |h| (t, h))) {
        let (at, of) = (|t| sizes.query(t, h), |s| sizes.key(s, h));
        let seen = keys - queries + t + 1;
        for (s, weight) in weights(&q[at(t)], (0..seen).map(|s| k[of(s)].to_vec())).iter().enumerate() {
            for (y, v) in y[at(t)].iter_mut().zip(&v[of(s)]) {
                *y += weight * v;
            }
        }
    }
    y
}

/// The gradients of q, k and v of one sequence.
fn attention_backward(q: &[f64], k: &[f64], v: &[f64], dy: &[f64], sizes: &Sizes) -> [Vec<f64>; 3] {
    let head_dim = sizes.head_dim;
    let scale = 1.0 / (head_dim as f64).sqrt();
    let [mut dq, mut dk, mut dv] = [q, k, v].map(|x| vec![0.0; x.len()]);
    for (t, h) in (0..sizes.time).flat_map(|t| (0..sizes.heads).map(move |h| (t, h))) {
        let (at, of) = (|t| sizes.query(t, h), |s| sizes.key(s, h));
        let weights = weights(&q[at(t)], (0..=t).map(|s| k[of(s)].to_vec()));
        let d_weights: Vec<f64> =
            (0..=t).map(|s| dy[at(t)].iter().zip(&v[of(s)]).map(|(a, b)| a * b).sum()).collect();
        let mean: f64 = weights.iter().zip(&d_weights).map(|(a, b)| a * b).sum();
        for s in 0..=t {
            let d_score = weights[s] * (d_weights[s] - mean) * scale;
            for j in 0..head_dim {
                dq[at(t).start + j] += d_score * k[of(s).start + j];
                dk[of(s).start + j] += d_score * q[at(t).start + j];
                dv[of(s).start + j] += weights[s] * dy[at(t).start + j];
            }
        }
    }
    [dq, dk, dv]
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// One sequence of an array (B, T, anything).
fn sequence<'a>(all: &'a [f64], number: usize, sizes: &Sizes) -> &'a [f64] {
    let length = all.len() / sizes.batch;
    &all[number * length..][..length]
}

/// The intermediate results of a block.
struct Pass {
    h: Vec<f64>,
    qkv: [Vec<f64>; 3],
    y: Vec<f64>,
    middle: Vec<f64>,
    h2: Vec<f64>,
    gate: Vec<f64>,
    up: Vec<f64>,
    gated: Vec<f64>,
    output: Vec<f64>,
}

fn pass(x: &[f64], weights: &[f64], sizes: &Sizes) -> Pass {
    let [norm, q, k, v, o, post, gate, up, down] = sizes.split(weights);
    let (d, a) = (sizes.width, sizes.attention());
    let add = |a: &[f64], b: Vec<f64>| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
    let h = rms_norm(x, norm);
    let mut qkv = [q, k, v].map(|w| linear(&h, w, d));
    rope(&mut qkv[0], sizes, sizes.heads, 1.0);
    rope(&mut qkv[1], sizes, sizes.kv_heads, 1.0);
    let y: Vec<f64> = (0..sizes.batch)
        .flat_map(|b| {
            let [q, k, v] = qkv.each_ref().map(|all| sequence(all, b, sizes));
            attention(q, k, v, sizes)
        })
        .collect();
    let middle = add(x, linear(&y, o, a));
    let h2 = rms_norm(&middle, post);
    let (gate, up) = (linear(&h2, gate, d), linear(&h2, up, d));
    let gated: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g * sigmoid(*g) * u).collect();
    let output = add(&middle, linear(&gated, down, sizes.ffn));
    Pass { h, qkv, y, middle, h2, gate, up, gated, output }
}

/// One block: x (B, T, D) to its output.
pub(crate) fn block(x: &[f64], weights: &[f64], sizes: &Sizes) -> Vec<f64> {
    pass(x, weights, sizes).output
}

/// The gradients of x and of the weights, given the gradient of the output.
pub(crate) fn block_gradients(x: &[f64], weights: &[f64], dy: &[f64], sizes: &Sizes) -> [Vec<f64>; 2] {
    let [norm, q, k, v, o, post, gate, up, down] = sizes.split(weights);
    let (d, a, f) = (sizes.width, sizes.attention(), sizes.ffn);
    let p = pass(x, weights, sizes);
    let mut gradients = sizes.parts().map(|(_, length)| vec![0.0; length]);
    let [d_norm, d_q, d_k, d_v, d_o, d_post, d_gate, d_up, d_down] = &mut gradients;

    let mut d_gated = vec![0.0; p.gated.len()];
    linear_backward(&p.gated, down, dy, f, &mut d_gated, d_down);
    let silu = |g: f64| g * sigmoid(g);
    let slope = |g: f64| sigmoid(g) * (1.0 + g * (1.0 - sigmoid(g)));
    let gates = d_gated.iter().zip(&p.gate).zip(&p.up);
    let (dg, du): (Vec<f64>, Vec<f64>) = gates.map(|((d, g), u)| (d * u * slope(*g), d * silu(*g))).unzip();
    let mut dh = vec![0.0; x.len()];
    linear_backward(&p.h2, gate, &dg, d, &mut dh, d_gate);
    linear_backward(&p.h2, up, &du, d, &mut dh, d_up);
    let mut dx = dy.to_vec();
    rms_norm_backward(&p.middle, post, &dh, &mut dx, d_post);

    let mut d_attention = vec![0.0; p.y.len()];
    linear_backward(&p.y, o, &dx, a, &mut d_attention, d_o);
    let mut d_qkv = [(); 3].map(|()| Vec::new());
    for b in 0..sizes.batch {
        let [q, k, v] = p.qkv.each_ref().map(|all| sequence(all, b, sizes));
        let dy = sequence(&d_attention, b, sizes);
        for (all, own) in d_qkv.iter_mut().zip(attention_backward(q, k, v, dy, sizes)) {
            all.extend(own);
        }
    }
    rope(&mut d_qkv[0], sizes, sizes.heads, -1.0);
    rope(&mut d_qkv[1], sizes, sizes.kv_heads, -1.0);
    dh.fill(0.0);
    for ((w, dw), dy) in [q, k, v].into_iter().zip([d_q, d_k, d_v]).zip(&d_qkv) {
        linear_backward(&p.h, w, dy, d, &mut dh, dw);
    }
    rms_norm_backward(x, norm, &dh, &mut dx, d_norm);
    [dx, gradients.concat()]
}

/// `ln p(target)` of each row of x (rows, D), 0 where the target is past the vocabulary.
pub(crate) fn log_probs(x: &[f64], norm: &[f64], projection: &[f64], targets: &[u32]) -> Vec<f64> {
    let logits = linear(&rms_norm(x, norm), projection, norm.len());
    let rows = logits.chunks(projection.len() / norm.len()).zip(targets);
    rows.map(|(row, &target)| {
        let largest = row.iter().copied().fold(f64::MIN, f64::max);
        let log_sum = largest + row.iter().map(|l| (l - largest).exp()).sum::<f64>().ln();
        row.get(target as usize).map_or(0.0, |logit| logit - log_sum)
    })
    .collect()
}

/// The gradients of x, the norm and the projection of `-scale · Σ ln p(target)`.
pub(crate) fn head_gradients(
    x: &[f64],
    norm: &[f64],
    projection: &[f64],
    targets: &[u32],
    scale: f64,
) -> [Vec<f64>; 3] {
    let (width, vocabulary) = (norm.len(), projection.len() / norm.len());
    let h = rms_norm(x, norm);
    let mut d_logits = linear(&h, projection, width);
    for (row, &target) in d_logits.chunks_mut(vocabulary).zip(targets) {
        if target as usize >= vocabulary {
            row.fill(0.0);
            continue;
        }
        let largest = row.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = row.iter().map(|l| (l - largest).exp()).sum();
        row.iter_mut().for_each(|l| *l = scale * (*l - largest).exp() / sum);
        row[target as usize] -= scale;
    }
    let (mut dh, mut dx) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let (mut d_norm, mut d_projection) = (vec![0.0; width], vec![0.0; projection.len()]);
    linear_backward(&h, projection, &d_logits, width, &mut dh, &mut d_projection);
    rms_norm_backward(x, norm, &dh, &mut dx, &mut d_norm);
    [dx, d_norm, d_projection]
}

/// Compares a gradient with central differences of `objective`, at up to 60 elements.
fn check_differences(point: &[f64], gradient: &[f64], objective: impl Fn(&[f64]) -> f64) {
    assert_eq!(point.len(), gradient.len());
    for i in (0..point.len()).step_by(point.len().div_ceil(60)) {
        let moved = |by: f64| {
            let mut point = point.to_vec();
            point[i] += by;
            objective(&point)
        };
        let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
        let error = (gradient[i] - expected).abs();
        assert!(error < 1e-8 * expected.abs().max(1.0), "gradient[{i}]: {} is not {expected}", gradient[i]);
    }
}

/// Compares the gradients of a block of these sizes with central differences.
fn check_block(sizes: &Sizes) {
    let x = wide(&numbers(1, sizes.rows() * sizes.width));
    let w = wide(&block_weights(2, sizes));
    let dy = wide(&numbers(3, x.len()));
    let sum = |y: &[f64], dy: &[f64]| y.iter().zip(dy).map(|(a, b)| a * b).sum::<f64>();
    let [dx, dw] = block_gradients(&x, &w, &dy, sizes);
    check_differences(&x, &dx, |x| sum(&block(x, &w, sizes), &dy));
    let mut at = 0;
    for part in sizes.split(&dw) {
        check_differences(&w[at..at + part.len()], part, |own| {
            let mut w = w.clone();
            w[at..at + own.len()].copy_from_slice(own);
            sum(&block(&x, &w, sizes), &dy)
        });
        at += part.len();
    }
}

#[test]
fn gradients_of_the_reference_are_central_differences() {
    let plain = Sizes { batch: 2, time: 5, width: 7, heads: 2, kv_heads: 2, head_dim: 4, ffn: 9 };
    for sizes in [plain, Sizes { heads: 6, ..plain }, Sizes { heads: 3, kv_heads: 1, ..plain }] {
        check_block(&sizes);
    }

    let x = wide(&numbers(1, plain.rows() * plain.width));
    let (norm, projection) = (wide(&numbers(4, 7)), wide(&numbers(5, 11 * 7)));
    let targets: Vec<u32> = (0..10).map(|i| if i == 4 { u32::MAX } else { i }).collect();
    let loss = |x: &[f64], n: &[f64], p: &[f64]| -0.25 * log_probs(x, n, p, &targets).iter().sum::<f64>();
    let [dx, dn, dp] = head_gradients(&x, &norm, &projection, &targets, 0.25);
    check_differences(&x, &dx, |x| loss(x, &norm, &projection));
    check_differences(&norm, &dn, |n| loss(&x, n, &projection));
    check_differences(&projection, &dp, |p| loss(&x, &norm, p));
}
