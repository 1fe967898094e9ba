//! The interface between an evaluation and its models.

use dipaco_shards::TokenBatch;
use dipaco_topology::PathId;

use crate::BoxError;

/// A model that scores tokens. Several threads use it at the same time.
pub trait LanguageModel: Sync {
    /// Largest number of tokens of a row (T).
    fn context(&self) -> usize;

    /// Returns `ln p(target)` in nats of each position, (B, T) row-major; 0 where the target is [`dipaco_shards::IGNORE`].
    ///
    /// # Errors
    ///
    /// When the shape or the vocabulary does not fit, or the device fails.
    fn token_log_probs(&self, batch: &TokenBatch) -> Result<Vec<f32>, BoxError>;
}

impl LanguageModel for dipaco_model::Path {
    fn context(&self) -> usize {
        self.config().context
    }

    fn token_log_probs(&self, batch: &TokenBatch) -> Result<Vec<f32>, BoxError> {
        Ok(Self::token_log_probs(self, batch)?)
    }
}

/// A source of the paths of a routed model.
pub trait PathSource {
    /// A loaded path.
    type Model: LanguageModel;

    /// Largest number of tokens of a row (T), the same for all paths.
    fn context(&self) -> usize;

    /// Announces the paths that will be loaded, each once and in this order. Called once, before the first load. A source
    /// that shares modules between paths learns from it when it can drop a module.
    fn expect(&mut self, paths: &[PathId]);

    /// Loads a path.
    ///
    /// # Errors
    ///
    /// When the path can't be loaded.
    fn load(&mut self, path: PathId) -> Result<Self::Model, BoxError>;
}

impl<M: LanguageModel + ?Sized> LanguageModel for &M {
    fn context(&self) -> usize {
        (**self).context()
    }

    fn token_log_probs(&self, batch: &TokenBatch) -> Result<Vec<f32>, BoxError> {
        (**self).token_log_probs(batch)
    }
}
