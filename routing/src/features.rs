//! Features of documents, the input of a router.

use std::ops::ControlFlow;

use dipaco_shards::{TokenRows, TokenSet};

use crate::progress::{ProgressFn, RoutingProgress, report};
use crate::{BoxError, RoutingError};

/// Turns the beginning of a document into a point. Training changes neither token vectors nor the seed, so a document keeps
/// its features for the whole run (arXiv:2403.10616 §2.4).
pub trait FeatureExtractor {
    /// D, the number of components of a feature.
    fn dimension(&self) -> usize;

    /// Largest number of tokens of a row.
    fn context(&self) -> usize;

    /// The feature of each row's tokens, (B, D) row-major. `tokens` (B, T) is padded on the right with
    /// any token of the vocabulary; `lengths` (B) is the number of tokens of each row without padding.
    ///
    /// # Errors
    ///
    /// A shape or the vocabulary does not fit, or the device fails.
    fn features(&self, tokens: &TokenRows, lengths: &[usize]) -> Result<Vec<f32>, BoxError>;

    /// The device that computes the features, for records; `None` if they are the same bits on every device.
    fn device(&self) -> Option<String> {
        None
    }
}

/// A seed whose first blocks give features, on the device that computes them.
pub trait SeedFeatures: std::fmt::Debug + Send + Sync {
    /// D, the number of components of a feature.
    fn hidden_size(&self) -> usize;

    /// Features after the first `blocks` blocks, (B, D) row-major, as [`dipaco_model::Path::early_features`] has them.
    ///
    /// # Errors
    ///
    /// A shape or the vocabulary does not fit, or the device fails.
    fn early_features(
        &self,
        blocks: usize,
        tokens: &TokenRows,
        lengths: &[usize],
    ) -> Result<Vec<f32>, BoxError>;

    /// Name of the device for records.
    fn device(&self) -> String;
}

impl SeedFeatures for dipaco_model::Path {
    fn hidden_size(&self) -> usize {
        self.config().hidden_size
    }

    fn early_features(
        &self,
        blocks: usize,
        tokens: &TokenRows,
        lengths: &[usize],
    ) -> Result<Vec<f32>, BoxError> {
        Ok(self.early_features(blocks, tokens, lengths)?)
    }

    fn device(&self) -> String {
        // A program checks the choice when it starts. Where it is wrong, the fastest set computes.
        dipaco_ops::kernel_choice().map_or_else(|_| "cpu".to_owned(), |choice| format!("cpu-{}", choice.set))
    }
}

/// Computes features of the first tokens of many documents, batch by batch.
pub(crate) struct Featurizer<'a> {
    pub(crate) model: &'a dyn FeatureExtractor,
    pub(crate) prefix_tokens: usize,
    pub(crate) batch_documents: usize,
}

impl Featurizer<'_> {
    /// Computes the features (B, D) of the `total` documents in `documents` and passes them to `visit` batch by batch, in
    /// order, with the documents' numbers. Only one batch is in memory.
    pub(crate) fn for_each(
        &self,
        file: &TokenSet,
        documents: impl Iterator<Item = u64>,
        total: u64,
        progress: &mut ProgressFn<'_>,
        mut visit: impl FnMut(&[u64], &[f32]) -> Result<(), RoutingError>,
    ) -> Result<(), RoutingError> {
        self.check()?;
        let mut documents = documents.peekable();
        let mut done = 0;
        report(progress, RoutingProgress::Documents { done, total })?;
        while documents.peek().is_some() {
            let batch: Vec<u64> = documents.by_ref().take(self.batch_documents).collect();
            let features = self.batch(file, &batch)?;
            visit(&batch, &features)?;
            done += batch.len() as u64;
            report(progress, RoutingProgress::Documents { done, total })?;
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

    /// Features (B, D) of some documents. Their tokens are checked against the vocabulary here, where they enter.
    pub(crate) fn batch(&self, file: &TokenSet, documents: &[u64]) -> Result<Vec<f32>, RoutingError> {
        let prefix = |&document: &u64| file.document(document).slice(0..self.prefix_tokens as u64);
        let prefixes: Vec<_> = documents.iter().map(prefix).collect();
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
        let tokens = file.rows(tokens, documents.len()).map_err(|source| RoutingError::Tokens {
            what: "could not read the documents to route".to_owned(),
            source,
        })?;
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

/// A progress callback that ignores all steps and never stops.
pub fn silent(_: RoutingProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
