//! The operations of a training step at the sizes s, m and l of `dipaco bench step`.
//!
//! For attention and head, an element is a floating-point operation: Gelem/s are GFLOP/s. For norms, the
//! throughput is the number of bytes read and written.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor, Var};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dipaco_ops::{
    self as ops, Backward, BlockShape, GradientSlot, HeadPlace, HeadSlots, Precision, Profile, RopeTable,
    Stack, Workspace,
};

struct Size {
    name: &'static str,
    width: usize,
    heads: usize,
    vocabulary: usize,
    time: usize,
    batch: usize,
}

const SIZES: [Size; 3] = [
    Size { name: "s", width: 256, heads: 4, vocabulary: 4096, time: 256, batch: 8 },
    Size { name: "m", width: 512, heads: 8, vocabulary: 8192, time: 512, batch: 4 },
    Size { name: "l", width: 896, heads: 16, vocabulary: 32000, time: 1024, batch: 1 },
];
const HEAD_DIM: usize = 64;
const PRECISIONS: [(&str, Precision); 2] = [("f32", Precision::F32), ("bf16", Precision::Bf16)];

impl Size {
    fn rows(&self) -> usize {
        self.batch * self.time
    }

    fn ffn(&self) -> usize {
        (8 * self.width).div_ceil(3 * 64) * 64
    }

    fn stack(&self, precision: Precision) -> Stack {
        let shape = BlockShape {
            width: self.width,
            heads: self.heads,
            kv_heads: self.heads,
            ffn: self.ffn(),
            epsilon: 1e-5,
            rope: RopeTable::new(self.time, HEAD_DIM, 1e4).unwrap(),
        };
        let profile = Profile::new(seconds);
        Stack { shape, precision, checkpointing: false, workspace: Workspace::default(), profile }
    }
}

fn seconds() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Numbers around 0 with a standard deviation of about `scale`.
fn numbers(count: usize, scale: f32) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 % 1009) as f32 / 504.0 - 1.0) * 1.7 * scale).collect()
}

fn flat(values: Vec<f32>) -> Tensor {
    let length = values.len();
    Tensor::from_vec(values, length, &Device::Cpu).unwrap()
}

/// Attention in the forward and backward pass of a block. The operations of the masked half are not counted.
fn attention(c: &mut Criterion) {
    let mut group = c.benchmark_group("attention, forward and backward");
    for size in &SIZES {
        let scores = size.batch * size.heads * size.time * size.time / 2;
        group.throughput(Throughput::Elements((7 * 2 * scores * HEAD_DIM) as u64));
        for (name, precision) in PRECISIONS {
            let stack = size.stack(precision);
            let parameters = stack.shape.parameters();
            let weights = flat(numbers(parameters, 1.0 / (size.width as f32).sqrt()));
            let x = numbers(size.rows() * size.width, 1.0);
            let shape = (size.batch, size.time, size.width);
            let x = Var::from_vec(x, shape, &Device::Cpu).unwrap();
            let slot = [GradientSlot::new(&stack.workspace, parameters)];
            group.bench_function(BenchmarkId::new(name, size.name), |b| {
                b.iter_custom(|passes| {
                    let _ = stack.profile.take();
                    for _ in 0..passes {
                        let y = ops::blocks(&x, &weights, 0, 1, &stack, Backward::All(&slot[..])).unwrap();
                        y.sum_all().unwrap().backward().unwrap();
                    }
                    Duration::from_secs_f64(stack.profile.take().attention)
                });
            });
        }
    }
    group.finish();
}

/// The final norm, the output projection and the cross entropy with their gradients.
fn head(c: &mut Criterion) {
    let mut group = c.benchmark_group("head, forward and backward");
    for size in &SIZES {
        let (rows, width, vocabulary) = (size.rows(), size.width, size.vocabulary);
        group.throughput(Throughput::Elements((3 * 2 * rows * width * vocabulary) as u64));
        let weights = flat(numbers(width + vocabulary * width, 1.0 / (width as f32).sqrt()));
        let x = numbers(rows * width, 1.0);
        let x = Var::from_vec(x, (size.batch, size.time, width), &Device::Cpu).unwrap();
        let targets: Vec<u32> = (0..rows).map(|i| (i * 31 % vocabulary) as u32).collect();
        let tokens = ops::TokenRows::new(vec![0; rows], size.batch, 1).unwrap();
        let targets = ops::TokenBatch::new(tokens, targets, vocabulary).unwrap();
        for (name, precision) in PRECISIONS {
            let stack = size.stack(precision);
            let slot = GradientSlot::new(&stack.workspace, width + vocabulary * width);
            let slots = HeadSlots { norm: slot.clone(), projection: slot };
            let place = HeadPlace { norm: 0, projection: width, vocabulary };
            group.bench_function(BenchmarkId::new(name, size.name), |b| {
                b.iter(|| {
                    let loss = ops::cross_entropy(
                        &x,
                        &weights,
                        &place,
                        &stack,
                        &targets,
                        rows,
                        Backward::All(&slots),
                    )
                    .unwrap();
                    loss.backward().unwrap()
                });
            });
        }
    }
    group.finish();
}

/// One thread, from memory that the last-level cache holds in part.
fn norms(c: &mut Criterion) {
    let mut group = c.benchmark_group("RMSNorm");
    for size in &SIZES {
        let (x, weight) = (numbers(size.rows() * size.width, 1.0), numbers(size.width, 1.0));
        let mut y = vec![0.0; x.len()];
        group.throughput(Throughput::Bytes(8 * x.len() as u64));
        group.bench_function(size.name, |b| {
            b.iter(|| ops::kernel::rms_norm(&x, &weight, &mut y, 1e-5));
        });
    }
    group.finish();
}

fn short() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! { name = step; config = short(); targets = attention, head, norms }
criterion_main!(step);
