//! Features of documents: what a router sees of them.

use std::ops::ControlFlow;

use dipaco_shards::TokenFile;

use crate::progress::{Progress, ProgressFn, report};
use crate::{RoutingError, Source};

/// The model that turns the beginning of a document into a point: always the seed, which no training changes, so that
/// a document keeps its features for the whole life of a run (arXiv:2403.10616 §2.4).
pub trait FeatureExtractor {
    /// D, the number of components of a feature.
    fn dimension(&self) -> usize;

    /// The most tokens of a row.
    fn context(&self) -> usize;

    /// The mean over a row's tokens of the last block's output, (B, D) row-major. `tokens` is (B, T) row-major, padded
    /// on the right with any token of the vocabulary; `lengths` (B) counts the tokens of each row that are no padding.
    ///
    /// # Errors
    ///
    /// A token outside of the vocabulary, a shape that does not fit, or a failing device.
    fn features(&self, tokens: &[u32], lengths: &[usize]) -> Result<Vec<f32>, Source>;
}

/// Computes features of the first tokens of many documents, batch by batch.
pub(crate) struct Featurizer<'a> {
    pub(crate) model: &'a dyn FeatureExtractor,
    pub(crate) prefix_tokens: usize,
    pub(crate) batch_documents: usize,
}

impl Featurizer<'_> {
    /// Computes the features (B, D) of `documents`, whose number is `total`, and hands them batch by batch to `visit`,
    /// together with the documents' numbers, in order. Only one batch is in memory.
    pub(crate) fn for_each(
        &self,
        file: &TokenFile,
        documents: impl Iterator<Item = u64>,
        total: u64,
        progress: &mut ProgressFn<'_>,
        mut visit: impl FnMut(&[u64], &[f32]) -> Result<(), RoutingError>,
    ) -> Result<(), RoutingError> {
        self.check()?;
        let mut documents = documents.peekable();
        let mut done = 0;
        report(progress, Progress::Documents { done, total })?;
        while documents.peek().is_some() {
            let batch: Vec<u64> = documents.by_ref().take(self.batch_documents).collect();
            let features = self.batch(file, &batch)?;
            visit(&batch, &features)?;
            done += batch.len() as u64;
            report(progress, Progress::Documents { done, total })?;
        }
        Ok(())
    }

    /// Checks that the model can read the prefix.
    pub(crate) fn check(&self) -> Result<(), RoutingError> {
        if self.prefix_tokens > self.model.context() {
            return Err(RoutingError::Config {
                key: "prefix_tokens",
                value: self.prefix_tokens.to_string(),
                problem: "is larger than model.context: make it smaller, or the context larger",
            });
        }
        Ok(())
    }

    /// The features (B, D) of some documents.
    pub(crate) fn batch(&self, file: &TokenFile, documents: &[u64]) -> Result<Vec<f32>, RoutingError> {
        let prefixes: Vec<_> = documents
            .iter()
            .map(|&document| file.document(document).slice(0..self.prefix_tokens as u64))
            .collect();
        let lengths: Vec<usize> = prefixes.iter().map(|prefix| prefix.len()).collect();
        if let Some(empty) = lengths.iter().position(|&length| length == 0) {
            return Err(RoutingError::EmptyDocument { document: documents[empty] });
        }
        let width = lengths.iter().copied().max().unwrap_or(0);
        let mut tokens = Vec::with_capacity(width * documents.len());
        for prefix in prefixes {
            let padding = width - prefix.len();
            tokens.extend(prefix.iter());
            tokens.extend(std::iter::repeat_n(file.end_of_text(), padding));
        }
        let features = self
            .model
            .features(&tokens, &lengths)
            .map_err(|source| RoutingError::Features { first_document: documents[0], source })?;
        let dimension = self.model.dimension();
        if features.len() != documents.len() * dimension || dimension == 0 {
            let expected = documents.len() * dimension;
            return Err(RoutingError::Shape {
                what: "features of a batch",
                expected,
                actual: features.len(),
            });
        }
        if let Some(place) = features.iter().position(|value| !value.is_finite()) {
            let index = documents[place / dimension];
            return Err(RoutingError::NotFinite {
                what: "the feature of document",
                index,
                component: place % dimension,
            });
        }
        Ok(features)
    }
}

/// A progress callback that says nothing and never stops.
pub fn silent(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
