//! AdamW against a copy: both are bound by memory, so bytes per second compare.
#![allow(missing_docs, reason = "a benchmark")]

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dipaco_optim::{AdamWConfig, adamw_step};
use rayon::prelude::*;

/// More than caches hold: four arrays of 64 MiB.
const PARAMETERS: usize = 1 << 24;

fn adamw(c: &mut Criterion) {
    let mut group = c.benchmark_group("optimizer");
    let [mut params, gradient, mut first, mut second] = [0.5f32, 0.1, 0.0, 0.0].map(|v| vec![v; PARAMETERS]);
    // A step reads four numbers of each parameter and writes three of them.
    group.throughput(Throughput::Bytes(7 * 4 * PARAMETERS as u64));
    group.bench_function("AdamW", |b| {
        let config = AdamWConfig::default();
        b.iter(|| {
            adamw_step(&mut params, &gradient, &mut first, &mut second, 10, 4e-4, 1.0, true, &config);
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
