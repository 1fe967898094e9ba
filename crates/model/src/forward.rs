//! The forward pass over whole sequences: losses, scores and features.

use candle_core::Tensor;
use dipaco_ops as ops;

use crate::{ModelError, Path};

/// A batch's loss with the graph behind it.
#[derive(Clone, Debug)]
pub struct Loss {
    /// The mean of `-ln p(target)` in nats, a scalar, f32.
    pub tensor: Tensor,
    /// How many targets were counted; the mean of none is 0.
    pub counted: usize,
}

impl Loss {
    /// The loss in nats per counted target.
    ///
    /// # Errors
    /// When the device can't be read.
    pub fn value(&self) -> Result<f32, ModelError> {
        Ok(self.tensor.to_scalar::<f32>()?)
    }
}

impl Path {
    /// Mean cross entropy of the targets: `tokens` and `targets` are (B, T), row-major; a target of [`crate::IGNORE`]
    /// is not counted.
    ///
    /// # Errors
    /// When the lengths do not fit, T is over the context, or an id is not in the vocabulary.
    pub fn loss(&self, tokens: &[u32], targets: &[u32], batch: usize) -> Result<Loss, ModelError> {
        self.check_batch(tokens, batch)?;
        self.check_targets(tokens, targets)?;
        let x = self.normed(tokens, batch)?;
        let result = ops::cross_entropy(&x, self.head(), targets)?;
        Ok(Loss { tensor: result.loss, counted: result.counted })
    }

    /// `ln p(target)` in nats of each position (B, T), 0 where the target is [`crate::IGNORE`]; keeps no graph.
    ///
    /// # Errors
    /// As [`Path::loss`].
    pub fn token_log_probs(
        &self,
        tokens: &[u32],
        targets: &[u32],
        batch: usize,
    ) -> Result<Vec<f32>, ModelError> {
        self.check_batch(tokens, batch)?;
        self.check_targets(tokens, targets)?;
        let x = self.detached().normed(tokens, batch)?;
        Ok(ops::token_log_probs(&x, self.head(), targets)?)
    }

    /// The router's features (arXiv:2403.10616 §2.4): the mean of the last block's output over each row's first
    /// `lengths` tokens, before the final norm. `tokens` is (B, T), rows padded on the right; gives (B, D), row-major.
    ///
    /// # Errors
    /// When the lengths do not fit, a length is 0 or over T, T is over the context, or an id is not in the vocabulary.
    pub fn features(&self, tokens: &[u32], lengths: &[usize], batch: usize) -> Result<Vec<f32>, ModelError> {
        let time = self.check_batch(tokens, batch)?;
        let wrong = |problem: String| Err(ModelError::Batch { what: "lengths", problem });
        if lengths.len() != batch {
            return wrong(format!("{} lengths were given for {batch} rows", lengths.len()));
        }
        if let Some(length) = lengths.iter().find(|&&length| length == 0 || length > time) {
            return wrong(format!("{length} is not from 1 to {time}"));
        }
        let width = self.config.hidden_size;
        let x = self.detached().stream(tokens, batch)?;
        let mean = |x: &[f32]| {
            let mut features = vec![0.0; batch * width];
            let rows = x.chunks_exact(time * width).zip(features.chunks_exact_mut(width)).zip(lengths);
            for ((x, features), &length) in rows {
                // In f64, so that a mean does not depend on how long the row is padded or summed.
                let mut sums = vec![0f64; width];
                for position in x.chunks_exact(width).take(length) {
                    sums.iter_mut().zip(position).for_each(|(sum, &value)| *sum += f64::from(value));
                }
                features
                    .iter_mut()
                    .zip(sums)
                    .for_each(|(feature, sum)| *feature = (sum / length as f64) as f32);
            }
            features
        };
        Ok(ops::with_slice(&x, mean)?)
    }

    /// The last block's output (B, T, D), before the final norm.
    fn stream(&self, tokens: &[u32], batch: usize) -> Result<Tensor, ModelError> {
        let (heads, head_dim) = (self.config.heads, self.config.head_dim);
        let epsilon = self.config.rms_norm_eps as f32;
        let time = tokens.len() / batch;
        let mut x = ops::embedding(self.embedding(), tokens, batch)?;
        for block in (0..self.config.blocks).map(|i| self.block(i)) {
            let h = ops::rms_norm(&x, block.input_norm, epsilon)?;
            let project = |weight| -> Result<Tensor, ModelError> {
                Ok(ops::linear(&h, weight)?.reshape((batch, time, heads, head_dim))?)
            };
            let q = ops::rope(&project(block.q)?, &self.rope, 0)?;
            let k = ops::rope(&project(block.k)?, &self.rope, 0)?;
            let y = ops::attention(&q, &k, &project(block.v)?)?.reshape((batch, time, heads * head_dim))?;
            x = ops::add(&x, &ops::linear(&y, block.o)?)?;
            let h = ops::rms_norm(&x, block.post_norm, epsilon)?;
            let y = ops::swiglu(&ops::linear(&h, block.gate)?, &ops::linear(&h, block.up)?)?;
            x = ops::add(&x, &ops::linear(&y, block.down)?)?;
        }
        Ok(x)
    }

    /// The final norm's output (B, T, D).
    fn normed(&self, tokens: &[u32], batch: usize) -> Result<Tensor, ModelError> {
        let x = self.stream(tokens, batch)?;
        Ok(ops::rms_norm(&x, self.final_norm(), self.config.rms_norm_eps as f32)?)
    }

    /// Checks the tokens of a batch and gives T.
    fn check_batch(&self, tokens: &[u32], batch: usize) -> Result<usize, ModelError> {
        if batch == 0 || tokens.is_empty() || !tokens.len().is_multiple_of(batch) {
            let problem = format!("{} tokens are not {batch} rows of one length", tokens.len());
            return Err(ModelError::Batch { what: "tokens", problem });
        }
        let time = tokens.len() / batch;
        if time > self.config.context {
            return Err(ModelError::Context { positions: time, context: self.config.context });
        }
        self.check_tokens(tokens)?;
        Ok(time)
    }

    fn check_targets(&self, tokens: &[u32], targets: &[u32]) -> Result<(), ModelError> {
        if targets.len() != tokens.len() {
            let problem = format!("{} targets were given for {} tokens", targets.len(), tokens.len());
            return Err(ModelError::Batch { what: "targets", problem });
        }
        Ok(())
    }

    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<(), ModelError> {
        let vocabulary = self.config.vocab_size;
        match tokens.iter().find(|&&token| token as usize >= vocabulary) {
            Some(&token) => Err(ModelError::Token { token, vocabulary }),
            None => Ok(()),
        }
    }
}
