use dipaco_model::Dtype::{self, Bf16, F32};
use dipaco_model::ModelConfig;

use super::{Buffer, assert_close, config, random, run};
use crate::device::Grid;
use crate::host::Host;
use crate::kernels::attention_rows;

/// Attention in f64.
struct Reference {
    y: Vec<f64>,
    /// Binary logarithms of the sums of the softmax.
    log_sums: Vec<f64>,
    /// Gradient of qkv.
    dqkv: Vec<f64>,
}

fn reference(qkv: &[f64], dy: &[f64], time: usize, heads: [usize; 2], dim: usize) -> Reference {
    let [heads, kv_heads] = heads;
    let (width, all) = (heads * dim, (heads + 2 * kv_heads) * dim);
    let batch = qkv.len() / (all * time);
    let (mut y, mut log_sums, mut dqkv) =
        (vec![0.0; batch * time * width], vec![0.0; batch * heads * time], vec![0.0; qkv.len()]);
    let scale = 1.0 / (dim as f64).sqrt();
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        let group = h / (heads / kv_heads);
        let column = [h, heads + group, heads + kv_heads + group];
        let at = |part: usize, t: usize| (b * time + t) * all + column[part] * dim;
        let out = |t: usize| (b * time + t) * width + h * dim;
        for i in 0..time {
            let dot = |x: &[f64], xs: usize, y: &[f64], ys: usize| -> f64 {
                (0..dim).map(|e| x[xs + e] * y[ys + e]).sum()
            };
            let scores: Vec<f64> = (0..=i).map(|j| dot(qkv, at(0, i), qkv, at(1, j)) * scale).collect();
            let sum: f64 = scores.iter().map(|score| score.exp()).sum();
            log_sums[(b * heads + h) * time + i] = sum.log2();
            let p: Vec<f64> = scores.iter().map(|score| score.exp() / sum).collect();
            for (j, p) in p.iter().enumerate() {
                for e in 0..dim {
                    y[out(i) + e] += p * qkv[at(2, j) + e];
                }
            }
            let dp: Vec<f64> = (0..=i).map(|j| dot(dy, out(i), qkv, at(2, j))).collect();
            let pull: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
            for j in 0..=i {
                let ds = p[j] * (dp[j] - pull) * scale;
                for e in 0..dim {
                    dqkv[at(0, i) + e] += ds * qkv[at(1, j) + e];
                    dqkv[at(1, j) + e] += ds * qkv[at(0, i) + e];
                    dqkv[at(2, j) + e] += p[j] * dy[out(i) + e];
                }
            }
        }
    }
    Reference { y, log_sums, dqkv }
}

fn check(dtype: Dtype, batch: usize, time: usize, heads: usize, dim: usize, tolerance: f64) {
    check_grouped(dtype, batch, time, [heads, heads], dim, tolerance);
}

/// Checks these heads of queries, and of keys and values.
fn check_grouped(dtype: Dtype, batch: usize, time: usize, both: [usize; 2], dim: usize, tolerance: f64) {
    let [heads, kv_heads] = both;
    let config = ModelConfig { kv_heads: Some(kv_heads), ..config(dtype, 64, heads, dim) };
    let mut host = Host::new(&config, 0);
    let (width, all) = (heads * dim, (heads + 2 * kv_heads) * dim);
    let rows = batch * time;
    // Scores that differ by several units.
    let numbers: Vec<f32> = random(3, rows * all).iter().map(|x| 2.0 * x).collect();
    let mut qkv = Buffer::new(dtype, &numbers);
    let mut dy = Buffer::new(dtype, &random(4, rows * width));
    let expected = reference(&qkv.f64(), &dy.f64(), time, both, dim);
    let mut runs = Vec::new();
    for backwards in [false, true] {
        host.backwards = backwards;
        let mut y = Buffer::zeros(dtype, rows * width);
        let mut log_sums = Buffer::zeros(F32, rows * heads);
        let mut delta = Buffer::zeros(F32, rows * heads);
        let mut dqkv = Buffer::zeros(dtype, rows * all);
        let tile = attention_rows(&config);
        let time_argument = (time as i32).into();
        let grid = |rows: usize, heads| Grid { x: time.div_ceil(rows), y: batch * heads };
        let arguments = [y.argument(), log_sums.argument(), qkv.argument(), time_argument];
        run(&mut host, "attention_forward", grid(tile.forward, heads), 128, &arguments);
        let arguments = [delta.argument(), y.argument(), dy.argument(), (rows as i32).into(), time_argument];
        run(&mut host, "attention_delta", Grid::line((rows * heads).div_ceil(8)), 256, &arguments);
        let arguments = [
            dqkv.argument(),
            qkv.argument(),
            dy.argument(),
            log_sums.argument(),
            delta.argument(),
            time_argument,
        ];
        run(&mut host, "attention_query_gradient", grid(tile.backward, heads), 128, &arguments);
        run(&mut host, "attention_key_value_gradient", grid(tile.backward, kv_heads), 128, &arguments);
        assert_close("y", &y.values(), &expected.y, tolerance);
        assert_close("log_sums", &log_sums.values(), &expected.log_sums, 2e-6);
        assert_close("dqkv", &dqkv.values(), &expected.dqkv, tolerance);
        runs.push((y.values(), dqkv.values()));
    }
    assert_eq!(runs[0], runs[1], "the result depends on the order in which threads run");
}

#[test]
fn plain_attention_is_exact_in_f32_for_odd_sizes() {
    check(F32, 2, 45, 3, 18, 3e-6);
    check(F32, 1, 33, 1, 64, 3e-6);
    check(F32, 1, 9, 1, 256, 3e-6);
}

#[test]
fn plain_attention_takes_bf16_heads_that_tensor_cores_do_not() {
    check(Bf16, 2, 37, 2, 10, 1e-2);
}

#[test]
fn tensor_core_attention_matches_at_each_head_size() {
    check(Bf16, 2, 150, 2, 16, 1e-2);
    check(Bf16, 1, 129, 1, 48, 1e-2);
    check(Bf16, 2, 200, 1, 64, 1e-2);
    check(Bf16, 1, 100, 2, 96, 1e-2);
    check(Bf16, 1, 70, 1, 128, 1e-2);
}

#[test]
fn heads_of_queries_share_keys_and_values() {
    check_grouped(F32, 2, 45, [6, 2], 18, 3e-6);
    check_grouped(F32, 1, 33, [3, 1], 64, 3e-6);
    check_grouped(Bf16, 2, 37, [4, 2], 10, 1e-2);
    check_grouped(Bf16, 2, 150, [6, 2], 64, 1e-2);
    check_grouped(Bf16, 1, 100, [3, 1], 96, 1e-2);
}

#[test]
fn tensor_core_attention_takes_sequences_shorter_than_a_tile() {
    check(Bf16, 2, 1, 2, 32, 1e-2);
    check(Bf16, 1, 17, 1, 64, 1e-2);
}
