//! Reading a run's manifest from its store.

use dipaco_store::{Loaded, ManifestSequence, RunManifest, RunStore};

use crate::TrainError;

/// The current manifest of a run.
#[derive(Clone, Debug)]
pub struct OpenRun {
    /// The manifest.
    pub manifest: RunManifest,
    /// Sequence number that the next writer of the manifest must name.
    pub sequence: ManifestSequence,
}

/// Reads the run's manifest, or makes the first manifest of a new run.
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
    Ok(OpenRun { manifest: RunManifest::new(new_run()), sequence: ManifestSequence::NONE })
}
