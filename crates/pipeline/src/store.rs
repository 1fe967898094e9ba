//! The store of a run.

use dipaco_store::{RunManifest, RunStore};

use crate::error::PipelineError;
use crate::run_directory::RunDirectory;

/// Opens the store of a run, and creates it if the run has none.
///
/// # Errors
/// [`PipelineError::Store`] when the directory can't be created or opened.
pub fn open_store(run: &RunDirectory) -> Result<RunStore, PipelineError> {
    Ok(RunStore::create(&run.store().to_string_lossy())?)
}

/// Reads the current manifest of a run. Returns `None` when the run has no store or no manifest, and creates nothing.
///
/// # Errors
/// [`PipelineError::Store`] when the store can't be read or no manifest in it is intact.
pub async fn manifest(run: &RunDirectory) -> Result<Option<RunManifest>, PipelineError> {
    if !run.store().exists() {
        return Ok(None);
    }
    let store = RunStore::open(&run.store().to_string_lossy())?;
    let Some(loaded) = store.load::<RunManifest>().await? else { return Ok(None) };
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    Ok(Some(loaded.manifest))
}
