//! The store of a run.

use dipaco_store::{RunManifest, RunStore, StoreError};

use crate::error::PipelineError;
use crate::run_directory::RunDirectory;

/// Opens the store of a run to write into it, and creates its directory if the run has none. A remote store is checked
/// first: a run must not begin in a store that can't hold it.
///
/// # Errors
/// [`PipelineError::Store`] when the store can't be created, opened or written.
pub async fn open_store(run: &RunDirectory) -> Result<RunStore, PipelineError> {
    let store = RunStore::create(&run.store())?;
    store.check_writable().await?;
    Ok(store)
}

/// Opens the store of a run to read it. Returns `None` when the run has no directory for one, and creates nothing.
///
/// # Errors
/// [`PipelineError::Store`] when the store can't be opened.
pub fn existing_store(run: &RunDirectory) -> Result<Option<RunStore>, PipelineError> {
    match RunStore::open(&run.store()) {
        Ok(store) => Ok(Some(store)),
        Err(StoreError::NoStore { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads the current manifest of a run. Returns `None` when the run has no store or no manifest, and creates nothing.
///
/// # Errors
/// [`PipelineError::Store`] when the store can't be read or no manifest in it is intact.
pub async fn manifest(run: &RunDirectory) -> Result<Option<RunManifest>, PipelineError> {
    let Some(store) = existing_store(run)? else { return Ok(None) };
    let Some(loaded) = store.load::<RunManifest>().await? else { return Ok(None) };
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    Ok(Some(loaded.manifest))
}
