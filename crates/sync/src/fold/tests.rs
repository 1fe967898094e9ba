use proptest::prelude::*;

use super::*;

/// A fold over one tensor.
fn of_length(length: usize, weights: Vec<(PathId, f32)>, rescale: Rescale) -> Fold {
    Fold::new(vec![FoldTensor::plain(length)], weights, FoldRule { rescale, ..FoldRule::default() })
}

/// Merges gradients under a rule, with weights by the sizes of shards.
fn merged(tensors: &[FoldTensor], rule: FoldRule, sizes: &[u64], gradients: &[&[f32]]) -> Vec<f32> {
    let weights = merge_weights(Weighting::ShardSize, &shards(sizes)).unwrap();
    let mut fold = Fold::new(tensors.to_vec(), weights, rule);
    for (path, gradient) in (0..).map(PathId).zip(gradients) {
        fold.announce(path).unwrap();
        fold.merge(path, gradient.to_vec()).unwrap();
    }
    fold.finish().unwrap()
}

fn shards(sizes: &[u64]) -> Vec<(PathId, u64)> {
    (0..).map(PathId).zip(sizes.iter().copied()).collect()
}

#[test]
fn weights_follow_the_shards_and_sum_to_one() {
    let weights = merge_weights(Weighting::ShardSize, &shards(&[100, 300])).unwrap();
    assert_eq!(weights, [(PathId(0), 0.25), (PathId(1), 0.75)]);
    let weights = merge_weights(Weighting::Uniform, &shards(&[100, 300])).unwrap();
    assert_eq!(weights, [(PathId(0), 0.5), (PathId(1), 0.5)]);
    let none = merge_weights(Weighting::Uniform, &[]).unwrap_err();
    assert_eq!(none, FoldError::NoContribution);
    // No size, and sizes whose sum is larger than any size can be.
    for size in [0, u64::MAX] {
        for weighting in [Weighting::ShardSize, Weighting::Tokens] {
            let weights = merge_weights(weighting, &shards(&[size, size])).unwrap();
            assert_eq!(weights, [(PathId(0), 0.5), (PathId(1), 0.5)]);
        }
    }
}

#[test]
fn what_can_not_be_merged_is_refused_and_changes_nothing() {
    let weights = merge_weights(Weighting::Uniform, &shards(&[1, 1])).unwrap();
    let mut fold = of_length(2, weights, Rescale::NONE);
    assert_eq!(fold.announce(PathId(7)).unwrap_err(), FoldError::Unexpected { path: PathId(7) });
    fold.announce(PathId(0)).unwrap();
    assert_eq!(fold.announce(PathId(0)).unwrap_err(), FoldError::Unexpected { path: PathId(0) });
    assert!(matches!(fold.merge(PathId(0), vec![1.0]).unwrap_err(), FoldError::Length { found: 1, .. }));
    fold.merge(PathId(0), vec![2.0, 4.0]).unwrap();
    assert_eq!(fold.next(), None);
    fold.announce(PathId(1)).unwrap();
    fold.merge(PathId(1), vec![4.0, 0.0]).unwrap();
    let mean = fold.finish().unwrap();
    assert_eq!(mean, [3.0, 2.0]);
}

#[test]
fn the_cosine_says_how_alike_contributions_are() {
    let cosine = |gradients: &[[f32; 2]]| {
        let sizes = vec![1; gradients.len()];
        let mut fold =
            of_length(2, merge_weights(Weighting::Uniform, &shards(&sizes)).unwrap(), Rescale::NONE);
        for (path, gradient) in (0..).map(PathId).zip(gradients) {
            fold.announce(path).unwrap();
            fold.merge(path, gradient.to_vec()).unwrap();
        }
        fold.cosine()
    };
    let near = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-6;
    assert!(near(cosine(&[[3.0, 0.0], [5.0, 0.0]]), 1.0));
    assert!(near(cosine(&[[3.0, 0.0], [0.0, 2.0]]), 0.0));
    assert!(near(cosine(&[[1.0, 0.0], [-1.0, 0.0]]), -1.0));
    assert!(near(cosine(&[[1.0, 0.0], [1.0, 1.0]]), 0.5f64.sqrt()));
    // The pairs have cosines 0, -1 and 0.
    assert!(near(cosine(&[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), -1.0 / 3.0));
    assert_eq!(cosine(&[[1.0, 0.0]]), None);
    assert_eq!(cosine(&[[1.0, 0.0], [0.0, 0.0]]), None);
}

#[test]
fn rda_keeps_the_mean_length_whatever_the_directions() {
    let merged = |sizes: &[u64], gradients: &[[f32; 2]]| {
        let weights = merge_weights(Weighting::ShardSize, &shards(sizes)).unwrap();
        let mut fold = of_length(2, weights, Rescale::Rda);
        for (path, gradient) in (0..).map(PathId).zip(gradients) {
            fold.announce(path).unwrap();
            fold.merge(path, gradient.to_vec()).unwrap();
        }
        fold.finish().unwrap()
    };
    // Lengths 3 and 4 at right angles: 3.5 along the diagonal.
    let half = 3.5 * 0.5f32.sqrt();
    let found = merged(&[1, 1], &[[3.0, 0.0], [0.0, 4.0]]);
    assert!(found.iter().all(|value| (value - half).abs() < 1e-6), "{found:?}");
    // Weights 1/4 and 3/4: 3.75 along (1, 3).
    let found = merged(&[1, 3], &[[3.0, 0.0], [0.0, 4.0]]);
    assert!((found[0] - 3.75 / 10f32.sqrt()).abs() < 1e-6 && (found[1] - 3.0 * found[0]).abs() < 1e-5);
    assert_eq!(merged(&[1], &[[3.0, 4.0]]), [3.0, 4.0]);
    assert_eq!(merged(&[1, 1], &[[2.0, 0.0], [-2.0, 0.0]]), [0.0, 0.0]);
    assert_eq!(merged(&[1, 1], &[[0.0, 0.0], [0.0, 0.0]]), [0.0, 0.0]);
}

/// One over its norm is no `f32`.
#[test]
fn rda_takes_no_direction_of_a_tiny_vector() {
    let rule = FoldRule { rescale: Rescale::Rda, ..FoldRule::default() };
    let found = merged(&[FoldTensor::plain(2)], rule, &[1; 3], &[&[3.0, 4.0], &[3.0, 4.0], &[1e-45, 0.0]]);
    // A length of 10 / 3 in the direction of the others.
    assert!((found[0] - 2.0).abs() < 1e-5 && (found[1] - 8.0 / 3.0).abs() < 1e-5, "{found:?}");
    // What is left of directions that cancel is tiny, too.
    let found = merged(&[FoldTensor::plain(2)], rule, &[1; 2], &[&[1e5, 1e-32], &[-1e5, 1e-32]]);
    assert_eq!(found, [0.0, 0.0]);
}

#[test]
fn rda_works_tensor_by_tensor_and_takes_the_mean_of_embeddings() {
    let rule = FoldRule { rescale: Rescale::Rda, ..FoldRule::default() };
    let tensors =
        [FoldTensor::plain(2), FoldTensor::plain(1), FoldTensor { values: 2, embedding_row: Some(1) }];
    let found =
        merged(&tensors, rule, &[1, 1], &[&[3.0, 0.0, 100.0, 6.0, 0.0], &[0.0, 3.0, 300.0, 0.0, 2.0]]);
    // A length of 3 along the diagonal, a length of 200, and the plain mean.
    let diagonal = 3.0 * 0.5f32.sqrt();
    let expected = [diagonal, diagonal, 200.0, 3.0, 1.0];
    assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-4), "{found:?}");
}

#[test]
fn a_row_is_the_mean_of_the_paths_that_touched_it() {
    let tensors = [FoldTensor { values: 8, embedding_row: Some(2) }, FoldTensor::plain(1)];
    // Weights 0.25, 0.25 and 0.5.
    let sizes = [1, 1, 2];
    let gradients: [&[f32]; 3] = [
        &[4.0, 8.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0],
        &[8.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 4.0],
        &[2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 4.0],
    ];
    let run =
        |embedding_mean, rescale| merged(&tensors, FoldRule { rescale, embedding_mean }, &sizes, &gradients);
    // The last row: (0.25 × 4 + 0.5 × 1) / 0.75 = 2. Nobody touched the third row.
    assert_eq!(run(EmbeddingMean::Touched, Rescale::NONE), [4.0, 4.0, 4.0, 0.0, 0.0, 0.0, 0.0, 2.0, 4.0]);
    assert_eq!(run(EmbeddingMean::Paths, Rescale::NONE), [4.0, 4.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.5, 4.0]);
    // The factor counts the paths that touched the row: 3, 1, none and 2; every path counts for the other tensor.
    assert_eq!(
        run(EmbeddingMean::Touched, Rescale::Paths(1.0)),
        [12.0, 12.0, 4.0, 0.0, 0.0, 0.0, 0.0, 4.0, 12.0]
    );
}

/// What counts is the contribution as if it had been as small as its reduction makes it.
#[test]
fn a_row_that_only_a_reduced_contribution_touched_is_reduced() {
    let tensors = [FoldTensor { values: 6, embedding_row: Some(2) }, FoldTensor::plain(1)];
    // Weights 0.25 and 0.75.
    let weights = merge_weights(Weighting::ShardSize, &shards(&[1, 3])).unwrap();
    let gradients: [&[f32]; 2] =
        [&[4.0, 8.0, 0.0, 0.0, 4.0, 2.0, 4.0], &[16.0, 0.0, 8.0, 8.0, 0.0, 0.0, 16.0]];
    let run = |embedding_mean, rescale, reductions: &[f32]| {
        let rule = FoldRule { rescale, embedding_mean };
        let mut fold = Fold::new(tensors.to_vec(), weights.clone(), rule).reduced(reductions.to_vec());
        for (path, gradient) in (0..).map(PathId).zip(gradients) {
            fold.announce(path).unwrap();
            fold.merge(path, gradient.to_vec()).unwrap();
        }
        fold.finish().unwrap()
    };
    let reduced: Vec<f32> = gradients[1].iter().map(|value| value / 4.0).collect();
    for (embedding_mean, expected) in [
        (EmbeddingMean::Touched, [4.0, 2.0, 2.0, 2.0, 4.0, 2.0, 4.0]),
        (EmbeddingMean::Paths, [4.0, 2.0, 1.5, 1.5, 1.0, 0.5, 4.0]),
    ] {
        assert_eq!(run(embedding_mean, Rescale::NONE, &[1.0, 0.25]), expected);
        let rule = FoldRule { rescale: Rescale::NONE, embedding_mean };
        assert_eq!(merged(&tensors, rule, &[1, 3], &[gradients[0], reduced.as_slice()]), expected);
        for rescale in [Rescale::NONE, Rescale::SQRT_PATHS, Rescale::Rda] {
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let whole = merged(&tensors, FoldRule { rescale, embedding_mean }, &[1, 3], &gradients);
            assert_eq!(bits(run(embedding_mean, rescale, &[1.0, 1.0])), bits(whole), "{rescale:?}");
        }
    }
}

/// The rule of the names before there was an exponent, written out.
#[test]
fn the_named_rescalings_keep_their_bits() {
    let gradients: [&[f32]; 3] = [&[0.1, -7.3, 1e-9], &[0.7, 0.2, 3.0], &[-0.3, 11.1, 2.5e-7]];
    let sizes = [3, 5, 9];
    let weights = merge_weights(Weighting::ShardSize, &shards(&sizes)).unwrap();
    for (rescale, factor) in [(Rescale::NONE, 1.0f32), (Rescale::SQRT_PATHS, 3f32.sqrt())] {
        let mut expected = [0f32; 3];
        for (&(_, weight), gradient) in weights.iter().zip(gradients) {
            expected.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += weight * value);
        }
        let expected = expected.map(|sum| (sum * factor).to_bits());
        let tensors = [FoldTensor { values: 2, embedding_row: Some(1) }, FoldTensor::plain(1)];
        let rule = FoldRule { rescale, ..FoldRule::default() };
        let found: Vec<u32> =
            merged(&tensors, rule, &sizes, &gradients).into_iter().map(f32::to_bits).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_mean_without_all_paths_is_refused() {
    let fold = of_length(1, merge_weights(Weighting::Uniform, &shards(&[1])).unwrap(), Rescale::NONE);
    assert_eq!(fold.finish().unwrap_err(), FoldError::Missing { path: PathId(0) });
}

proptest! {
    #[test]
    fn the_order_of_arrival_does_not_change_a_bit(
        gradients in prop::collection::vec(prop::collection::vec(-1e3f32..1e3, 5), 2..6),
        keys in prop::collection::vec(any::<u32>(), 6),
        rescale in prop::sample::select(vec![Rescale::SQRT_PATHS, Rescale::NONE, Rescale::Rda]),
        embedding_mean in prop::sample::select(vec![EmbeddingMean::Paths, EmbeddingMean::Touched]),
    ) {
        let tensors = vec![FoldTensor { values: 4, embedding_row: Some(2) }, FoldTensor::plain(1)];
        let sizes: Vec<u64> = (1..=gradients.len() as u64).collect();
        let weights = merge_weights(Weighting::ShardSize, &shards(&sizes)).unwrap();
        let run = |order: &[usize]| {
            let mut fold = Fold::new(tensors.clone(), weights.clone(), FoldRule { rescale, embedding_mean });
            for &i in order {
                fold.announce(PathId(u32::try_from(i).unwrap())).unwrap();
                while let Some(path) = fold.next() {
                    fold.merge(path, gradients[path.index()].clone()).unwrap();
                }
            }
            fold.finish().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        let sorted: Vec<usize> = (0..gradients.len()).collect();
        let mut shuffled = sorted.clone();
        shuffled.sort_by_key(|&i| keys[i]);
        prop_assert_eq!(run(&sorted), run(&shuffled));
    }
}
