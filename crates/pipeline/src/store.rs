//! The store of a run.

use dipaco_store::{RunManifest, RunStore, StoreError};
use dipaco_train::store_patience;

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

/// Opens the store of a run for a long work: what fails is repeated for some minutes, until `stopped` tells that the user has
/// asked this process to stop.
///
/// # Errors
/// As [`open_store`].
pub async fn open_store_of_long_work(
    run: &RunDirectory,
    stopped: impl Fn() -> bool + Send + Sync + 'static,
) -> Result<RunStore, PipelineError> {
    Ok(open_store(run).await?.with_patience(store_patience(stopped)))
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
    match existing_store(run)? {
        Some(store) => manifest_in(&store).await,
        None => Ok(None),
    }
}

/// Reads the current manifest in a store. Returns `None` when it has none.
///
/// # Errors
/// [`PipelineError::Store`] when the store can't be read or no manifest in it is intact.
pub async fn manifest_in(store: &RunStore) -> Result<Option<RunManifest>, PipelineError> {
    let Some(loaded) = store.load::<RunManifest>().await? else { return Ok(None) };
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    Ok(Some(loaded.manifest))
}
