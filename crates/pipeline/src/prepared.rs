//! Reading the tokenizer and the token files that `prepare` wrote.

use std::path::Path;
use std::sync::Arc;

use dipaco_shards::{TokenSet, Tokenizer, prepared_tokenizer};

use crate::error::PipelineError;
use crate::run_directory::RunDirectory;

/// Reads the run's tokenizer.
///
/// # Errors
/// [`PipelineError::NotPrepared`] when the run has none, [`PipelineError::Shards`] when it can't be read.
pub fn tokenizer(run: &RunDirectory) -> Result<Tokenizer, PipelineError> {
    if !run.tokenizer().exists() {
        return Err(PipelineError::NotPrepared { folder: run.data() });
    }
    Ok(prepared_tokenizer(&run.data())?)
}

/// Opens a token file and checks that it was made with the run's tokenizer.
///
/// # Errors
/// [`PipelineError::NotPrepared`] when the file does not exist, [`PipelineError::NoValidationText`] when it is that of the
/// validation text and the run is prepared without any, [`PipelineError::Shards`] when it is damaged or was made with another
/// tokenizer.
pub fn token_file(run: &RunDirectory, file: &Path) -> Result<Arc<TokenSet>, PipelineError> {
    if !file.exists() {
        if *file == run.validation_tokens() && run.train_tokens().exists() {
            return Err(PipelineError::NoValidationText { folder: run.data() });
        }
        return Err(PipelineError::NotPrepared { folder: run.data() });
    }
    let opened = TokenSet::open(file)?;
    opened.check_tokenizer(&tokenizer(run)?)?;
    Ok(Arc::new(opened))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_prepared_without_validation_text_is_not_told_to_prepare() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path());
        let refused = |file: &Path| token_file(&run, file).err().unwrap().to_string();
        assert!(refused(&run.validation_tokens()).contains("there is no prepared text in"));
        std::fs::create_dir_all(run.data()).unwrap();
        std::fs::write(run.train_tokens(), "").unwrap();
        let told = refused(&run.validation_tokens());
        assert!(told.contains("has no validation documents") && told.contains("--validation"), "{told}");
        assert!(refused(&run.data().join("other.json")).contains("there is no prepared text in"));
    }
}
