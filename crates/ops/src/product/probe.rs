//! Measures how long a product of bf16 pairs takes on this processor.
//!
//! Processors with the same instructions differ: on some, the bf16 instruction takes as long as one of f32, on others four
//! times as long. Under a hypervisor the processor's name does not tell.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(super) use neon::pair_cost;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::pair_cost;

use std::hint::black_box;
use std::time::Instant;

/// Samples, of which the fastest counts.
const SAMPLES: usize = 7;

/// The time of `pair` over that of `single`.
fn ratio<R>(mut single: impl FnMut() -> R, mut pair: impl FnMut() -> R) -> f64 {
    let (mut of_single, mut of_pair) = (f64::MAX, f64::MAX);
    // Both in turn, so that a change of the clock rate meets both.
    for _ in 0..SAMPLES {
        of_single = of_single.min(seconds(&mut single));
        of_pair = of_pair.min(seconds(&mut pair));
    }
    of_pair / of_single.max(f64::MIN_POSITIVE)
}

fn seconds<R>(f: impl FnOnce() -> R) -> f64 {
    let start = Instant::now();
    black_box(f());
    start.elapsed().as_secs_f64()
}
