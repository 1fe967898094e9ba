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
/// [`PipelineError::NotPrepared`] when the file does not exist, [`PipelineError::Shards`] when it is damaged or was made
/// with another tokenizer.
pub fn token_file(run: &RunDirectory, file: &Path) -> Result<Arc<TokenSet>, PipelineError> {
    if !file.exists() {
        return Err(PipelineError::NotPrepared { folder: run.data() });
    }
    let opened = TokenSet::open(file)?;
    opened.check_tokenizer(&tokenizer(run)?)?;
    Ok(Arc::new(opened))
}
