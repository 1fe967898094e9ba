//! The memory rate of an outer step, compared with a plain copy.

use std::time::Instant;

use dipaco_optim::{NesterovConfig, nesterov_step};
use rayon::prelude::*;
use serde::Serialize;

use super::median::Median;

/// Number of modules, which are stepped in turn. Together they are larger than any cache.
const MODULES: usize = 4;
/// Number of values that one task copies.
const COPIED: usize = 1 << 16;

/// Weights, outer gradient and momentum of a module.
struct BenchModule {
    weights: Vec<f32>,
    gradient: Vec<f32>,
    momentum: Vec<f32>,
}

/// The measurement.
#[derive(Debug, Serialize)]
pub(super) struct OuterStepSpeed {
    threads: usize,
    /// Bytes per second of an outer step: it reads weights, outer gradient and momentum, and writes weights and momentum.
    pub(super) step_gb_s: f64,
    /// Bytes per second of a copy: it reads one array and writes another.
    pub(super) copy_gb_s: f64,
    pub(super) share: f64,
    /// `share` of each round.
    shares: Vec<f64>,
}

/// Measures steps of modules of the given size and copies, alternately.
pub(super) fn measure(bytes: usize, rounds: usize) -> OuterStepSpeed {
    let values = bytes / 4;
    let mut modules: Vec<BenchModule> = (0..MODULES)
        .map(|_| BenchModule {
            weights: vec![0.5; values],
            gradient: vec![0.01; values],
            momentum: vec![0.25; values],
        })
        .collect();
    let config = NesterovConfig::default();
    let size = (MODULES * values * 4) as f64;
    let (mut steps, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..=rounds {
        let begun = Instant::now();
        for BenchModule { weights, gradient, momentum } in &mut modules {
            nesterov_step(weights, gradient, momentum, &config);
        }
        steps.push(5.0 * size / begun.elapsed().as_secs_f64() / 1e9);
        let begun = Instant::now();
        for BenchModule { weights, gradient, .. } in &mut modules {
            let parts = gradient.par_chunks_mut(COPIED).zip(weights.par_chunks(COPIED));
            parts.for_each(|(to, from)| to.copy_from_slice(from));
        }
        copies.push(2.0 * size / begun.elapsed().as_secs_f64() / 1e9);
    }
    // The first round allocates the memory.
    let shares: Vec<f64> = steps.iter().zip(&copies).skip(1).map(|(step, copy)| step / copy).collect();
    OuterStepSpeed {
        threads: rayon::current_num_threads(),
        step_gb_s: steps[1..].to_vec().median(),
        copy_gb_s: copies[1..].to_vec().median(),
        share: shares.clone().median(),
        shares,
    }
}
