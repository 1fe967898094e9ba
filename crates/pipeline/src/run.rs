//! A run with its configuration.

use std::fs;
use std::path::PathBuf;

use dipaco_config::RunConfig;

use crate::error::PipelineError;
use crate::run_directory::RunDirectory;
use crate::{files, route, vocabulary};

/// A prepared run: its directory and its configuration.
#[derive(Clone, Debug)]
pub struct Run {
    /// Names of the run's files.
    pub directory: RunDirectory,
    /// The configuration that is saved with the run, with the vocabulary of its tokenizer.
    pub config: RunConfig,
}

impl Run {
    /// Opens a run by the configuration in its directory. Changes nothing.
    ///
    /// # Errors
    /// [`PipelineError::Io`] when the directory has no configuration, [`PipelineError::Config`] when the configuration is
    /// wrong, [`PipelineError::NotPrepared`] when the run has no tokenizer, and [`PipelineError::OtherTokenizer`] when
    /// the run was routed with another one.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, PipelineError> {
        let directory = RunDirectory::new(root);
        let file = directory.config();
        let text = fs::read_to_string(&file).map_err(|source| PipelineError::Io {
            action: "read",
            path: file.clone(),
            source,
        })?;
        let config = RunConfig::from_toml(&text, &file)?;
        let directory = directory.with_places(&config.run);
        route::check_tokenizer(&directory)?;
        let config = vocabulary::with_vocabulary(&directory, &config)?;
        Ok(Self { directory, config })
    }
}

/// The run in the folder `root`, with the places that its saved configuration names.
///
/// # Errors
/// [`PipelineError::Config`] when the saved configuration is wrong.
pub fn saved_run(root: impl Into<PathBuf>) -> Result<RunDirectory, PipelineError> {
    let run = RunDirectory::new(root);
    match read_config(run.config())? {
        Some(config) => Ok(run.with_places(&config.run)),
        None => Ok(run),
    }
}

/// The configuration in a file, if there is one.
pub(crate) fn read_config(file: PathBuf) -> Result<Option<RunConfig>, PipelineError> {
    match fs::read_to_string(&file) {
        Ok(text) => Ok(Some(RunConfig::from_toml(&text, &file)?)),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PipelineError::Io { action: "read", path: file, source }),
    }
}

/// Saves the resolved configuration with the run. Keys that change are logged.
///
/// # Errors
/// [`PipelineError::Io`] when the file can't be written.
pub fn save_config(run: &RunDirectory, config: &RunConfig) -> Result<(), PipelineError> {
    let file = run.config();
    let text = config.to_toml();
    if let Ok(before) = fs::read_to_string(&file) {
        if before == text {
            return Ok(());
        }
        if let Ok(before) = RunConfig::from_toml(&before, &file) {
            for (key, old, new) in before.differences(config) {
                tracing::info!("{key} changes from {old} to {new}");
            }
        }
    }
    files::write(&file, text.as_bytes())
}
