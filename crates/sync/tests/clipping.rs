//! Centred clipping against numbers from outside, and what it promises.

use dipaco_sync::Clipping;

fn factors(contributions: &[&[f32]], weights: &[f32], radius: f64) -> Vec<f32> {
    let mut clipping = Clipping::new(contributions.len());
    clipping.add(contributions);
    clipping.factors(weights, radius)
}

/// The clipped mean of `contributions`.
fn clipped(contributions: &[&[f32]], weights: &[f32], radius: f64) -> Vec<f64> {
    let mut mean = vec![0.0; contributions[0].len()];
    for ((contribution, weight), factor) in
        contributions.iter().zip(weights).zip(factors(contributions, weights, radius))
    {
        for (sum, value) in mean.iter_mut().zip(*contribution) {
            *sum += f64::from(*weight) * f64::from(factor) * f64::from(*value);
        }
    }
    mean
}

fn near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} {expected:?}");
}

/// Numbers of NumPy 2: the formula of arXiv:2012.10333, algorithm 2, written with vectors instead of inner products,
/// for a radius of the lower median distance times 1 and times 1.5.
#[test]
fn clipping_agrees_with_the_formula_of_the_paper() {
    let contributions: [&[f32]; 5] =
        [&[0.5, -1.25, 2.0], &[0.75, -1.0, 1.5], &[0.25, -0.5, 2.5], &[-6.0, 8.0, -20.0], &[1.0, -1.5, 0.0]];
    near(&clipped(&contributions, &[0.2; 5], 1.0), &[0.537_921_83, -0.943_481_39, 1.127_682_2]);
    let weights = [0.1, 0.2, 0.3, 0.25, 0.15];
    near(&clipped(&contributions, &weights, 1.5), &[0.350_423_71, -0.637_454_59, 0.955_300_31]);
}

#[test]
fn contributions_within_the_radius_make_the_mean() {
    let contributions: [&[f32]; 3] = [&[1.0, 0.0], &[0.0, 1.0], &[-1.0, 0.5]];
    for factor in factors(&contributions, &[0.5, 0.25, 0.25], 10.0) {
        assert!((factor - 1.0).abs() < 1e-6, "{factor}");
    }
    assert_eq!(factors(&[&[3.0, -4.0]], &[1.0], 1.0), [1.0]);
    assert_eq!(factors(&[&[0.0], &[0.0], &[5.0]], &[0.25, 0.25, 0.5], 1.0), [1.0; 3], "no scale");
    assert_eq!(factors(&[], &[], 1.0), [0f32; 0]);
}

/// However long the lie, the result stays within the radius that the others set.
#[test]
fn a_longer_lie_moves_the_result_no_further() {
    let honest: [&[f32]; 3] = [&[1.0, 0.1], &[0.9, -0.1], &[1.1, 0.0]];
    let with = |lie: f32| clipped(&[honest[0], honest[1], honest[2], &[lie, 0.0]], &[0.25; 4], 1.0);
    let (far, farther) = (with(-100.0), with(-1e6));
    near(&far, &farther);
    assert!(far[0] > 0.5, "{far:?}");
}

#[test]
fn of_two_contributions_the_longer_one_is_shortened() {
    let found = clipped(&[&[1.0, 0.0], &[0.0, 1e6]], &[0.5, 0.5], 1.0);
    assert!(found[0] > 0.3 && found[1] < 1.0, "{found:?}");
}

#[test]
fn slices_give_the_bits_of_the_whole() {
    let contributions: [&[f32]; 2] = [&[0.1, 0.7, -3.0, 9.0, 2.5], &[1.1, -0.3, 0.2, 1e-3, 7.0]];
    let mut whole = Clipping::new(2);
    whole.add(&contributions);
    let mut parts = Clipping::new(2);
    for range in [0..2, 2..3, 3..5] {
        parts.add(&[&contributions[0][range.clone()], &contributions[1][range]]);
    }
    assert_eq!(parts, whole);
}
