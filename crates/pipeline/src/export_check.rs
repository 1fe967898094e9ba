//! Exported files, read again as any other pretrained model: do they give the logits of the weights that were exported?

use dipaco_config::RunConfig;
use dipaco_model::{Dtype, ModelConfig, ModelError, ModuleWeights, TokenRows, WeightFormat};

use crate::error::PipelineError;
use crate::export::Exported;
use crate::export_error::ExportError;
use crate::import::PretrainedModel;
use crate::logit_difference::LogitDifference;
use crate::weights::dense_path;

/// Most tokens of the text that both models read.
const TOKENS: usize = 64;
/// Steps over the vocabulary from token to token: a prime, so that the text has tokens of the whole vocabulary.
const STRIDE: usize = 7919;

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
