//! The exponential function, written so that a loop over it becomes vector code.

/// `exp(x)` to 2 units in the last place for `-87 ≤ x ≤ 88`; below that 0 or a tiny number, above it a huge number.
/// Only additions, multiplications and integer operations: no call, no branch.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2^23 rounds to an integer, which then sits in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.3, 88.3);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // x - n ln 2 in two steps: the first constant has trailing zeros, so its product with n is exact.
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    // Polynomial of Cephes' expf on [-ln 2 / 2, ln 2 / 2].
    let mut p = 1.987_569_2e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let p = p * (r * r) + r + 1.0;
    let power = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    p * f32::from_bits((power.wrapping_add(127) << 23) as u32)
}

/// The logistic function `1 / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The sum of `exp(x - shift)`, in 16 running sums that are added in a fixed order.
#[inline(always)]
pub(crate) fn sum_exp(values: &[f32], shift: f32) -> f32 {
    let mut lanes = [0f32; 16];
    let mut chunks = values.chunks_exact(16);
    for chunk in &mut chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += exp(value - shift);
        }
    }
    let rest: f32 = chunks.remainder().iter().map(|&value| exp(value - shift)).sum();
    lanes.iter().sum::<f32>() + rest
}

/// The largest value; `f32::MIN` of none.
#[inline(always)]
pub(crate) fn maximum(values: &[f32]) -> f32 {
    let mut lanes = [f32::MIN; 16];
    let mut chunks = values.chunks_exact(16);
    for chunk in &mut chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    chunks.remainder().iter().chain(&lanes).fold(f32::MIN, |a, &b| a.max(b))
}

/// The sum of products, in 16 running sums that are added in a fixed order.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let (mut left, mut right) = (a.chunks_exact(16), b.chunks_exact(16));
    for (x, y) in (&mut left).zip(&mut right) {
        for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
            *lane += x * y;
        }
    }
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(x, y)| x * y).sum();
    lanes.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_the_library() {
        for i in -87_000..=88_000 {
            let x = i as f32 / 1000.0;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2.4e-7, "exp({x}) is off by {error:e}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1e30) < 2e-38 && exp(1e30).is_finite());
    }
}
