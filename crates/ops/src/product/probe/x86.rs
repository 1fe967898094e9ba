//! The instructions of AVX-512, alone.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::ratio;

/// Sums that do not wait for each other: more than the processor computes at the same time.
const SUMS: usize = 24;
/// Instructions per sum of a sample. A sample takes some ten microseconds, so most samples run without an interruption.
const ROUNDS: usize = 400;

/// The time of a bf16 instruction over that of an f32 instruction, both with AVX-512; `None` if the processor lacks one.
pub(in crate::product) fn pair_cost() -> Option<f64> {
    let there = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
    // SAFETY: the processor has the instructions.
    there.then(|| ratio(|| unsafe { singles() }, || unsafe { pairs() }))
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
        let cost = pair_cost();
        // No processor multiplies a pair in less than half the time of a single, or in more than ten times.
        assert!(cost.is_none_or(|cost| (0.5..10.0).contains(&cost)), "{cost:?}");
    }
}
