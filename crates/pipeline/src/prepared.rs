//! Reading the tokenizer and the token files that `prepare` wrote.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dipaco_shards::{PrepareReport, TokenSet, Tokenizer, TokenizerReport, prepared_tokenizer};

use crate::error::PipelineError;
use crate::files;
use crate::run_directory::RunDirectory;

/// Reads the run's tokenizer.
///
/// # Errors
/// [`PipelineError::NotPrepared`] when the run has none, [`PipelineError::Shards`] when it can't be read.
pub fn tokenizer(run: &RunDirectory) -> Result<Tokenizer, PipelineError> {
    let file = tokenizer_file(run).ok_or_else(|| PipelineError::NotPrepared { folder: run.data() })?;
    Ok(prepared_tokenizer(file.parent().unwrap_or(&file))?)
}

/// The file of the run's tokenizer: that of its prepared text, or else of the finished run that it extends, whose text may be
/// gone.
pub(crate) fn tokenizer_file(run: &RunDirectory) -> Option<PathBuf> {
    [run.tokenizer(), run.kept_tokenizer()].into_iter().find(|file| file.exists())
}

/// Keeps the tokenizer of the finished run that a run extends, with a report that names its end-of-text token.
pub(crate) fn keep_tokenizer(run: &RunDirectory, tokenizer: &Tokenizer) -> Result<(), PipelineError> {
    let kept = TokenizerReport {
        hash: tokenizer.hash().to_owned(),
        vocab_size: tokenizer.vocab_size(),
        end_of_text: Some(tokenizer.end_of_text_text()),
        ..TokenizerReport::default()
    };
    let (file, report) =
        (run.kept_tokenizer(), PrepareReport { tokenizer: kept, ..PrepareReport::default() });
    let path = file.with_file_name("report.json");
    let json = serde_json::to_vec_pretty(&report).map_err(|error| PipelineError::Io {
        action: "write",
        path: path.clone(),
        source: error.into(),
    })?;
    files::write(&path, &json)?;
    files::write(&file, tokenizer.to_json())
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

    #[test]
    fn a_kept_tokenizer_keeps_its_end_of_text_token() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path());
        let model =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures/pretrained/tokenizer.json");
        // Not the usual one.
        let given = Tokenizer::from_file(&model, Some("<|im_end|>")).unwrap();
        keep_tokenizer(&run, &given).unwrap();
        let kept = tokenizer(&run).unwrap();
        assert_eq!((kept.hash(), kept.end_of_text_text()), (given.hash(), "<|im_end|>".to_owned()));
    }
}
