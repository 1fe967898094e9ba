//! The memory rate of an outer step, compared with a plain copy.

use std::time::Instant;

use dipaco_optim::{NesterovConfig, nesterov_step};
use dipaco_pipeline::median::Median;
use dipaco_telemetry::human;
use rayon::prelude::*;
use serde::Serialize;

use super::available_memory;
use crate::error::CliError;

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

/// Refuses modules that need more memory than there is.
pub(super) fn check_memory(bytes: usize, available: Option<u64>) -> Result<(), CliError> {
    // Each module has weights, an outer gradient and a momentum.
    let needs = 3 * MODULES as u64 * bytes as u64;
    let work = format!("outer steps of {MODULES} modules of {} need", human::bytes(bytes as u64));
    available_memory::check(&work, needs, available, "give a smaller --megabytes")
}

/// Measures steps of modules of the given size and copies, alternately. `None` when `stops` ends it early.
pub(super) fn measure(bytes: usize, rounds: usize, stops: impl Fn() -> bool) -> Option<OuterStepSpeed> {
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
        if stops() {
            return None;
        }
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
    Some(OuterStepSpeed {
        threads: rayon::current_num_threads(),
        step_gb_s: steps[1..].to_vec().median(),
        copy_gb_s: copies[1..].to_vec().median(),
        share: shares.clone().median(),
        shares,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_do_not_fit_into_memory_are_refused() {
        assert!(check_memory(1_000_000, None).is_ok() && check_memory(1_000_000, Some(12_000_000)).is_ok());
        let error = check_memory(1_000_000, Some(11_000_000)).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("need 12.0 MB"), "{error}");
    }

    #[test]
    fn a_measurement_stops_between_two_rounds() {
        assert!(measure(64, 2, || true).is_none());
        assert_eq!(measure(64, 2, || false).unwrap().shares.len(), 2);
    }
}
