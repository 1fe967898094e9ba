//! Earlier rounds that a run can go back to.

use std::collections::BTreeSet;

use bytes::Bytes;
use dipaco_store::{CheckpointRecord, ObjectRef, RunManifest, RunStore, TrainingRecord, names};

use super::Ledger;
use crate::TrainError;
use crate::coordinator::recover::is_damage;

/// The checkpoints of a run, the newest at the end. With two of them there is always one that shares no weights with the
/// current round: the newest may have been taken a moment ago.
pub(super) struct Checkpoints {
    /// How many there are to be.
    keep: usize,
    kept: Vec<Checkpoint>,
}

struct Checkpoint {
    record: CheckpointRecord,
    /// The names of everything that it needs, its own included.
    names: BTreeSet<String>,
}

impl Checkpoint {
    fn new(record: CheckpointRecord, training: &TrainingRecord) -> Self {
        let names = training.objects().chain([&record.object]).map(|object| object.name.clone()).collect();
        Self { record, names }
    }
}

impl Checkpoints {
    /// Those that the manifest names and that can be read.
    pub(super) async fn load(
        store: &RunStore,
        manifest: &RunManifest,
        keep: usize,
    ) -> Result<Self, TrainError> {
        let mut kept = Vec::new();
        let excess = manifest.checkpoints.len().saturating_sub(keep);
        for record in manifest.checkpoints.iter().skip(excess) {
            match read(store, record).await {
                Ok(training) => kept.push(Checkpoint::new(record.clone(), &training)),
                Err(TrainError::Store(error)) if is_damage(&error) => {
                    tracing::warn!(round = record.round, %error, "a checkpoint is damaged, and dropped");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self { keep, kept })
    }

    pub(super) fn records(&self) -> Vec<CheckpointRecord> {
        self.kept.iter().map(|checkpoint| checkpoint.record.clone()).collect()
    }

    /// Whether a checkpoint needs this object.
    pub(super) fn hold(&self, name: &str) -> bool {
        self.kept.iter().any(|checkpoint| checkpoint.names.contains(name))
    }

    fn newest(&self) -> Option<u32> {
        self.kept.last().map(|checkpoint| checkpoint.record.round)
    }
}

/// Reads the training as a checkpoint has it.
pub(crate) async fn read(store: &RunStore, record: &CheckpointRecord) -> Result<TrainingRecord, TrainError> {
    let content = store.get(&record.object).await?;
    serde_json::from_slice(&content).map_err(|source| TrainError::Json { source })
}

impl Ledger {
    /// Takes a checkpoint when every path has completed another round, and drops those that are too many; a complete run
    /// needs none.
    pub(super) fn checkpoint(&mut self) -> Result<Option<(ObjectRef, Bytes)>, TrainError> {
        let round = self.training()?.rounds_done();
        let finished = self.rounds.finished();
        let due = self.checkpoints.newest().is_none_or(|newest| round > newest);
        let mut taken = None;
        if due && !finished && self.checkpoints.keep > 0 {
            let training = self.training()?;
            let content = serde_json::to_vec(training).map_err(|source| TrainError::Json { source })?;
            let object = ObjectRef::of(names::checkpoint(round, self.manifest.incarnation), &content);
            let record = CheckpointRecord { round, object: object.clone() };
            let checkpoint = Checkpoint::new(record, training);
            self.checkpoints.kept.push(checkpoint);
            taken = Some((object, content.into()));
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
