//! AdamW against a copy. Both are bound by memory, so their bytes per second are comparable.
#![allow(missing_docs, reason = "a benchmark")]

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dipaco_optim::{AdamWConfig, AdamWMoments, AdamWStep, adamw_step};
use rayon::prelude::*;

/// Four arrays of 64 MiB, larger than the caches.
const PARAMETERS: usize = 1 << 24;

fn adamw(c: &mut Criterion) {
    let mut group = c.benchmark_group("optimizer");
    let [mut params, gradient, mut first, mut second] = [0.5f32, 0.1, 0.0, 0.0].map(|v| vec![v; PARAMETERS]);
    // A step reads four numbers of each parameter and writes three of them.
    group.throughput(Throughput::Bytes(7 * 4 * PARAMETERS as u64));
    group.bench_function("AdamW", |b| {
        let config = AdamWConfig::default();
        let step = AdamWStep { number: 10, learning_rate: 4e-4, gradient_scale: 1.0, decay: true };
        b.iter(|| {
            let moments = AdamWMoments { first: &mut first, second: &mut second };
            adamw_step(&mut params, &gradient, moments, &step, &config);
        });
    });
    group.throughput(Throughput::Bytes(2 * 4 * PARAMETERS as u64));
    group.bench_function("a copy", |b| {
        b.iter(|| {
            let chunks = params.par_chunks_mut(1 << 16).zip(gradient.par_chunks(1 << 16));
            chunks.for_each(|(to, from)| to.copy_from_slice(from));
        });
    });
    group.finish();
}

fn short() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! { name = optimizer; config = short(); targets = adamw }
criterion_main!(optimizer);
