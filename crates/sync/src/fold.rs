//! Merging the outer gradients of one fragment (arXiv:2403.10616 §2.7).

use std::collections::BTreeSet;

use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Rescale;

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
    /// Slices of the contributions are missing when the result is taken.
    #[error("the contributions have been merged up to value {found} of {expected}")]
    Slices {
        /// The fragment's length in values.
        expected: usize,
        /// Number of merged values.
        found: usize,
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

/// Denominator of the mean for the rows of a token embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EmbeddingMean {
    /// All paths, as for every other tensor. A row that one path of sixteen touches moves by a sixteenth.
    #[default]
    Paths,
    /// The paths that touched the row: those whose outer gradient has a value other than 0 in it. Such a row merges as
    /// if these were all paths through the module.
    Touched,
}

/// How contributions are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FoldRule {
    /// Scaling of the mean.
    pub rescale: Rescale,
    /// Denominator for the rows of a token embedding.
    pub embedding_mean: EmbeddingMean,
}

/// A tensor of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldTensor {
    /// Number of values.
    pub values: usize,
    /// Number of values of a row, for a token embedding; `None` for any other tensor.
    pub embedding_row: Option<usize>,
}

impl FoldTensor {
    /// A tensor other than a token embedding.
    #[must_use]
    pub fn plain(values: usize) -> Self {
        Self { values, embedding_row: None }
    }
}

/// The contributions that touched a row of an embedding.
#[derive(Clone, Copy, Debug, Default)]
struct Touched {
    paths: usize,
    /// Sum of their weights, which are not reduced.
    weight: f32,
}

/// The weighted mean of one fragment's outer gradients, folded as they arrive but always in path order.
///
/// Floating-point sums depend on their order, so an early contribution waits in the store for its turn. The result has
/// the same bits for every order of arrival. The memory is one fragment.
#[derive(Debug)]
pub struct Fold {
    weights: Vec<(PathId, f32)>,
    /// Factors of the contributions, in the order of the weights; empty if none is reduced.
    reductions: Vec<f32>,
    waiting: BTreeSet<PathId>,
    merged: usize,
    rule: FoldRule,
    tensors: Vec<FoldTensor>,
    /// Number of values of the fragment.
    values: usize,
    /// Empty before the first contribution.
    sum: Vec<f32>,
    /// Of every row of the embeddings, tensor by tensor; empty unless the rule asks for it.
    touched: Vec<Touched>,
    /// Sum of the norms of the summed vectors, and sum of the squares of these norms, for [`cosine`](Self::cosine).
    norms: f64,
    squares: f64,
    /// The weighted mean of the contributions' norms, for each tensor, for [`Rescale::Rda`].
    lengths: Vec<f64>,
}

impl Fold {
    /// A fold over the tensors of a fragment with the weights of [`merge_weights`].
    #[must_use]
    pub fn new(tensors: Vec<FoldTensor>, weights: Vec<(PathId, f32)>, rule: FoldRule) -> Self {
        let rows = |tensor: &FoldTensor| tensor.embedding_row.map_or(0, |row| tensor.values / row.max(1));
        let rows = match rule.embedding_mean {
            EmbeddingMean::Paths => 0,
            EmbeddingMean::Touched => tensors.iter().map(rows).sum(),
        };
        Self {
            weights,
            reductions: Vec::new(),
            waiting: BTreeSet::new(),
            merged: 0,
            rule,
            values: tensors.iter().map(|tensor| tensor.values).sum(),
            sum: Vec::new(),
            touched: vec![Touched::default(); rows],
            norms: 0.0,
            squares: 0.0,
            lengths: vec![0.0; tensors.len()],
            tensors,
        }
    }

    /// The same fold of contributions that are multiplied by these factors, in the order of the weights. The weights by which
    /// [`EmbeddingMean::Touched`] divides stay, so a row that only a reduced contribution touched is reduced, too.
    #[must_use]
    pub fn reduced(self, reductions: Vec<f32>) -> Self {
        Self { reductions, ..self }
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
    /// all others. The sum lies in the memory of the first contribution.
    ///
    /// # Errors
    /// When it is not this path's turn, or the number of values is wrong. The fold is unchanged then.
    pub fn merge(&mut self, path: PathId, mut outer_gradient: Vec<f32>) -> Result<(), FoldError> {
        if self.next() != Some(path) {
            return Err(FoldError::Unexpected { path });
        }
        if outer_gradient.len() != self.values {
            return Err(FoldError::Length { path, expected: self.values, found: outer_gradient.len() });
        }
        let (_, share) = self.weights[self.merged];
        let weight = share * self.reductions.get(self.merged).copied().unwrap_or(1.0);
        let first = self.merged == 0;
        // A single contribution is compared with no other, so only RDA asks for its norm.
        let measured = self.weights.len() > 1 || self.rule.rescale == Rescale::Rda;
        let (mut sums, mut values) = (self.sum.as_mut_slice(), outer_gradient.as_mut_slice());
        let mut touched = self.touched.iter_mut();
        let mut squares = 0.0;
        for (tensor, length) in self.tensors.iter().zip(&mut self.lengths) {
            let (gradient, others) = values.split_at_mut(tensor.values);
            values = others;
            let norm = if measured { norm(gradient) } else { 0.0 };
            let factor = match self.rule.rescale {
                // A gradient without length has no direction.
                Rescale::Rda if tensor.embedding_row.is_none() => {
                    scale_to(weight.into(), norm).unwrap_or(weight)
                }
                _ => weight,
            };
            squares += (norm * f64::from(factor)).powi(2);
            *length += f64::from(weight) * norm;
            if let Some(row) = tensor.embedding_row {
                for (touched, row) in touched.by_ref().zip(gradient.chunks(row.max(1))) {
                    if row.iter().any(|value| *value != 0.0) {
                        touched.paths += 1;
                        touched.weight += share;
                    }
                }
            }
            if first {
                scale(gradient, factor);
            } else {
                let (sum, others) = sums.split_at_mut(tensor.values);
                sums = others;
                sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += factor * *value);
            }
        }
        if first {
            self.sum = outer_gradient;
        }
        self.norms += squares.sqrt();
        self.squares += squares;
        self.waiting.remove(&path);
        self.merged += 1;
        Ok(())
    }

    /// Number of values in memory: none before the first contribution.
    #[must_use]
    pub fn values_held(&self) -> usize {
        self.sum.len()
    }

    /// Similarity of the merged contributions: the mean cosine over pairs, each pair weighted by the product of its
    /// norms as summed. 1 for equal directions, near 0 for unrelated
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
        let paths = self.weights.len();
        // Only a fold of no paths lacks values here.
        self.sum.resize(self.values, 0.0);
        let mut sums = self.sum.as_mut_slice();
        let mut touched = self.touched.iter();
        for (tensor, length) in self.tensors.iter().zip(&self.lengths) {
            let (sum, others) = sums.split_at_mut(tensor.values);
            sums = others;
            match (tensor.embedding_row, self.rule.embedding_mean) {
                (Some(row), EmbeddingMean::Touched) => {
                    for (touched, row) in touched.by_ref().zip(sum.chunks_mut(row.max(1))) {
                        if touched.weight > 0.0 {
                            scale(row, self.rule.rescale.factor(touched.paths) / touched.weight);
                        }
                    }
                }
                // Directions that cancel leave no direction.
                (None, _) if self.rule.rescale == Rescale::Rda => {
                    let factor = scale_to(*length, norm(sum)).unwrap_or(0.0);
                    scale(sum, factor);
                }
                _ => scale(sum, self.rule.rescale.factor(paths)),
            }
        }
        Ok(self.sum)
    }
}

/// The factor that gives a vector of this norm a length. `None` if it does not fit an `f32`: a tiny vector, whose smaller
/// values are 0, has no direction.
pub(crate) fn scale_to(length: f64, norm: f64) -> Option<f32> {
    Some((length / norm) as f32).filter(|factor| factor.is_finite())
}

pub(crate) fn scale(values: &mut [f32], factor: f32) {
    // A single contribution mostly has the factor 1, which changes no bit of a number and would cost a pass over all of them.
    if factor == 1.0 {
        return;
    }
    for value in values {
        *value *= factor;
    }
}

/// Euclidean norm, summed in f64. The order of the sum depends on the number of values alone.
pub(crate) fn norm(values: &[f32]) -> f64 {
    // A single sum waits for each addition before the next one.
    let mut lanes = [0.0f64; 16];
    let (parts, rest) = values.as_chunks::<16>();
    for part in parts {
        for (lane, value) in lanes.iter_mut().zip(part) {
            *lane += f64::from(*value).powi(2);
        }
    }
    let rest: f64 = rest.iter().map(|value| f64::from(*value).powi(2)).sum();
    (lanes.iter().sum::<f64>() + rest).sqrt()
}

#[cfg(test)]
mod tests;
