//! Earlier rounds to which a run can go back.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use dipaco_topology::PathId;

use super::{Ledger, SavedCheckpoint};
use crate::records::{Divided, TrainingObjects, TrainingSnapshot};
use crate::{CheckpointRecord, LedgerError, ObjectRef, TrainingRecord, names};

/// The checkpoints of a run, the newest at the end. Of two checkpoints one shares no weights with the current round,
/// because only the newest can have been taken a moment ago.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// Number of checkpoints to keep.
    keep: usize,
    kept: Vec<Arc<Checkpoint>>,
}

#[derive(Debug)]
pub(super) struct Checkpoint {
    /// Rounds that every path had completed.
    pub(super) round: u32,
    /// Name of the checkpoint's own object.
    name: String,
    /// The checkpoint's own object. A draft that takes the checkpoint is encoded after the ledger has gone on, and sets it.
    object: OnceLock<ObjectRef>,
    /// The objects that the checkpoint needs. They share the records with the ledger.
    pub(super) objects: TrainingObjects,
}

/// The checkpoints that a manifest names, and those that it drops.
#[derive(Debug)]
pub(super) struct CheckpointTurn {
    /// True if the last one of `kept` is new.
    new: bool,
    kept: Vec<Arc<Checkpoint>>,
    dropped: Vec<Arc<Checkpoint>>,
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
    fn saved(SavedCheckpoint { record, training }: SavedCheckpoint) -> Result<Arc<Self>, LedgerError> {
        let CheckpointRecord { round, object } = record;
        let Divided { objects, .. } = training.divide()?;
        Ok(Arc::new(Self { round, name: object.name.clone(), object: object.into(), objects }))
    }

    /// True if the checkpoint needs the object of this name.
    fn needs(&self, name: &str) -> bool {
        self.name == name || self.objects.holds(name)
    }

    /// Names of all objects that the checkpoint needs, its own included.
    fn names(&self) -> impl Iterator<Item = &String> {
        self.objects.all().map(|object| &object.name).chain([&self.name])
    }

    fn record(&self) -> Option<CheckpointRecord> {
        Some(CheckpointRecord { round: self.round, object: self.object.get()?.clone() })
    }
}

impl Checkpoints {
    pub(super) fn new(keep: usize, saved: Vec<SavedCheckpoint>) -> Result<Self, LedgerError> {
        let excess = saved.len().saturating_sub(keep);
        let newest = saved.into_iter().skip(excess);
        Ok(Self { keep, kept: newest.map(Checkpoint::saved).collect::<Result<_, _>>()? })
    }

    /// True if a checkpoint needs this object.
    pub(super) fn need(&self, name: &str) -> bool {
        self.kept.iter().any(|checkpoint| checkpoint.needs(name))
    }

    /// The newest checkpoint at which the last completed lease of a path was another one than that with this fencing number,
    /// or none.
    pub(super) fn before(&self, path: PathId, fence: Option<u64>) -> Option<Arc<Checkpoint>> {
        let is_earlier = |checkpoint: &&Arc<Checkpoint>| {
            checkpoint.objects.paths.get(&path).is_some_and(|objects| objects.fence != fence)
        };
        self.kept.iter().rev().find(is_earlier).cloned()
    }

    fn newest_round(&self) -> Option<u32> {
        self.kept.last().map(|checkpoint| checkpoint.round)
    }
}

impl CheckpointTurn {
    /// Encodes the new checkpoint, if there is one: the whole training as JSON, once a round.
    pub(super) fn encode_new(&self, training: &TrainingRecord) -> Result<Option<NewCheckpoint>, LedgerError> {
        let Some(new) = self.kept.last().filter(|_| self.new) else { return Ok(None) };
        let content = serde_json::to_vec(training)
            .map_err(|why| LedgerError::internal(format!("the training can't be written as JSON: {why}")))?;
        let object = new.object.get_or_init(|| ObjectRef::of(new.name.as_str(), &content)).clone();
        Ok(Some(NewCheckpoint { object, content }))
    }

    /// The records of the encoded checkpoints.
    pub(super) fn records(&self) -> Vec<CheckpointRecord> {
        self.kept.iter().filter_map(|checkpoint| checkpoint.record()).collect()
    }

    /// Names of the objects that only dropped checkpoints need, and not the training with these objects. A later training
    /// doesn't need them either: every object that it adds has a new name, or is one of a checkpoint that is kept.
    pub(super) fn obsolete(&self, current: &TrainingObjects) -> BTreeSet<String> {
        let is_needed =
            |name: &str| current.holds(name) || self.kept.iter().any(|checkpoint| checkpoint.needs(name));
        let names = self.dropped.iter().flat_map(|checkpoint| checkpoint.names());
        names.filter(|name| !is_needed(name)).cloned().collect()
    }
}

impl Ledger {
    /// Takes a checkpoint of a training if every path has completed another round, and drops the oldest checkpoints. A
    /// complete run keeps none.
    pub(super) fn turn_checkpoints(&mut self, training: &TrainingSnapshot) -> CheckpointTurn {
        let round = self.rounds_done();
        let finished = self.state.finished();
        let checkpoints = &mut self.checkpoints;
        let due = checkpoints.newest_round().is_none_or(|newest| round > newest);
        let new = due && !finished && checkpoints.keep > 0;
        if new {
            checkpoints.kept.push(Arc::new(Checkpoint {
                round,
                name: names::checkpoint(round, self.incarnation),
                object: OnceLock::new(),
                objects: training.objects.clone(),
            }));
        }
        let keep = if finished { 0 } else { checkpoints.keep };
        let excess = checkpoints.kept.len().saturating_sub(keep);
        let dropped = checkpoints.kept.drain(..excess).collect();
        CheckpointTurn { new, kept: checkpoints.kept.clone(), dropped }
    }
}
