//! Merging the outer gradients of one fragment (arXiv:2403.10616 §2.7).

use std::collections::BTreeSet;

use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Weights of the paths through a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weighting {
    /// In proportion to the size of the path's shard, because one worker per shard over-samples small shards.
    #[default]
    ShardSize,
    /// Equal weights.
    Uniform,
    /// In proportion to the contribution's tokens times its tokens per inner step (arXiv:2604.21428 §3.2: quantity
    /// times quality), for paths that contribute different amounts.
    Tokens,
}

/// Compensation for the norm that a mean of different outer gradients loses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rescale {
    /// Multiply by the square root of the number of paths: the norm of a mean of uncorrelated gradients falls by this
    /// factor.
    #[default]
    SqrtPaths,
    /// No compensation.
    None,
    /// Average directions and norms separately (radial-directional averaging). The result has the direction of the
    /// mean direction and the mean norm. Its norm depends neither on the number of paths nor on their similarity.
    Rda,
}

impl Rescale {
    /// Factor on the weighted mean for a module with this many paths. The factor of RDA follows from the gradients.
    #[must_use]
    pub fn factor(self, paths: usize) -> f32 {
        match self {
            Self::SqrtPaths => (paths as f32).sqrt(),
            Self::None | Self::Rda => 1.0,
        }
    }
}

/// Errors of merging.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum FoldError {
    /// A contribution of another length.
    #[error("path {path} contributes {found} values to a module of {expected}")]
    Length {
        /// The path at fault.
        path: PathId,
        /// The module's length in values.
        expected: usize,
        /// The contribution's length in values.
        found: usize,
    },
    /// A path that does not go through the module, or is already merged.
    #[error("path {path} is not expected: it does not go through this module or has been merged already")]
    Unexpected {
        /// The path at fault.
        path: PathId,
    },
    /// A path is missing when the mean is taken.
    #[error("path {path} has not contributed yet")]
    Missing {
        /// The first path that is missing.
        path: PathId,
    },
    /// There is nothing to merge.
    #[error("a mean of no contributions was asked for")]
    NoContribution,
}

/// The weight of each path through a module, in path order; the weights sum to 1.
///
/// `sizes` are tokens of shards, or amounts ([`Contribution::amount`](crate::Contribution::amount)). Normalising
/// within the module keeps the outer steps of all modules on one scale, for any number of paths. Sizes that are all 0
/// give equal weights.
///
/// # Errors
/// When there are no paths.
pub fn merge_weights(weighting: Weighting, sizes: &[(PathId, u64)]) -> Result<Vec<(PathId, f32)>, FoldError> {
    let size = |tokens: u64| match weighting {
        Weighting::ShardSize | Weighting::Tokens => tokens,
        Weighting::Uniform => 1,
    };
    if sizes.is_empty() {
        return Err(FoldError::NoContribution);
    }
    // Wider than the sizes: workers state their tokens themselves, and a sum must not wrap.
    let total: u128 = sizes.iter().map(|&(_, tokens)| u128::from(size(tokens))).sum();
    if total == 0 {
        return merge_weights(Weighting::Uniform, sizes);
    }
    // The error of rounding a token count to f64 and a weight to f32 is far below the noise of the gradients.
    let share = |tokens: u64| (size(tokens) as f64 / total as f64) as f32;
    let mut weights: Vec<_> = sizes.iter().map(|&(path, tokens)| (path, share(tokens))).collect();
    weights.sort_by_key(|&(path, _)| path);
    Ok(weights)
}

/// The weighted mean of one module's outer gradients, folded as they arrive but always in path order.
///
/// Floating-point sums depend on their order, so an early contribution waits in the store for its turn. The result has
/// the same bits for every order of arrival. The memory is one module.
#[derive(Debug)]
pub struct Fold {
    weights: Vec<(PathId, f32)>,
    waiting: BTreeSet<PathId>,
    merged: usize,
    rescale: Rescale,
    sum: Vec<f32>,
    /// Sum of the norms of the summed vectors, and sum of the squares of these norms.
    norms: f64,
    squares: f64,
    /// The weighted mean of the contributions' norms.
    length: f64,
}

impl Fold {
    /// A fold over a module of `length` values with the weights of [`merge_weights`].
    #[must_use]
    pub fn new(length: usize, weights: Vec<(PathId, f32)>, rescale: Rescale) -> Self {
        Self {
            weights,
            waiting: BTreeSet::new(),
            merged: 0,
            rescale,
            sum: vec![0.0; length],
            norms: 0.0,
            squares: 0.0,
            length: 0.0,
        }
    }

    /// Announces that a path's contribution is in the store.
    ///
    /// # Errors
    /// When the path is not expected, or announced twice.
    pub fn announce(&mut self, path: PathId) -> Result<(), FoldError> {
        let ahead = self.weights[self.merged..].iter().any(|&(expected, _)| expected == path);
        if ahead && self.waiting.insert(path) { Ok(()) } else { Err(FoldError::Unexpected { path }) }
    }

    /// The path whose contribution is to be merged next, if it is in the store.
    #[must_use]
    pub fn next(&self) -> Option<PathId> {
        self.weights.get(self.merged).map(|&(path, _)| path).filter(|path| self.waiting.contains(path))
    }

    /// Merges the contribution of the path returned by [`next`](Self::next). Its values are finite: a decoder refuses
    /// all others.
    ///
    /// # Errors
    /// When it is not this path's turn, or the number of values is wrong. The fold is unchanged then.
    pub fn merge(&mut self, path: PathId, outer_gradient: &[f32]) -> Result<(), FoldError> {
        if self.next() != Some(path) {
            return Err(FoldError::Unexpected { path });
        }
        if outer_gradient.len() != self.sum.len() {
            return Err(FoldError::Length { path, expected: self.sum.len(), found: outer_gradient.len() });
        }
        let (_, weight) = self.weights[self.merged];
        let norm = norm(outer_gradient);
        let scale = match self.rescale {
            // A gradient without length has no direction.
            Rescale::Rda if norm > 0.0 => (f64::from(weight) / norm) as f32,
            _ => weight,
        };
        for (sum, value) in self.sum.iter_mut().zip(outer_gradient) {
            *sum += scale * value;
        }
        let summed = norm * f64::from(scale);
        self.norms += summed;
        self.squares += summed.powi(2);
        self.length += f64::from(weight) * norm;
        self.waiting.remove(&path);
        self.merged += 1;
        Ok(())
    }

    /// Similarity of the merged contributions: the mean cosine over pairs, each pair weighted by the product of its
    /// weighted norms (with [`Rescale::Rda`]: of its weights). 1 for equal directions, near 0 for unrelated
    /// directions; `None` for fewer than two contributions, or if one has all the weight.
    ///
    /// For summed vectors `u_i`, `|sum u_i|²` is the sum of all `u_i · u_j`, so the norms of the `u_i` suffice.
    #[must_use]
    pub fn cosine(&self) -> Option<f64> {
        let pairs = self.norms.powi(2) - self.squares;
        // With a single contribution only rounding errors are left: there is no pair.
        (self.merged > 1 && pairs > 1e-9 * self.squares)
            .then(|| ((norm(&self.sum).powi(2) - self.squares) / pairs).clamp(-1.0, 1.0))
    }

    /// The merged outer gradient, rescaled.
    ///
    /// # Errors
    /// When a path is missing.
    pub fn finish(mut self) -> Result<Vec<f32>, FoldError> {
        if let Some(&(path, _)) = self.weights.get(self.merged) {
            return Err(FoldError::Missing { path });
        }
        let factor = match self.rescale {
            Rescale::Rda => match norm(&self.sum) {
                // Directions that cancel leave no direction.
                0.0 => 0.0,
                norm => (self.length / norm) as f32,
            },
            rescale => rescale.factor(self.weights.len()),
        };
        for value in &mut self.sum {
            *value *= factor;
        }
        Ok(self.sum)
    }
}

/// Euclidean norm, summed in f64 in the order of the values.
fn norm(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

    /// arXiv:2403.10616 §2.7: 16 paths through a module of a 16 × 16 grid make a factor of 4, a path-specific one 1.
    #[test]
    fn rescaling_is_the_square_root_of_the_paths() {
        assert_eq!(Rescale::SqrtPaths.factor(16).to_bits(), 4f32.to_bits());
        assert_eq!(Rescale::SqrtPaths.factor(1).to_bits(), 1f32.to_bits());
        assert_eq!(Rescale::None.factor(16).to_bits(), 1f32.to_bits());
    }

    #[test]
    fn what_can_not_be_merged_is_refused_and_changes_nothing() {
        let weights = merge_weights(Weighting::Uniform, &shards(&[1, 1])).unwrap();
        let mut fold = Fold::new(2, weights, Rescale::None);
        assert_eq!(fold.announce(PathId(7)).unwrap_err(), FoldError::Unexpected { path: PathId(7) });
        fold.announce(PathId(0)).unwrap();
        assert_eq!(fold.announce(PathId(0)).unwrap_err(), FoldError::Unexpected { path: PathId(0) });
        assert!(matches!(fold.merge(PathId(0), &[1.0]).unwrap_err(), FoldError::Length { found: 1, .. }));
        fold.merge(PathId(0), &[2.0, 4.0]).unwrap();
        assert_eq!(fold.next(), None);
        fold.announce(PathId(1)).unwrap();
        fold.merge(PathId(1), &[4.0, 0.0]).unwrap();
        let mean = fold.finish().unwrap();
        assert_eq!(mean, [3.0, 2.0]);
    }

    #[test]
    fn the_cosine_says_how_alike_contributions_are() {
        let cosine = |gradients: &[[f32; 2]]| {
            let sizes = vec![1; gradients.len()];
            let mut fold =
                Fold::new(2, merge_weights(Weighting::Uniform, &shards(&sizes)).unwrap(), Rescale::None);
            for (path, gradient) in (0..).map(PathId).zip(gradients) {
                fold.announce(path).unwrap();
                fold.merge(path, gradient).unwrap();
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
            let mut fold = Fold::new(2, weights, Rescale::Rda);
            for (path, gradient) in (0..).map(PathId).zip(gradients) {
                fold.announce(path).unwrap();
                fold.merge(path, gradient).unwrap();
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

    #[test]
    fn a_mean_without_all_paths_is_refused() {
        let fold = Fold::new(1, merge_weights(Weighting::Uniform, &shards(&[1])).unwrap(), Rescale::None);
        assert_eq!(fold.finish().unwrap_err(), FoldError::Missing { path: PathId(0) });
    }

    proptest! {
        #[test]
        fn the_order_of_arrival_does_not_change_a_bit(
            gradients in prop::collection::vec(prop::collection::vec(-1e3f32..1e3, 5), 2..6),
            keys in prop::collection::vec(any::<u32>(), 6),
            rescale in prop::sample::select(vec![Rescale::SqrtPaths, Rescale::None, Rescale::Rda]),
        ) {
            let sizes: Vec<u64> = (1..=gradients.len() as u64).collect();
            let weights = merge_weights(Weighting::ShardSize, &shards(&sizes)).unwrap();
            let run = |order: &[usize]| {
                let mut fold = Fold::new(5, weights.clone(), rescale);
                for &i in order {
                    fold.announce(PathId(u32::try_from(i).unwrap())).unwrap();
                    while let Some(path) = fold.next() {
                        fold.merge(path, &gradients[path.index()]).unwrap();
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
}
