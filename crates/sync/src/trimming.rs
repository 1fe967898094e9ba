//! The trimmed mean of the contributions to an outer step.

use std::ops::Range;

use dipaco_topology::PathId;

use crate::fold::{norm, scale, scale_to};
use crate::{EmbeddingMean, FoldError, FoldRule, FoldTensor, Rescale};

/// The coordinate-wise trimmed mean (arXiv:1803.01498, definition 2): of each value of the fragment the largest and the
/// smallest of the contributions are left out, and the rest is averaged by their weights.
///
/// Of m contributions the trimmed share of m is left out at each end, rounded down. The remaining weights are scaled to
/// the sum of all weights. Of two contributions a share below one half leaves out none, so the result is their mean. A
/// row of a token embedding under [`EmbeddingMean::Touched`] is trimmed among the contributions that touched it.
///
/// Under [`Rescale::Rda`] the directions of a tensor are trimmed value by value, and so are their norms.
///
/// A caller merges the slices of [`slices`](Self::slices) in their order. The result does not depend on their length.
#[derive(Debug)]
pub struct TrimmedMean {
    tensors: Vec<FoldTensor>,
    /// Weights of the contributions, times their reductions.
    weights: Vec<f32>,
    /// The same without the reductions.
    whole_weights: Vec<f32>,
    share: f64,
    rule: FoldRule,
    /// Euclidean norm of each tensor, for each contribution.
    norms: Vec<Vec<f64>>,
    merged: Vec<f32>,
}

/// Values of a fragment that lie in one tensor; whole rows of an embedding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrimmedSlice {
    /// Place of the values in the fragment.
    pub values: Range<usize>,
    tensor: usize,
}

/// A value of a contribution.
#[derive(Clone, Copy)]
struct Weighted {
    value: f32,
    weight: f32,
    /// Its part of the denominator.
    divides: f32,
    place: usize,
}

impl TrimmedMean {
    /// A trimmed mean of contributions with these weights. `norms` has the norms of the tensors of each contribution, by
    /// [`tensor_norms`](Self::tensor_norms).
    #[must_use]
    pub fn new(
        tensors: Vec<FoldTensor>,
        weights: Vec<f32>,
        share: f64,
        rule: FoldRule,
        norms: Vec<Vec<f64>>,
    ) -> Self {
        let values = tensors.iter().map(|tensor| tensor.values).sum();
        let merged = Vec::with_capacity(values);
        Self { tensors, whole_weights: weights.clone(), weights, share, rule, norms, merged }
    }

    /// The same mean of contributions that are multiplied by these factors, as in [`Fold::reduced`](crate::Fold::reduced).
    #[must_use]
    pub fn reduced(mut self, reductions: &[f32]) -> Self {
        self.weights.iter_mut().zip(reductions).for_each(|(weight, reduction)| *weight *= reduction);
        self
    }

    /// The norms of the tensors of a contribution.
    #[must_use]
    pub fn tensor_norms(tensors: &[FoldTensor], contribution: &[f32]) -> Vec<f64> {
        let mut rest = contribution;
        let mut norms = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let (values, others) = rest.split_at(tensor.values.min(rest.len()));
            norms.push(norm(values));
            rest = others;
        }
        norms
    }

    /// The slices of the fragment, in order: about `longest` values each, at least one row of an embedding.
    #[must_use]
    pub fn slices(&self, longest: usize) -> Vec<TrimmedSlice> {
        let mut slices = Vec::new();
        let mut begin = 0;
        for (tensor, FoldTensor { values, embedding_row }) in self.tensors.iter().enumerate() {
            let row = embedding_row.unwrap_or(1).max(1);
            let length = (longest / row).max(1) * row;
            let end = begin + values;
            while begin < end {
                let next = (begin + length).min(end);
                slices.push(TrimmedSlice { values: begin..next, tensor });
                begin = next;
            }
        }
        slices
    }

    /// Merges the next slice. `contributions` has its values of each contribution, in path order.
    ///
    /// # Errors
    /// When a contribution has another number of values than the slice, or is missing.
    pub fn merge(&mut self, slice: &TrimmedSlice, contributions: &[&[f32]]) -> Result<(), FoldError> {
        let place = |place: usize| PathId(u32::try_from(place).unwrap_or(u32::MAX));
        if contributions.len() < self.weights.len() {
            return Err(FoldError::Missing { path: place(contributions.len()) });
        }
        let expected = slice.values.len();
        if let Some((path, values)) =
            contributions.iter().enumerate().find(|(_, values)| values.len() != expected)
        {
            return Err(FoldError::Length { path: place(path), expected, found: values.len() });
        }
        let tensor = self.tensors[slice.tensor];
        let row = match (tensor.embedding_row, self.rule.embedding_mean) {
            (Some(row), EmbeddingMean::Touched) => Some(row.max(1)),
            _ => None,
        };
        let rda = self.rule.rescale == Rescale::Rda && tensor.embedding_row.is_none();
        // A gradient without length has no direction.
        let unit = |place: usize| match rda {
            true => scale_to(1.0, self.norms[place][slice.tensor]).unwrap_or(1.0),
            false => 1.0,
        };
        let units: Vec<f32> = (0..self.weights.len()).map(unit).collect();
        let mut column = Vec::with_capacity(self.weights.len());
        for begin in (0..expected).step_by(row.unwrap_or(expected).max(1)) {
            let end = row.map_or(expected, |row| (begin + row).min(expected));
            let touches = |values: &[f32]| row.is_none() || values.iter().any(|value| *value != 0.0);
            let parts = contributions.iter().map(|values| &values[begin..end]).enumerate();
            let among: Vec<(usize, &[f32])> = parts.filter(|(_, values)| touches(values)).collect();
            if among.is_empty() {
                // The factor of no paths may be infinite, and infinity times 0 is no number.
                self.merged.resize(self.merged.len() + (end - begin), 0.0);
                continue;
            }
            let total: f32 = match row {
                Some(_) => 1.0,
                None => self.weights.iter().sum(),
            };
            let factor = total * self.rule.rescale.factor(among.len());
            for value in 0..end - begin {
                column.clear();
                column.extend(among.iter().map(|&(place, values)| Weighted {
                    value: values[value] * units[place],
                    weight: self.weights[place],
                    divides: row.map_or(self.weights[place], |_| self.whole_weights[place]),
                    place,
                }));
                self.merged.push(factor * trimmed(&mut column, self.share));
            }
        }
        if rda && self.merged.len() == self.tensor_end(slice.tensor) {
            self.set_length(slice.tensor);
        }
        Ok(())
    }

    /// End of a tensor in the fragment.
    fn tensor_end(&self, tensor: usize) -> usize {
        self.tensors[..=tensor].iter().map(|tensor| tensor.values).sum()
    }

    /// Gives the merged direction of a tensor the trimmed mean of the contributions' norms.
    fn set_length(&mut self, tensor: usize) {
        let total: f32 = self.weights.iter().sum();
        let weighted = |(place, weight): (usize, &f32)| Weighted {
            value: self.norms[place][tensor] as f32,
            weight: *weight,
            divides: *weight,
            place,
        };
        let mut lengths: Vec<_> = self.weights.iter().enumerate().map(weighted).collect();
        let length = f64::from(total * trimmed(&mut lengths, self.share));
        let begin = self.merged.len() - self.tensors[tensor].values;
        let direction = &mut self.merged[begin..];
        // Directions that cancel leave no direction.
        let factor = scale_to(length, norm(direction)).unwrap_or(0.0);
        scale(direction, factor);
    }

    /// The merged outer gradient, rescaled.
    ///
    /// # Errors
    /// When slices are missing.
    pub fn finish(self) -> Result<Vec<f32>, FoldError> {
        let values = self.tensors.iter().map(|tensor| tensor.values).sum();
        if self.merged.len() == values {
            Ok(self.merged)
        } else {
            Err(FoldError::Slices { expected: values, found: self.merged.len() })
        }
    }
}

/// The weighted mean of the values without the trimmed share at each end; 0 for no values. Sums in path order.
fn trimmed(column: &mut [Weighted], share: f64) -> f32 {
    // Far above the rounding error of a share such as 1/3, far below a contribution.
    let cut = ((column.len() as f64 * share + 1e-9) as usize).min(column.len().saturating_sub(1) / 2);
    if cut > 0 {
        column.sort_unstable_by(|a, b| a.value.total_cmp(&b.value).then(a.place.cmp(&b.place)));
    }
    let last = column.len() - cut;
    let kept = &mut column[cut..last];
    if cut > 0 {
        kept.sort_unstable_by_key(|kept| kept.place);
    }
    let (mut sum, mut weights) = (0.0, 0.0);
    for Weighted { value, weight, divides, .. } in kept {
        sum += *weight * *value;
        weights += *divides;
    }
    if weights > 0.0 { sum / weights } else { 0.0 }
}
