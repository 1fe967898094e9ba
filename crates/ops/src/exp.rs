//! The exponential function and reductions, in a form that compiles to vector code.

use crate::element::Element;
use crate::vector::Units;

/// `exp(x)` to 2 units in the last place for `-87 ≤ x ≤ 88`. Smaller x give 0 or a tiny number, larger x a huge number.
/// Only additions, multiplications and integer operations: no call, no branch.
#[inline(always)]
pub(crate) fn exp(units: Units, x: f32) -> f32 {
    // Adding 1.5 · 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.3, 88.3);
    let shifted = units.mul_add(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // x - n ln 2 in two steps: the first constant ends in zero bits, so its product with n is exact.
    let r = units.mul_add(n, 2.121_944_4e-4, units.mul_add(n, -0.693_359_4, x));
    // Polynomial of Cephes' expf on [-ln 2 / 2, ln 2 / 2].
    let mut p = 1.987_569_2e-4;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = units.mul_add(p, r, coefficient);
    }
    let p = units.mul_add(p, r * r, r + 1.0);
    let power = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    p * f32::from_bits((power.wrapping_add(127) << 23) as u32)
}

/// The logistic function `1 / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn sigmoid(units: Units, x: f32) -> f32 {
    1.0 / (1.0 + exp(units, -x))
}

/// Number of running sums of a reduction, which are added up in a fixed order at its end. They are four vectors of the
/// widest units, so that an addition does not wait for the previous one.
pub(crate) const LANES: usize = 64;

/// Running sums. They begin on a cache line: a vector across two lines would wait much longer for the one stored before it.
#[derive(Clone)]
#[repr(align(64))]
pub(crate) struct Lanes(pub(crate) [f32; LANES]);

/// The sum of `exp(x - shift)`.
#[inline(always)]
pub(crate) fn sum_exp(units: Units, values: &[f32], shift: f32) -> f32 {
    let mut lanes = Lanes([0f32; LANES]);
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.0.iter_mut().zip(chunk) {
            *lane += exp(units, value - shift);
        }
    }
    for (lane, &value) in lanes.0.iter_mut().zip(rest) {
        *lane += exp(units, value - shift);
    }
    total(&lanes)
}

/// The largest value, or `f32::MIN` when there is none.
#[inline(always)]
pub(crate) fn maximum(values: &[f32]) -> f32 {
    let mut lanes = Lanes([f32::MIN; LANES]);
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.0.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    for (lane, &value) in lanes.0.iter_mut().zip(rest) {
        *lane = if value > *lane { value } else { *lane };
    }
    // In halves: a comparison of one lane after the other would take longer than a row of a thousand values.
    let lanes: [f32; 32] = larger_half(&lanes.0);
    let lanes: [f32; 16] = larger_half(&lanes);
    let lanes: [f32; 8] = larger_half(&lanes);
    lanes.iter().fold(f32::MIN, |a, &b| if b > a { b } else { a })
}

/// The larger of each of the first N values and the one N after it.
#[inline(always)]
fn larger_half<const N: usize, const M: usize>(values: &[f32; M]) -> [f32; N] {
    const { assert!(M == 2 * N) }
    let mut half = [0f32; N];
    for i in 0..N {
        half[i] = if values[i + N] > values[i] { values[i + N] } else { values[i] };
    }
    half
}

/// `Σ a · b`.
#[inline(always)]
pub(crate) fn dot<E: Element>(units: Units, a: &[E], b: &[E]) -> f32 {
    let mut lanes = Lanes([0f32; LANES]);
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.0.iter_mut().zip(a).zip(b) {
            *lane = units.mul_add(a.to_f32(), b.to_f32(), *lane);
        }
    }
    for ((lane, a), b) in lanes.0.iter_mut().zip(a_rest).zip(b_rest) {
        *lane = units.mul_add(a.to_f32(), b.to_f32(), *lane);
    }
    total(&lanes)
}

/// The sum of the lanes. Each step adds the upper half to the lower half, in whole vectors.
#[inline(always)]
pub(crate) fn total(lanes: &Lanes) -> f32 {
    let Lanes(lanes) = &mut lanes.clone();
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_set::{available, with_set};
    use crate::vector::dispatch_with;

    #[test]
    fn exp_agrees_with_the_library() {
        dispatch_with(|units| {
            for i in -87_000..=88_000 {
                let x = i as f32 / 1000.0;
                let exact = f64::from(x).exp();
                let error = (f64::from(exp(units, x)) - exact).abs() / exact;
                assert!(error < 2.4e-7, "exp({x}) is off by {error:e}");
            }
            assert_eq!(exp(units, 0.0), 1.0);
            assert!(exp(units, -1e30) < 2e-38 && exp(units, 1e30).is_finite());
        });
    }

    #[test]
    fn reductions_of_any_length_in_every_set() {
        for length in [0, 1, 63, 64, 65, 200] {
            let values: Vec<f32> = (0..length).map(|i| ((i * 37 % 101) as f32 - 50.0) / 8.0).collect();
            let squares: f64 = values.iter().map(|&v| f64::from(v).powi(2)).sum();
            let exponentials: f64 = values.iter().map(|&v| f64::from(v - 7.0).exp()).sum();
            let largest = values.iter().fold(f32::MIN, |a, &b| a.max(b));
            for set in available() {
                with_set(Some(set), || {
                    dispatch_with(|units| {
                        let near = |found: f32, exact: f64| {
                            assert!((f64::from(found) - exact).abs() <= 1e-6 * exact, "{set}, {length}");
                        };
                        near(dot(units, &values, &values), squares);
                        near(sum_exp(units, &values, 7.0), exponentials);
                        assert_eq!(maximum(&values), largest, "{set}, {length}");
                    });
                });
            }
        }
    }
}
