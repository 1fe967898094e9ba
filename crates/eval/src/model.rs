//! The models as an evaluation needs them.

use dipaco_topology::PathId;

use crate::Source;

/// A model that scores tokens. Threads share it.
pub trait LanguageModel: Sync {
    /// The most tokens of a row (T).
    fn context(&self) -> usize;

    /// `ln p(target)` in nats of each position, (B, T) row-major; 0 where the target is `u32::MAX`. `tokens` and `targets`
    /// are (B, T), row-major.
    ///
    /// # Errors
    ///
    /// A token outside of the vocabulary, a shape that does not fit, or a failing device.
    fn token_log_probs(&self, tokens: &[u32], targets: &[u32], batch: usize) -> Result<Vec<f32>, Source>;
}

impl LanguageModel for dipaco_model::Path {
    fn context(&self) -> usize {
        self.config().context
    }

    fn token_log_probs(&self, tokens: &[u32], targets: &[u32], batch: usize) -> Result<Vec<f32>, Source> {
        Ok(Self::token_log_probs(self, tokens, targets, batch)?)
    }
}

/// Where the paths of a routed model come from.
pub trait PathSource {
    /// A loaded path.
    type Model: LanguageModel;

    /// The most tokens of a row (T), the same for all paths.
    fn context(&self) -> usize;

    /// Called once, before the first path is loaded, with the paths that will be, in this order and each once: a source
    /// that keeps modules for several paths knows from it when a module has been used for the last time.
    fn expect(&mut self, paths: &[PathId]);

    /// Loads a path.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from being loaded.
    fn load(&mut self, path: PathId) -> Result<Self::Model, Source>;
}

impl<M: LanguageModel + ?Sized> LanguageModel for &M {
    fn context(&self) -> usize {
        (**self).context()
    }

    fn token_log_probs(&self, tokens: &[u32], targets: &[u32], batch: usize) -> Result<Vec<f32>, Source> {
        (**self).token_log_probs(tokens, targets, batch)
    }
}
