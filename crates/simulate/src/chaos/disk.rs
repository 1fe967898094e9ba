//! The disk of a simulated run's coordinator.

use dipaco_ledger::{RunManifest, TrainingRecord};

use super::case::Case;
use super::object_store::ObjectStore;
use super::start::first_manifest;

/// The durable record of a simulated run.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedDisk {
    pub(crate) manifest: RunManifest,
}

impl SimulatedDisk {
    /// The first manifest of a run, with the weights of version 0 in the store.
    pub(crate) fn new(case: &Case, store: &mut ObjectStore) -> Self {
        Self { manifest: first_manifest(case, store) }
    }

    /// The record of the training.
    ///
    /// # Errors
    /// When a write has lost it.
    pub(crate) fn training(&self) -> Result<&TrainingRecord, String> {
        self.manifest.training.as_ref().ok_or_else(|| "the manifest has no training".to_owned())
    }
}
