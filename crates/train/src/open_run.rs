//! The run as its store has it.

use dipaco_store::{Loaded, RunManifest, RunStore, Sequence};

use crate::TrainError;

/// A run as the store has it.
#[derive(Clone, Debug)]
pub struct OpenRun {
    /// What is current.
    pub manifest: RunManifest,
    /// What the next writer of the manifest must expect.
    pub sequence: Sequence,
}

/// Reads the run's manifest, or makes the first one of a new run.
///
/// # Errors
/// When the store can't be read, or its manifest is damaged or of another kind.
pub async fn open_run(store: &RunStore, new_run: impl FnOnce() -> String) -> Result<OpenRun, TrainError> {
    if let Some(Loaded { manifest, sequence, warnings }) = store.load::<RunManifest>().await? {
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        return Ok(OpenRun { manifest, sequence });
    }
    Ok(OpenRun { manifest: RunManifest::new(new_run()), sequence: Sequence::NONE })
}
