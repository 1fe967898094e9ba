//! Earlier rounds to which a run can go back.

use std::collections::BTreeSet;

use super::{Ledger, SavedCheckpoint};
use crate::{CheckpointRecord, LedgerError, ObjectRef, TrainingRecord, names};

/// The checkpoints of a run, the newest at the end. Of two checkpoints one shares no weights with the current round,
/// because only the newest can have been taken a moment ago.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// Number of checkpoints to keep.
    keep: usize,
    kept: Vec<Checkpoint>,
}

#[derive(Debug)]
struct Checkpoint {
    record: CheckpointRecord,
    /// Names of all objects that the checkpoint needs, its own included.
    names: BTreeSet<String>,
}

/// A checkpoint that must be written before the manifest that refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCheckpoint {
    /// The checkpoint's object.
    pub object: ObjectRef,
    /// Content of the object.
    pub content: Vec<u8>,
}

impl Checkpoint {
    fn new(record: CheckpointRecord, training: &TrainingRecord) -> Self {
        let names = training.objects().chain([&record.object]).map(|object| object.name.clone()).collect();
        Self { record, names }
    }
}

impl Checkpoints {
    pub(super) fn new(keep: usize, saved: Vec<SavedCheckpoint>) -> Self {
        let excess = saved.len().saturating_sub(keep);
        let newest = saved.into_iter().skip(excess);
        let kept = newest.map(|SavedCheckpoint { record, training }| Checkpoint::new(record, &training));
        Self { keep, kept: kept.collect() }
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

impl Ledger {
    /// Takes a checkpoint if every path has completed another round, and drops the oldest checkpoints. A complete run
    /// keeps none. Once a round it writes the whole training as JSON.
    pub(super) fn take_checkpoint(
        &mut self,
        training: &TrainingRecord,
    ) -> Result<Option<NewCheckpoint>, LedgerError> {
        let round = self.rounds_done();
        let finished = self.state.finished();
        let due = self.checkpoints.newest_round().is_none_or(|newest| round > newest);
        let mut taken = None;
        if due && !finished && self.checkpoints.keep > 0 {
            let content = serde_json::to_vec(training).map_err(|why| {
                LedgerError::internal(format!("the training can't be written as JSON: {why}"))
            })?;
            let object = ObjectRef::of(names::checkpoint(round, self.incarnation), &content);
            let record = CheckpointRecord { round, object: object.clone() };
            self.checkpoints.kept.push(Checkpoint::new(record, training));
            taken = Some(NewCheckpoint { object, content });
        }
        let keep = if finished { 0 } else { self.checkpoints.keep };
        let excess = self.checkpoints.kept.len().saturating_sub(keep);
        let dropped = self.checkpoints.kept.drain(..excess);
        let names: BTreeSet<_> = dropped.flat_map(|checkpoint| checkpoint.names).collect();
        self.delete_unused(names);
        Ok(taken)
    }
}
