//! The model as an evaluation needs it.

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
