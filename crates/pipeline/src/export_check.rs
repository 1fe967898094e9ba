//! Exported files, read again as any other pretrained model: do they give the logits of the weights that were exported?

use std::fmt;

use dipaco_config::RunConfig;
use dipaco_model::{Dtype, ModelConfig, ModelError, ModuleWeights, TokenRows, WeightFormat};

use crate::error::PipelineError;
use crate::export::Exported;
use crate::export_error::ExportError;
use crate::import::PretrainedModel;
use crate::weights::dense_path;

/// Most tokens of the text that both models read.
const TOKENS: usize = 64;
/// Steps over the vocabulary from token to token: a prime, so that the text has tokens of the whole vocabulary.
const STRIDE: usize = 7919;

/// Logits of exported files beside those of the weights that were exported, after each token of one text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitDifference {
    /// The largest difference of a logit.
    pub largest: f32,
    /// The largest logit, without its sign.
    pub scale: f32,
    /// Number of tokens after which both find the same token most likely.
    pub same: usize,
    /// Number of tokens of the text.
    pub tokens: usize,
}

impl LogitDifference {
    /// Largest difference by rounding alone, relative to the largest logit, between two programs that compute in f32.
    pub const ROUNDING: f32 = 1e-4;

    fn between(own: &[f32], read: &[f32], tokens: usize) -> Self {
        let vocabulary = (own.len() / tokens).max(1);
        let rows = own.chunks(vocabulary).zip(read.chunks(vocabulary));
        // A NaN is a difference, and `f32::max` would lose it.
        let larger = |most: f32, value: f32| if value.is_nan() || value > most { value } else { most };
        let differences = own.iter().zip(read).map(|(own, read)| (own - read).abs());
        Self {
            largest: differences.fold(0.0, larger),
            scale: own.iter().map(|logit| logit.abs()).fold(0.0, larger),
            same: rows.filter(|(own, read)| likeliest(own) == likeliest(read)).count(),
            tokens,
        }
    }

    /// True if both are the same model, up to the rounding of sums.
    #[must_use]
    pub fn is_rounding(&self) -> bool {
        self.largest <= Self::ROUNDING * self.scale.max(1.0)
    }
}

impl fmt::Display for LogitDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { largest, scale, same, tokens } = self;
        write!(
            f,
            "logits differ by at most {largest:.2e} (the largest is {scale:.1}), and {same} of {tokens} likeliest tokens are \
             the same"
        )
    }
}

fn likeliest(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
}

impl Exported {
    /// Reads a checkpoint's folder or a GGUF file as `seed --import` does, with the settings that stand in it, and compares
    /// its logits with those of the weights that were exported. `config` has its vocabulary, and `format` is that of the file.
    ///
    /// # Errors
    /// The files are no model that `seed --import` accepts. [`ExportError::Vocabulary`], and for f32 [`ExportError::Differs`].
    pub fn verify(
        &self,
        config: &RunConfig,
        files: &std::path::Path,
        format: WeightFormat,
    ) -> Result<LogitDifference, PipelineError> {
        let (settings, weights) =
            PretrainedModel::open(files)?.read(config.prepare.end_of_text.as_deref())?;
        let vocabulary = config.model.head_size();
        let count = TOKENS.min(config.model.context).min(settings.context);
        let text: Vec<u32> = (0..count).map(|at| (at * STRIDE % vocabulary) as u32).collect();
        let own = logits(&config.model, &self.weights, &text)?;
        let read = logits(&settings, &weights, &text)?;
        let file = files.to_owned();
        if own.len() != read.len() {
            return Err(
                ExportError::Vocabulary { file, found: settings.head_size(), expected: vocabulary }.into()
            );
        }
        let difference = LogitDifference::between(&own, &read, count);
        if format == WeightFormat::F32 && !difference.is_rounding() {
            return Err(ExportError::Differs { file, difference }.into());
        }
        Ok(difference)
    }
}

/// Logits after each token (T, V), computed in f32.
fn logits(config: &ModelConfig, weights: &ModuleWeights, text: &[u32]) -> Result<Vec<f32>, PipelineError> {
    let config = ModelConfig { dtype: Dtype::F32, ..config.clone() };
    let path = dense_path(&config, weights)?;
    let tokens = TokenRows::new(text.to_vec(), 1, config.head_size()).map_err(ModelError::from)?;
    Ok(path.position_logits(&tokens, &(0..text.len()).collect::<Vec<_>>())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_the_largest_of_all_positions_and_nothing_undefined_is_rounding() {
        let own = [1.0, 2.0, -4.0, 3.0, 1.0, 0.0];
        let same = LogitDifference::between(&own, &own, 2);
        assert_eq!(same, LogitDifference { largest: 0.0, scale: 4.0, same: 2, tokens: 2 });
        assert!(same.is_rounding());
        let other = LogitDifference::between(&own, &[1.0, 2.0, -4.0, 0.5, 1.0, 0.0], 2);
        assert_eq!(other, LogitDifference { largest: 2.5, scale: 4.0, same: 1, tokens: 2 });
        assert!(!other.is_rounding());
        let undefined = LogitDifference::between(&own, &[f32::NAN, 2.0, -4.0, 3.0, 1.0, 0.0], 2);
        assert!(!undefined.is_rounding(), "{undefined}");
    }
}
