//! How many tokens a run's tokenizer has, or will have.

use dipaco_config::RunConfig;
use dipaco_shards::Tokenizer;

use crate::run_directory::RunDirectory;
use crate::steps::error::StepError;
use crate::steps::seed;

/// The configuration with the vocabulary of a run that need not have been prepared, and where it is from.
pub(crate) fn of_run(run: &RunDirectory, config: &RunConfig) -> Result<(RunConfig, String), StepError> {
    if run.tokenizer().exists() {
        let from = format!("the run's tokenizer, {}", run.tokenizer().display());
        return Ok((seed::with_vocabulary(run, config)?, from));
    }
    expected(config)
}

/// The same without a run: the vocabulary that `dipaco prepare` would give.
pub(crate) fn expected(config: &RunConfig) -> Result<(RunConfig, String), StepError> {
    let with = |vocabulary: usize| -> Result<RunConfig, StepError> {
        let model = config.model.with_vocabulary(vocabulary)?;
        Ok(RunConfig { model, ..config.clone() })
    };
    match &config.prepare.tokenizer {
        _ if config.model.vocab_size > 0 => Ok((config.clone(), "model.vocab_size".to_owned())),
        None => Ok((
            with(config.prepare.vocab_size as usize)?,
            "prepare.vocab_size, of the tokenizer that is still to be trained".to_owned(),
        )),
        Some(file) => {
            let tokenizer = Tokenizer::from_file(file, config.prepare.end_of_text.as_deref())?;
            Ok((with(tokenizer.vocab_size() as usize)?, format!("prepare.tokenizer, {}", file.display())))
        }
    }
}
