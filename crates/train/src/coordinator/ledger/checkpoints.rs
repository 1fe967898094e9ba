//! Earlier rounds to which a run can go back.

use std::collections::BTreeSet;

use bytes::Bytes;
use dipaco_store::{CheckpointRecord, ObjectRef, RunManifest, RunStore, StoreError, TrainingRecord, names};

use super::Ledger;
use crate::coordinator::error::CoordinatorError;

/// The checkpoints of a run, the newest at the end. Of two checkpoints one shares no weights with the current round,
/// because only the newest can have been taken a moment ago.
pub(super) struct Checkpoints {
    /// Number of checkpoints to keep.
    keep: usize,
    kept: Vec<Checkpoint>,
}

struct Checkpoint {
    record: CheckpointRecord,
    /// Names of all objects that the checkpoint needs, its own included.
    names: BTreeSet<String>,
}

/// A checkpoint that must be written before the manifest that refers to it.
pub(crate) struct NewCheckpoint {
    pub(crate) object: ObjectRef,
    pub(crate) content: Bytes,
}

/// The outcome of reading a checkpoint.
pub(crate) enum CheckpointContent {
    /// The training as the checkpoint holds it.
    Sound(TrainingRecord),
    /// The checkpoint is damaged or missing.
    Damaged(StoreError),
}

impl Checkpoint {
    fn new(record: CheckpointRecord, training: &TrainingRecord) -> Self {
        let names = training.objects().chain([&record.object]).map(|object| object.name.clone()).collect();
        Self { record, names }
    }
}

impl Checkpoints {
    /// Reads the checkpoints that the manifest names, and leaves out the damaged ones.
    pub(super) async fn load(
        store: &RunStore,
        manifest: &RunManifest,
        keep: usize,
    ) -> Result<Self, CoordinatorError> {
        let mut kept = Vec::new();
        let excess = manifest.checkpoints.len().saturating_sub(keep);
        for record in manifest.checkpoints.iter().skip(excess) {
            match read_checkpoint(store, record).await? {
                CheckpointContent::Sound(training) => kept.push(Checkpoint::new(record.clone(), &training)),
                CheckpointContent::Damaged(error) => {
                    tracing::warn!(round = record.round, %error, "a checkpoint is damaged and dropped");
                }
            }
        }
        Ok(Self { keep, kept })
    }

    pub(super) fn records(&self) -> Vec<CheckpointRecord> {
        self.kept.iter().map(|checkpoint| checkpoint.record.clone()).collect()
    }

    /// True if a checkpoint needs this object.
    pub(super) fn need(&self, name: &str) -> bool {
        self.kept.iter().any(|checkpoint| checkpoint.names.contains(name))
    }

    fn newest_round(&self) -> Option<u32> {
        self.kept.last().map(|checkpoint| checkpoint.record.round)
    }
}

/// Reads the training from a checkpoint.
pub(crate) async fn read_checkpoint(
    store: &RunStore,
    record: &CheckpointRecord,
) -> Result<CheckpointContent, CoordinatorError> {
    match store.get(&record.object).await {
        Ok(content) => {
            let training = serde_json::from_slice(&content)
                .map_err(|source| CoordinatorError::CheckpointFormat { round: record.round, source })?;
            Ok(CheckpointContent::Sound(training))
        }
        Err(error) if is_damage(&error) => Ok(CheckpointContent::Damaged(error)),
        Err(error) => Err(error.into()),
    }
}

/// True if an object is missing or differs from its reference.
pub(crate) fn is_damage(error: &StoreError) -> bool {
    matches!(error, StoreError::Damaged { .. } | StoreError::Cut { .. } | StoreError::Missing { .. })
}

impl Ledger {
    /// Takes a checkpoint if every path has completed another round, and drops the oldest checkpoints. A complete run
    /// keeps none.
    pub(super) fn take_checkpoint(&mut self) -> Result<Option<NewCheckpoint>, CoordinatorError> {
        let round = self.training()?.rounds_done();
        let finished = self.state.finished();
        let due = self.checkpoints.newest_round().is_none_or(|newest| round > newest);
        let mut taken = None;
        if due && !finished && self.checkpoints.keep > 0 {
            let training = self.training()?;
            let content = serde_json::to_vec(training).map_err(|why| {
                CoordinatorError::internal(format!("the training can't be written as JSON: {why}"))
            })?;
            let object = ObjectRef::of(names::checkpoint(round, self.manifest.incarnation), &content);
            let record = CheckpointRecord { round, object: object.clone() };
            let checkpoint = Checkpoint::new(record, training);
            self.checkpoints.kept.push(checkpoint);
            taken = Some(NewCheckpoint { object, content: content.into() });
        }
        let keep = if finished { 0 } else { self.checkpoints.keep };
        let excess = self.checkpoints.kept.len().saturating_sub(keep);
        let dropped: Vec<_> = self.checkpoints.kept.drain(..excess).collect();
        if taken.is_none() && dropped.is_empty() {
            return Ok(None);
        }
        self.manifest.checkpoints = self.checkpoints.records();
        let names: BTreeSet<_> = dropped.into_iter().flat_map(|checkpoint| checkpoint.names).collect();
        let unused = self.unused(names)?;
        self.obsolete.extend(unused);
        Ok(taken)
    }
}
