//! Merges that compare all contributions to an outer step with each other.

use std::path::Path;

use dipaco_config::OuterConfig;
use dipaco_protocol::MergeInput;
use dipaco_sync::{Clipping, Fold, FoldTensor, Merge, TrimmedMean};
use dipaco_topology::PathId;

use super::gathered::GatheredContributions;
use super::{MergedContributions, SynchronizerError};

/// The contributions to an outer step, before they are merged.
pub(super) struct RobustMerge {
    tensors: Vec<FoldTensor>,
    weights: Vec<f32>,
    /// Factors of the contributions besides their weights.
    reductions: Vec<f32>,
    outer: OuterConfig,
    contributions: GatheredContributions,
    /// Norms of the tensors of each contribution.
    norms: Vec<Vec<f64>>,
}

impl RobustMerge {
    /// A merge of these contributions. Contributions without room in memory lie on the disk of `folder`.
    pub(super) fn new(
        tensors: Vec<FoldTensor>,
        shares: &[MergeInput],
        outer: &OuterConfig,
        folder: &Path,
    ) -> Self {
        let values = tensors.iter().map(|tensor| tensor.values).sum();
        let contributions = GatheredContributions::new(folder, values);
        let (weights, reductions) = shares.iter().map(|share| (share.weight, share.reduction)).unzip();
        Self { tensors, weights, reductions, outer: outer.clone(), contributions, norms: Vec::new() }
    }

    /// Adds the next contribution, in the order of the shares.
    ///
    /// # Errors
    /// When it has another length than the fragment, or the disk fails.
    pub(super) fn push(&mut self, contribution: &[f32]) -> Result<(), SynchronizerError> {
        self.contributions.push(contribution)?;
        self.norms.push(TrimmedMean::tensor_norms(&self.tensors, contribution));
        Ok(())
    }

    /// Merges the contributions by the rule of the configuration.
    ///
    /// # Errors
    /// When a contribution is missing, or the disk fails.
    pub(super) fn finish(self) -> Result<MergedContributions, SynchronizerError> {
        match self.outer.merge {
            Merge::Trimmed => self.trimmed(),
            Merge::Clipped => {
                let radius = self.outer.clip_radius;
                self.clipped(radius)
            }
            Merge::Mean => self.clipped(f64::INFINITY),
        }
    }

    fn clipped(mut self, radius: f64) -> Result<MergedContributions, SynchronizerError> {
        let mut clipping = Clipping::new(self.weights.len());
        let values: usize = self.tensors.iter().map(|tensor| tensor.values).sum();
        let longest = self.contributions.slice_values();
        for begin in (0..values).step_by(longest) {
            let slices = self.contributions.slice(&(begin..(begin + longest).min(values)))?;
            clipping.add(&slices.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        let reduced = self.weights.iter().zip(&self.reductions).map(|(weight, reduction)| weight * reduction);
        let factors = clipping.factors(&reduced.collect::<Vec<f32>>(), radius);
        // A path may contribute more than once, so a contribution is identified by its place.
        let weights = (0..).map(PathId).zip(self.weights.iter().copied()).collect();
        // RDA gives every contribution its whole direction, however short it is. So the fold reduces them.
        let reductions = self.reductions.iter().zip(&factors).map(|(reduction, factor)| reduction * factor);
        let rule = self.outer.fold_rule();
        let mut fold = Fold::new(self.tensors, weights, rule).reduced(reductions.collect());
        for place in (0..).map(PathId).take(factors.len()) {
            fold.announce(place)?;
            fold.merge(place, self.contributions.contribution(place.index())?)?;
        }
        let cosine = fold.cosine();
        Ok(MergedContributions { values: fold.finish()?, cosine })
    }

    fn trimmed(mut self) -> Result<MergedContributions, SynchronizerError> {
        let OuterConfig { trim_share, .. } = self.outer;
        let rule = self.outer.fold_rule();
        let mean = TrimmedMean::new(self.tensors, self.weights, trim_share, rule, self.norms);
        let mut mean = mean.reduced(&self.reductions);
        for slice in mean.slices(self.contributions.slice_values()) {
            let contributions = self.contributions.slice(&slice.values)?;
            mean.merge(&slice, &contributions.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        }
        // The values of a trimmed mean come from different contributions: there is no sum of vectors to compare.
        Ok(MergedContributions { values: mean.finish()?, cosine: None })
    }
}

#[cfg(test)]
mod tests {
    use dipaco_sync::Rescale;

    use super::*;

    #[test]
    fn a_clipped_liar_does_not_turn_the_direction_of_rda() {
        let outer = OuterConfig { merge: Merge::Clipped, rescale: Rescale::Rda, ..OuterConfig::default() };
        let share = |path| MergeInput { path: PathId(path), weight: 0.25, reduction: 1.0, gradient: None };
        let shares: Vec<_> = (0..4).map(share).collect();
        let folder = std::env::temp_dir();
        let mut merge = RobustMerge::new(vec![FoldTensor::plain(2)], &shares, &outer, &folder);
        for contribution in [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, -40.0]] {
            merge.push(&contribution).unwrap();
        }
        let values = merge.finish().unwrap().values;
        assert!(values[0] > 0.1 && (values[1] / values[0]).abs() < 0.05, "{values:?}");
    }
}
