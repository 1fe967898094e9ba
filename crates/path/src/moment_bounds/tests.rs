//! Tests of the bounds of moments, on moments that AdamW and Muon really leave.

use dipaco_optim::{
    AdamWMoments, AdamWStep, MuonScratch, MuonStep, ProductShape, Products, adamw_step, clip_scale,
    muon_step, squared_norm,
};

use dipaco_model::Dtype;
use dipaco_ops::{bf16_bits, bf16_value};

use super::*;

/// Elements of a tensor: one for each course of gradients.
const ELEMENTS: usize = 64;

/// Numbers from 0 to 1 that look random.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The gradient of a step. Its elements have magnitudes from 1e-40 to `largest`, and come each step, rarely, once, or with
/// ever smaller or larger magnitudes.
fn gradient(step: u64, largest: f64, numbers: &mut Numbers) -> Vec<f32> {
    let element = |at: usize| {
        let size = 10f64.powf((at % 8) as f64 / 7.0 * (largest.log10() + 40.0) - 40.0);
        let sign = if numbers.next() < 0.5 { -1.0 } else { 1.0 };
        let value = match at / 8 {
            0 => size,
            1 => sign * size,
            2 => sign * size * numbers.next(),
            3 if step.is_multiple_of(97) => size,
            4 if step == 1 => size,
            5 => size * 0.9f64.powf(step as f64),
            6 => size * 1e-20 * 1.02f64.powf(step as f64).min(1e20),
            7 => sign * 10f64.powf(-45.0 * numbers.next()) * largest,
            _ => 0.0,
        };
        value as f32
    };
    (0..ELEMENTS).map(element).collect()
}

/// Moments that are f32 in states.
const EXACT: LeaseRounding = LeaseRounding { error: 0.0, steps: 1 };

/// Moments that are bf16 at the end of each lease of at least so many steps.
fn rounded(steps: u64) -> LeaseRounding {
    LeaseRounding { error: Dtype::Bf16.rounding(), steps }
}

/// Ends a lease.
fn round(moments: &mut [f32]) {
    moments.iter_mut().for_each(|moment| *moment = bf16_value(bf16_bits(*moment)));
}

/// The violation of a state of one tensor with AdamW's moments.
fn violation(adamw: &AdamWConfig, steps: u64, first: &[f32], second: &[f32]) -> Option<String> {
    violation_of(adamw, EXACT, steps, first, second)
}

fn violation_of(
    adamw: &AdamWConfig,
    rounding: LeaseRounding,
    steps: u64,
    first: &[f32],
    second: &[f32],
) -> Option<String> {
    let mut check = MomentCheck::new(MomentBounds::new(adamw, rounding, steps));
    let problem = check.add(MomentKind::First, "w", 0, first);
    let problem = problem.or_else(|| check.add(MomentKind::Second, "w", 0, second));
    problem.or_else(|| check.pairs("w", 0, first, second)).or_else(|| check.end())
}

/// Decays of both moments.
const BETAS: [(f64, f64); 8] = [
    (0.9, 0.95),
    (0.9, 0.999),
    (0.0, 0.95),
    (0.9, 0.0),
    (0.0, 0.0),
    (0.99, 0.9999),
    (0.95, 0.9),
    (0.9, 0.81),
];

#[test]
fn moments_of_trained_paths_are_within_their_bounds() {
    for (beta1, beta2) in BETAS {
        trains_within_bounds((beta1, beta2), EXACT);
        // The shortest leases in which the configuration lets moments be bf16, and longer ones.
        let left = 1.0 - 2.0 * Dtype::Bf16.rounding();
        let shortest = (1..).find(|&steps| f64::max(beta1, beta2).powf(steps as f64) <= left).unwrap();
        for steps in [shortest, shortest + 1, 3 * shortest] {
            trains_within_bounds((beta1, beta2), rounded(steps));
        }
    }
}

/// Trains with many courses of gradients, and compares the moments with their bounds at the end of each lease.
fn trains_within_bounds((beta1, beta2): (f64, f64), rounding: LeaseRounding) {
    for clip_norm in [1.0, 0.0] {
        // No configuration allows the last epsilon. With it the bounds allow only for what v has lost.
        for (largest, epsilon) in [(1e-30, 1e-8), (1e-3, 1e-15), (1e5, 1e-30)] {
            let adamw = AdamWConfig { beta1, beta2, clip_norm, epsilon, ..AdamWConfig::default() };
            let (mut weights, mut first, mut second) = ([0.0; ELEMENTS], [0.0; ELEMENTS], [0.0; ELEMENTS]);
            let mut numbers = Numbers(7);
            for number in 1..=3000 {
                let gradient = gradient(number, largest, &mut numbers);
                let gradient_scale = clip_scale(squared_norm(&gradient), clip_norm);
                let step = AdamWStep { number, learning_rate: 1e-3, gradient_scale, decay: true };
                let moments = AdamWMoments { first: &mut first, second: &mut second };
                adamw_step(&mut weights, &gradient, moments, &step, &adamw);
                if !number.is_multiple_of(rounding.steps) {
                    continue;
                }
                if rounding.error > 0.0 {
                    round(&mut first);
                    round(&mut second);
                }
                let problem = violation_of(&adamw, rounding, number, &first, &second);
                assert!(
                    problem.is_none(),
                    "step {number} of {adamw:?}, {rounding:?}, with {largest:e}: {problem:?}"
                );
            }
        }
    }
}

/// Products of small matrices.
struct Plain;

impl Products for Plain {
    fn by_transposed(&self, a: &[f32], b: &[f32], c: &mut [f32], shape: ProductShape) {
        let ProductShape { depth, columns, .. } = shape;
        for (at, c) in c.iter_mut().enumerate() {
            let (i, j) = (at / columns, at % columns);
            *c = (0..depth).map(|k| a[i * depth + k] * b[j * depth + k]).sum();
        }
    }

    fn transposed_by(&self, a: &[f32], b: &[f32], c: &mut [f32], shape: ProductShape) {
        let ProductShape { rows, depth, columns } = shape;
        for (at, c) in c.iter_mut().enumerate() {
            let (i, j) = (at / columns, at % columns);
            *c = (0..depth).map(|k| a[k * rows + i] * b[k * columns + j]).sum();
        }
    }
}

#[test]
fn the_momentum_of_trained_paths_is_within_its_bounds() {
    let cases = [(1.0, 1e5), (1.0, 1e-30), (0.1, 1e5), (0.0, 1e5)];
    let roundings = |case| [EXACT, rounded(1), rounded(30)].map(|rounding| (case, rounding));
    for ((clip_norm, largest), rounding) in cases.into_iter().flat_map(roundings) {
        let adamw = AdamWConfig { clip_norm, ..AdamWConfig::default() };
        let (mut weights, mut momentum) = ([0.1; ELEMENTS], [0.0; ELEMENTS]);
        let (mut scratch, mut numbers) = (MuonScratch::default(), Numbers(3));
        for number in 1..=2000 {
            let gradient = gradient(number, largest, &mut numbers);
            let gradient_scale = clip_scale(squared_norm(&gradient), clip_norm);
            let step =
                MuonStep { rows: 8, columns: 8, learning_rate: 1e-3, gradient_scale, weight_decay: 0.1 };
            muon_step(&mut weights, &gradient, &mut momentum, &step, &Plain, &mut scratch);
            if rounding.error > 0.0 && number.is_multiple_of(rounding.steps) {
                round(&mut momentum);
            }
            let mut check = MomentCheck::new(MomentBounds::new(&adamw, rounding, number));
            let problem = check.add(MomentKind::Momentum, "w", 0, &momentum).or_else(|| check.end());
            assert!(problem.is_none(), "step {number} with {clip_norm}, {largest:e}: {problem:?}");
        }
        let mut check = MomentCheck::new(MomentBounds::new(&adamw, rounding, 1));
        let most = if clip_norm > 0.0 { clip_norm as f32 } else { 1e6 };
        let wider = if rounding.error > 0.0 { 1.1 } else { 1.01 };
        assert!(check.add(MomentKind::Momentum, "w", 0, &[wider * most]).is_some());
    }
}

#[test]
fn poisoned_moments_are_refused() {
    let clipped = AdamWConfig::default();
    let free = AdamWConfig { clip_norm: 0.0, ..AdamWConfig::default() };
    for (adamw, first, second, why) in [
        (&clipped, 3e38, 0.0, "first moment 1"),
        (&clipped, 1.0, 0.0, "first moment 1"),
        (&clipped, 1e-6, 0.0, "with a second moment of 0"),
        (&clipped, 0.5, 0.01, "with a second moment of 1e-2"),
        (&clipped, 0.0, 1e38, "second moment 1"),
        (&clipped, 0.0, 1.1, "second moment 1"),
        (&clipped, 0.0, -1e-9, "is negative"),
        (&free, 3e38, 0.0, "first moment 1"),
        (&free, 1e3, 0.0, "with a second moment of 0"),
        (&free, 0.0, 1e38, "second moment 1"),
        (&free, f32::NAN, 0.0, "first moment 1"),
        (&free, 0.0, f32::NAN, "second moment 1"),
    ] {
        for rounding in [EXACT, rounded(1), rounded(30)] {
            let problem = violation_of(adamw, rounding, 1000, &[0.0, first], &[0.0, second]);
            let problem = problem.unwrap_or_default();
            assert!(problem.contains(why), "{first:e} and {second:e}, {rounding:?}: {problem:?}");
        }
    }
}

#[test]
fn moments_that_become_infinite_when_they_are_rounded_are_refused() {
    let adamw = AdamWConfig { clip_norm: 0.0, ..AdamWConfig::default() };
    let mut largest = [f32::MAX];
    round(&mut largest);
    for rounding in [rounded(1), rounded(30)] {
        for (first, second) in [(largest[0], 1.0), (0.0, largest[0]), (-largest[0], largest[0])] {
            assert!(violation_of(&adamw, rounding, 10, &[first], &[second]).is_some(), "{first} {second}");
        }
    }
}

#[test]
fn the_rounding_of_leases_widens_the_bounds_by_little() {
    let adamw = AdamWConfig::default();
    let kinds = |bounds: &MomentBounds| {
        let kinds = [bounds.first, bounds.second, bounds.momentum];
        let values = kinds.into_iter().flat_map(|kind| [f64::from(kind.element), kind.sum]);
        values.chain([bounds.ratio.into()]).collect::<Vec<_>>()
    };
    let exact = kinds(&MomentBounds::new(&adamw, EXACT, 1_000_000));
    for (steps, most) in [(1, 1.18), (30, 1.013)] {
        let wider = kinds(&MomentBounds::new(&adamw, rounded(steps), 1_000_000));
        for (wider, exact) in wider.into_iter().zip(&exact) {
            assert!(wider > *exact && wider < most * exact, "{wider} and {exact}, leases of {steps} steps");
        }
    }
    // The shortest leases that the configuration allows with this decay.
    let adamw = AdamWConfig { beta2: 0.999, ..adamw };
    let second = MomentBounds::new(&adamw, rounded(8), 1_000_000).second;
    assert!(second.sum > 1.5 && second.sum < 2.1, "{second:?}");
}

#[test]
fn the_moments_of_a_path_together_are_those_of_its_largest_gradients() {
    // Each element alone is possible, and all of them together are not.
    let adamw = AdamWConfig::default();
    for (first, second) in [(0.5, 0.5), (0.0, 0.5)] {
        let one = violation(&adamw, 1000, &[first], &[second]);
        assert_eq!(one, None);
        let problem = violation(&adamw, 1000, &[first; 8], &[second; 8]).unwrap_or_default();
        assert!(problem.contains("the sum of its"), "{problem}");
    }
}

#[test]
fn the_largest_possible_moments_move_no_weight_much_further_than_honest_ones() {
    // The default epsilon and the least.
    for epsilon in [1e-8, 1e-16] {
        let adamw = AdamWConfig { epsilon, ..AdamWConfig::default() };
        adamw.check().unwrap();
        for steps in [1, 2, 10, 1000, 1_000_000] {
            for rounding in [EXACT, rounded(1), rounded(30)] {
                moves_no_weight_far(&adamw, rounding, steps);
            }
        }
    }
}

/// Takes steps without gradients from the largest possible moments after so many steps.
fn moves_no_weight_far(adamw: &AdamWConfig, rounding: LeaseRounding, steps: u64) {
    let bounds = MomentBounds::new(adamw, rounding, steps);
    for second in [0.0f32, 1e-30, 1e-16, 1e-8, 1e-3] {
        let largest = bounds.largest_first(second);
        let (mut weight, mut first, mut second) = ([0.0], [largest], [second]);
        for number in steps + 1..steps + 50 {
            let before = weight[0];
            let step = AdamWStep { number, learning_rate: 1.0, gradient_scale: 1.0, decay: false };
            let moments = AdamWMoments { first: &mut first, second: &mut second };
            adamw_step(&mut weight, &[0.0], moments, &step, adamw);
            let moved = (weight[0] - before).abs();
            assert!(moved < 2.5, "{moved} learning rates at step {number} with {largest:e}, {adamw:?}");
        }
    }
}

#[test]
fn sums_of_powers_are_those_of_the_definition() {
    for base in [0.0, 0.5, 0.9999, 1.0, 1.0 + 1e-12, 1.001, 2.0] {
        let sum: f64 = (0..500).map(|power| f64::powi(base, power)).sum();
        assert!((powers(base, 500.0) / sum - 1.0).abs() < 1e-6, "{base}: {} {sum}", powers(base, 500.0));
    }
    assert!(powers(2.0, 1e9).is_infinite() && powers(f64::INFINITY, 3.0).is_infinite());
}
