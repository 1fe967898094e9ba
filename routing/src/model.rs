//! The transformer as a source of features.

use dipaco_shards::TokenRows;

use crate::{FeatureExtractor, Source};

impl FeatureExtractor for dipaco_model::Path {
    fn dimension(&self) -> usize {
        self.config().hidden_size
    }

    fn context(&self) -> usize {
        self.config().context
    }

    fn features(&self, tokens: &TokenRows, lengths: &[usize]) -> Result<Vec<f32>, Source> {
        Ok(Self::features(self, tokens, lengths)?)
    }
}
