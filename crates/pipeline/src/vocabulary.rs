//! The size of a run's vocabulary, before and after its tokenizer exists.

use dipaco_config::RunConfig;
use dipaco_shards::Tokenizer;

use crate::error::PipelineError;
use crate::prepared::tokenizer;
use crate::run_directory::RunDirectory;

/// A configuration with its vocabulary.
#[derive(Clone, Debug)]
pub struct SizedConfig {
    /// The configuration; `model.vocab_size` is set.
    pub config: RunConfig,
    /// The source of the size, in words.
    pub source: String,
}

/// The configuration with the vocabulary of the run's tokenizer.
///
/// # Errors
/// [`PipelineError::NotPrepared`] when the run has no tokenizer, [`PipelineError::Model`] when `model.vocab_size` is set
/// to another size.
pub fn with_vocabulary(run: &RunDirectory, config: &RunConfig) -> Result<RunConfig, PipelineError> {
    let tokenizer = tokenizer(run)?;
    let model = config.model.with_vocabulary(tokenizer.vocab_size() as usize)?;
    Ok(RunConfig { model, ..config.clone() })
}

/// The configuration with the vocabulary of a run, prepared or not.
///
/// # Errors
/// As [`with_vocabulary`] and [`expected`].
pub fn of_run(run: &RunDirectory, config: &RunConfig) -> Result<SizedConfig, PipelineError> {
    if run.tokenizer().exists() {
        let source = format!("the run's tokenizer, {}", run.tokenizer().display());
        return Ok(SizedConfig { config: with_vocabulary(run, config)?, source });
    }
    expected(&RunConfig { prepare: run.located(&config.prepare), ..config.clone() })
}

/// The configuration with the vocabulary that `dipaco prepare` would give a run.
///
/// # Errors
/// [`PipelineError::Shards`] when the tokenizer that the configuration names can't be read, [`PipelineError::Model`] when
/// `model.vocab_size` is set to another size.
pub fn expected(config: &RunConfig) -> Result<SizedConfig, PipelineError> {
    let with = |vocabulary: usize, source: String| -> Result<SizedConfig, PipelineError> {
        let model = config.model.with_vocabulary(vocabulary)?;
        Ok(SizedConfig { config: RunConfig { model, ..config.clone() }, source })
    };
    match &config.prepare.tokenizer {
        _ if config.model.vocab_size > 0 => {
            Ok(SizedConfig { config: config.clone(), source: "model.vocab_size".to_owned() })
        }
        None => with(
            config.prepare.vocab_size as usize,
            "prepare.vocab_size, of the tokenizer that is still to be trained".to_owned(),
        ),
        Some(file) => {
            let tokenizer = Tokenizer::from_file(file, config.prepare.end_of_text.as_deref())?;
            with(tokenizer.vocab_size() as usize, format!("prepare.tokenizer, {}", file.display()))
        }
    }
}
