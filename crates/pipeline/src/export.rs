//! A path or the seed as files of other programs: a Hugging Face Llama checkpoint, or a GGUF file.

use std::path::Path;

use dipaco_config::RunConfig;
use dipaco_model::{
    GgufVocabulary, ModelError, ModuleWeights, SpecialTokens, WeightFormat, export_gguf, export_llama,
    export_model,
};
use dipaco_topology::PathId;

use crate::error::PipelineError;
use crate::files;
pub use crate::model_card::CARD_FILE;
use crate::model_card::model_card;
use crate::prepared::tokenizer;
use crate::run_directory::RunDirectory;
use crate::weights::Weights;

/// The file of a checkpoint by which a folder is known to hold one.
pub const CHECKPOINT_FILE: &str = "config.json";

/// The composed weights of a path, or of the seed for `None`, with a name for them.
#[derive(Debug)]
pub struct Exported {
    /// All weights of the path.
    pub weights: ModuleWeights,
    /// `path-2` or `seed`.
    pub name: String,
    /// The README of a checkpoint: run, modules, and round.
    pub card: String,
}

impl Exported {
    /// Composes a path, or the seed for `None`. Blocks on the store.
    ///
    /// # Errors
    /// [`PipelineError::NoSuchPath`], [`PipelineError::NotTrained`], [`PipelineError::NoSeed`], and the errors of the
    /// store.
    pub fn compose(weights: &Weights, path: Option<PathId>) -> Result<Self, PipelineError> {
        let composed = path.map_or_else(|| weights.seed(), |path| weights.path(path))?;
        let name = path.map_or_else(|| "seed".to_owned(), |path| format!("path-{path}"));
        Ok(Self { weights: composed.weights()?, name, card: model_card(weights, path)? })
    }

    /// Writes a checkpoint for transformers, vLLM and others into the folder `out`, over another one. `config` has its
    /// vocabulary.
    ///
    /// # Errors
    /// When a file of the run can't be read, or a file of the checkpoint can't be written.
    pub fn write_checkpoint(
        &self,
        run: &RunDirectory,
        config: &RunConfig,
        out: &Path,
    ) -> Result<(), PipelineError> {
        let tokenizer = tokenizer(run)?;
        let checkpoint = match run.imported().exported(tokenizer.end_of_text())? {
            Some(imported) => {
                let tokenizer = ("tokenizer.json".to_owned(), tokenizer.to_json().to_vec());
                let mut checkpoint = export_model(&config.model, &self.weights, &imported.special)?;
                checkpoint.extend(imported.files.into_iter().chain([tokenizer]));
                checkpoint
            }
            None => {
                let special = SpecialTokens {
                    end_of_text: tokenizer.end_of_text(),
                    end_of_text_text: tokenizer.end_of_text_text(),
                };
                export_llama(&config.model, &self.weights, &special, tokenizer.to_json())?
            }
        };
        for (name, bytes) in &checkpoint {
            files::write(&out.join(name), bytes)?;
        }
        files::write(&out.join(CARD_FILE), self.card.as_bytes())
    }

    /// Writes a GGUF file for llama.cpp, Ollama and others, over another one. `config` has its vocabulary.
    ///
    /// # Errors
    /// When a file of the run can't be read, the tokenizer has no form in GGUF, or the file can't be written.
    pub fn write_gguf(
        &self,
        run: &RunDirectory,
        config: &RunConfig,
        format: WeightFormat,
        file: &Path,
    ) -> Result<(), PipelineError> {
        let (tokenizer, imported) = (tokenizer(run)?, run.imported());
        let end_of_text = tokenizer.end_of_text();
        let vocabulary = GgufVocabulary::from_tokenizer_json(tokenizer.to_json(), end_of_text)
            .map_err(ModelError::from)?;
        let special = imported.special_tokens(&vocabulary, end_of_text, config.model.vocab_size)?;
        let vocabulary = vocabulary
            .with_special_tokens(special)
            .with_chat_template(imported.chat_template()?)
            .with_sampling(&imported.generation_settings()?)
            .map_err(ModelError::from)?;
        for token in vocabulary.lost_end_tokens() {
            tracing::warn!(
                "llama.cpp will not end a text at token {token}, an end token of the model: a GGUF file has keys for three of them"
            );
        }
        let name = format!("{}/{}", config.run.name, self.name);
        files::write_large(file, |out| {
            export_gguf(&config.model, &self.weights, &name, &vocabulary, format, out)
        })
    }
}
