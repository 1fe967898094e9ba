//! Measures how long a product of bf16 pairs takes on this processor.
//!
//! Processors with the same instructions differ: on some, the bf16 instruction takes as long as one of f32, on others four
//! times as long. Under a hypervisor the processor's name does not tell.

use std::arch::x86_64::*;
use std::hint::black_box;
use std::time::Instant;

/// Sums that do not wait for each other: more than the processor computes at the same time.
const SUMS: usize = 24;
/// Instructions per sum of a sample. A sample takes some ten microseconds, so most samples run without an interruption.
const ROUNDS: usize = 400;
/// Samples, of which the fastest counts.
const SAMPLES: usize = 7;

/// The time of a bf16 instruction over that of an f32 instruction, both with AVX-512.
///
/// # Safety
/// Needs AVX-512 F and BF16.
pub(super) unsafe fn pair_cost() -> f64 {
    let (mut single, mut pair) = (f64::MAX, f64::MAX);
    // Both in turn, so that a change of the clock rate meets both.
    for _ in 0..SAMPLES {
        // SAFETY: the processor has the instructions by this function's contract.
        single = single.min(seconds(|| unsafe { singles() }));
        // SAFETY: as above.
        pair = pair.min(seconds(|| unsafe { pairs() }));
    }
    pair / single.max(f64::MIN_POSITIVE)
}

fn seconds(f: impl FnOnce() -> f32) -> f64 {
    let start = Instant::now();
    black_box(f());
    start.elapsed().as_secs_f64()
}

/// Repeats an expression for each sum, with its index as a constant, so that the sums stay in registers.
macro_rules! each {
    ($sums:ident, $sum:ident => $next:expr) => {
        each!(@ $sums, $sum, $next, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23)
    };
    (@ $sums:ident, $sum:ident, $next:expr, $($i:literal)*) => {
        $(
            let $sum = $sums[$i];
            $sums[$i] = $next;
        )*
    };
}

/// Sums that the compiler takes for different numbers: it would compute equal ones once.
#[inline]
#[target_feature(enable = "avx512f")]
fn start() -> [__m512; SUMS] {
    black_box([_mm512_setzero_ps(); SUMS])
}

#[target_feature(enable = "avx512f")]
fn singles() -> f32 {
    let (a, b) = (black_box(_mm512_set1_ps(0.5)), black_box(_mm512_set1_ps(0.25)));
    let mut sums = start();
    for _ in 0..ROUNDS {
        each!(sums, sum => _mm512_fmadd_ps(a, b, sum));
    }
    total(sums)
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs() -> f32 {
    // SAFETY: both types are 512 bits.
    let of = |value| unsafe { std::mem::transmute::<__m512i, __m512bh>(black_box(value)) };
    let (a, b) = (of(_mm512_set1_epi32(0x3f00_3f00)), of(_mm512_set1_epi32(0x3e80_3e80)));
    let mut sums = start();
    for _ in 0..ROUNDS {
        each!(sums, sum => _mm512_dpbf16_ps(sum, a, b));
    }
    total(sums)
}

/// The sum of all, so that the compiler drops none.
#[inline]
#[target_feature(enable = "avx512f")]
fn total(sums: [__m512; SUMS]) -> f32 {
    let mut all = _mm512_setzero_ps();
    for sum in sums {
        all = _mm512_add_ps(all, sum);
    }
    _mm512_reduce_add_ps(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_gives_a_ratio_of_two_times_that_processors_have() {
        let there = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
        // SAFETY: the processor has the instructions.
        let cost = there.then(|| unsafe { pair_cost() });
        // No processor multiplies a pair in less than half the time of a single, or in more than ten times.
        assert!(cost.is_none_or(|cost| (0.5..10.0).contains(&cost)), "{cost:?}");
    }
}
