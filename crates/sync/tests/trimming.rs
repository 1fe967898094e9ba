//! The trimmed mean against numbers from outside, and what it promises.
#![allow(clippy::unwrap_used)]

use dipaco_sync::{EmbeddingMean, Fold, FoldError, FoldRule, FoldTensor, Rescale, TrimmedMean};
use dipaco_topology::PathId;

/// Eight contributions to five values.
const CONTRIBUTIONS: [[f32; 5]; 8] = [
    [4.0, -1.0, -2.875, 2.25, 3.75],
    [-2.25, -1.375, -4.25, 4.625, 4.75],
    [2.0, 0.625, 0.625, 1.5, 2.375],
    [0.75, 2.875, -0.25, -1.375, -3.875],
    [3.125, -1.875, 1.625, 2.375, 2.0],
    [4.125, 2.0, 3.875, 2.5, 4.5],
    [-0.25, -4.75, 1.125, 2.375, -3.5],
    [1.75, 2.625, 1.25, -2.75, 1.375],
];

/// The trimmed mean of `contributions`, merged in slices of about `longest` values.
fn merged(
    tensors: &[FoldTensor],
    weights: &[f32],
    share: f64,
    rule: FoldRule,
    contributions: &[&[f32]],
    longest: usize,
) -> Vec<f32> {
    let norms = contributions.iter().map(|values| TrimmedMean::tensor_norms(tensors, values)).collect();
    let mut mean = TrimmedMean::new(tensors.to_vec(), weights.to_vec(), share, rule, norms);
    for slice in mean.slices(longest) {
        let slices: Vec<&[f32]> = contributions.iter().map(|values| &values[slice.values.clone()]).collect();
        mean.merge(&slice, &slices).unwrap();
    }
    mean.finish().unwrap()
}

/// The trimmed mean of contributions to one plain tensor, without rescaling.
fn plain(contributions: &[&[f32]], weights: &[f32], share: f64) -> Vec<f32> {
    let rule = FoldRule { rescale: Rescale::NONE, ..FoldRule::default() };
    merged(&[FoldTensor::plain(contributions[0].len())], weights, share, rule, contributions, 2)
}

fn near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} {expected:?}");
}

/// Numbers of `scipy.stats.trim_mean` of SciPy 1, and of NumPy for weights.
#[test]
fn trimming_agrees_with_scipy() {
    let all = CONTRIBUTIONS.each_ref().map(|values| values.as_slice());
    near(&plain(&all, &[0.125; 8], 0.25), &[1.90625, 0.0625, 0.6875, 2.125, 2.375]);
    near(&plain(&all, &[0.125; 8], 0.4), &[1.875, -0.1875, 0.875, 2.3125, 2.1875]);
    let third = 1.0 / 3.0;
    near(&plain(&all[..3], &[third; 3], 0.25), &[1.25, -0.583_333_3, -2.166_666_7, 2.791_666_7, 3.625]);
    near(&plain(&all[..3], &[third; 3], 1.0 / 3.0), &[2.0, -1.0, -2.875, 2.25, 3.75]);
    let weights: Vec<f32> = (1..=8u8).map(|weight| f32::from(weight) / 36.0).collect();
    near(&plain(&all, &weights, 0.25), &[1.931_25, 0.843_75, 0.852_272_7, 2.203_125, 1.875]);
}

#[test]
fn one_of_four_liars_moves_no_value_out_of_the_range_of_the_others() {
    let honest: [&[f32]; 3] = [&[1.0, -2.0], &[1.5, -1.0], &[0.5, -3.0]];
    for lie in [&[1e30f32, -1e30], &[-1e30, 1e30], &[1.0, 0.0]] {
        let found = plain(&[honest[0], lie, honest[1], honest[2]], &[0.25; 4], 0.25);
        assert!((0.5..=1.5).contains(&found[0]) && (-3.0..=-1.0).contains(&found[1]), "{found:?}");
    }
}

#[test]
fn two_contributions_make_their_mean_and_one_makes_itself() {
    near(&plain(&[&[2.0, 4.0], &[4.0, -4.0]], &[0.25, 0.75], 0.49), &[3.5, -2.0]);
    assert_eq!(plain(&[&[3.0, -0.7]], &[1.0], 0.25), [3.0, -0.7]);
}

/// The sum of the weights is the length of the result, as in the mean.
#[test]
fn smaller_weights_shorten_the_result_as_in_the_mean() {
    near(&plain(&[&[2.0], &[4.0]], &[0.5, 0.0], 0.25), &[1.0]);
}

/// The guard reduces contributions, and no row of an embedding is divided by less for it.
#[test]
fn a_reduced_contribution_is_reduced_in_every_row() {
    let tensors = [FoldTensor { values: 6, embedding_row: Some(2) }, FoldTensor::plain(1)];
    let contributions: [&[f32]; 2] =
        [&[4.0, 8.0, 0.0, 0.0, 4.0, 2.0, 4.0], &[16.0, 0.0, 8.0, 8.0, 0.0, 0.0, 16.0]];
    let run = |embedding_mean, reductions: &[f32]| {
        let rule = FoldRule { rescale: Rescale::NONE, embedding_mean };
        let norms = contributions.iter().map(|values| TrimmedMean::tensor_norms(&tensors, values)).collect();
        let mean = TrimmedMean::new(tensors.to_vec(), vec![0.25, 0.75], 0.25, rule, norms);
        let mut mean = mean.reduced(reductions);
        for slice in mean.slices(9) {
            let slices = contributions.map(|values| &values[slice.values.clone()]);
            mean.merge(&slice, &slices).unwrap();
        }
        mean.finish().unwrap()
    };
    // Nothing is trimmed of two, so these are the means of the first and a quarter of the second.
    near(&run(EmbeddingMean::Touched, &[1.0, 0.25]), &[4.0, 2.0, 2.0, 2.0, 4.0, 2.0, 4.0]);
    near(&run(EmbeddingMean::Paths, &[1.0, 0.25]), &[4.0, 2.0, 1.5, 1.5, 1.0, 0.5, 4.0]);
    for embedding_mean in [EmbeddingMean::Touched, EmbeddingMean::Paths] {
        let rule = FoldRule { rescale: Rescale::NONE, embedding_mean };
        let whole = merged(&tensors, &[0.25, 0.75], 0.25, rule, &contributions, 9);
        assert_eq!(run(embedding_mean, &[1.0, 1.0]), whole);
    }
}

#[test]
fn rescaling_and_rows_follow_the_rules_of_the_fold() {
    let tensors = [FoldTensor { values: 4, embedding_row: Some(2) }, FoldTensor::plain(2)];
    let contributions: [&[f32]; 4] = [
        &[8.0, 4.0, 0.0, 0.0, 1.0, 4.0],
        &[0.0, 0.0, 0.0, 0.0, 2.0, 3.0],
        &[0.0, 0.0, 0.0, 0.0, 3.0, 2.0],
        &[0.0, 8.0, 0.0, 0.0, 4.0, 1.0],
    ];
    let run = |rescale, embedding_mean, longest| {
        let rule = FoldRule { rescale, embedding_mean };
        merged(&tensors, &[0.25; 4], 0.25, rule, &contributions, longest)
    };
    // Zeros count: of 0, 0, 0, 8 only zeros are left.
    near(&run(Rescale::NONE, EmbeddingMean::Paths, 9), &[0.0, 2.0, 0.0, 0.0, 2.5, 2.5]);
    // Two paths touched the first row, and nobody the second one: nothing is trimmed.
    near(&run(Rescale::NONE, EmbeddingMean::Touched, 9), &[4.0, 6.0, 0.0, 0.0, 2.5, 2.5]);
    // The factor counts two paths for the first row, four for the other tensor.
    near(&run(Rescale::Paths(1.0), EmbeddingMean::Touched, 9), &[8.0, 12.0, 0.0, 0.0, 10.0, 10.0]);
    // A negative exponent makes an infinite factor of no path.
    near(&run(Rescale::Paths(-1.0), EmbeddingMean::Touched, 9), &[2.0, 3.0, 0.0, 0.0, 0.625, 0.625]);
    for (rescale, mean) in [
        (Rescale::SQRT_PATHS, EmbeddingMean::Touched),
        (Rescale::Rda, EmbeddingMean::Paths),
        (Rescale::Rda, EmbeddingMean::Touched),
    ] {
        let bits = |longest| run(rescale, mean, longest).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(1), bits(9), "{rescale:?}");
    }
}

/// For each exponent, and each set of contributions to the first row of an embedding. The others touch the second row.
#[test]
fn a_mean_that_trims_nothing_is_that_of_the_fold() {
    let tensors = [FoldTensor { values: 4, embedding_row: Some(2) }, FoldTensor::plain(1)];
    let rescales = [-1.0, -0.5, 0.0, 0.5, 1.0].map(Rescale::Paths);
    let means = [EmbeddingMean::Paths, EmbeddingMean::Touched];
    let rules = rescales
        .into_iter()
        .flat_map(|rescale| means.map(|embedding_mean| FoldRule { rescale, embedding_mean }));
    for rule in rules {
        for first in 0..=u8::MAX {
            let mut contributions = CONTRIBUTIONS;
            for (place, values) in contributions.iter_mut().enumerate() {
                let untouched = if (first >> place) & 1 == 1 { 2..4 } else { 0..2 };
                values[untouched].fill(0.0);
            }
            let weights = (0..8).map(|path| (PathId(path), 0.125)).collect();
            let mut fold = Fold::new(tensors.to_vec(), weights, rule);
            for (path, values) in (0..).map(PathId).zip(&contributions) {
                fold.announce(path).unwrap();
                fold.merge(path, values.to_vec()).unwrap();
            }
            let all = contributions.each_ref().map(|values| values.as_slice());
            near(&merged(&tensors, &[0.125; 8], 0.0, rule, &all, 9), &fold.finish().unwrap());
        }
    }
}

#[test]
fn the_radial_mean_has_the_trimmed_length() {
    let rule = FoldRule { rescale: Rescale::Rda, ..FoldRule::default() };
    let contributions: [&[f32]; 4] = [&[3.0, 4.0], &[6.0, 8.0], &[4.5, 6.0], &[-3e9, -4e9]];
    // All honest ones have one direction. Of the lengths 5, 7.5, 10 and 5e9 the inner two are left.
    let found = merged(&[FoldTensor::plain(2)], &[0.25; 4], 0.25, rule, &contributions, 2);
    near(&found, &[8.75 * 0.6, 8.75 * 0.8]);
}

/// One over its norm is no `f32`.
#[test]
fn the_radial_mean_takes_no_direction_of_a_tiny_vector() {
    let rule = FoldRule { rescale: Rescale::Rda, ..FoldRule::default() };
    let contributions: [&[f32]; 3] = [&[3.0, 4.0], &[3.0, 4.0], &[1e-45, 0.0]];
    // Nothing is trimmed of three.
    let found = merged(&[FoldTensor::plain(2)], &[1.0 / 3.0; 3], 0.25, rule, &contributions, 2);
    near(&found, &[2.0, 8.0 / 3.0]);
}

#[test]
fn missing_and_cut_slices_are_errors() {
    let new = || {
        let tensors = vec![FoldTensor::plain(2)];
        TrimmedMean::new(tensors, vec![0.5; 2], 0.25, FoldRule::default(), vec![vec![1.0]; 2])
    };
    let mut mean = new();
    let slice = &mean.slices(2)[0];
    let missing = mean.merge(slice, &[&[1.0, 2.0]]).unwrap_err();
    assert_eq!(missing, FoldError::Missing { path: PathId(1) });
    let cut = mean.merge(slice, &[&[1.0, 2.0], &[1.0]]).unwrap_err();
    assert_eq!(cut, FoldError::Length { path: PathId(1), expected: 2, found: 1 });
    assert_eq!(new().finish().unwrap_err(), FoldError::Slices { expected: 2, found: 0 });
}
