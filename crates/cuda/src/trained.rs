//! The parameters of a path that train.

use std::ops::Range;

use dipaco_model::{ModelConfig, TensorSpec, path_specs};

use crate::layout::Layout;

/// The tensors of a path that train. The others are frozen: they have no gradient, no moments and no steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trained {
    /// The numbers that train, among the P of the path. Neighbouring tensors share a run.
    runs: Vec<Range<usize>>,
    pub(crate) embedding: bool,
    /// Block by block.
    pub(crate) blocks: Vec<bool>,
    pub(crate) final_norm: bool,
    /// The output projection; with tied embeddings the token embedding.
    pub(crate) head: bool,
}

impl Trained {
    /// All tensors.
    #[must_use]
    pub fn all(config: &ModelConfig) -> Self {
        Self::of(config, |_| true)
    }

    /// The tensors of [`path_specs`] for which `trains` is true. A block counts as its first tensor does.
    #[must_use]
    pub fn of(config: &ModelConfig, trains: impl Fn(&TensorSpec) -> bool) -> Self {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut first = 0;
        for spec in path_specs(config) {
            let end = first + spec.parameters();
            if trains(&spec) {
                match runs.last_mut() {
                    Some(run) if run.end == first => run.end = end,
                    _ => runs.push(first..end),
                }
            }
            first = end;
        }
        let layout = Layout::new(config);
        let there = |number: usize| runs.iter().any(|run| run.contains(&number));
        Self {
            embedding: there(0),
            blocks: (0..config.blocks).map(|i| there(layout.block_start(i))).collect(),
            final_norm: there(layout.final_norm),
            head: there(layout.head),
            runs,
        }
    }

    /// The numbers that train.
    pub(crate) fn parameters(&self) -> usize {
        self.runs.iter().map(ExactSizeIterator::len).sum()
    }

    /// The runs of numbers that train: each among the P of the path, and among those that train.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        self.runs.iter().scan(0, |first, run| {
            let own = *first..*first + run.len();
            *first = own.end;
            Some((run.clone(), own))
        })
    }

    /// The numbers of a range that train.
    pub(crate) fn within(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let common = move |run: Range<usize>| run.start.max(range.start)..run.end.min(range.end);
        self.runs.iter().cloned().map(common).filter(|run| !run.is_empty())
    }

    /// The blocks through which gradients go back.
    pub(crate) fn reached(&self) -> Range<usize> {
        let lowest = if self.embedding { Some(0) } else { self.blocks.iter().position(|&trains| trains) };
        lowest.unwrap_or(self.blocks.len())..self.blocks.len()
    }
}
