//! The next write of the manifest.

use std::{mem, vec};

use super::checkpoints::CheckpointTurn;
use super::{Ledger, NewCheckpoint};
use crate::records::TrainingSnapshot;
use crate::{LedgerError, RunManifest};

/// The next write of the manifest, part by part in its order. Whoever carries it out makes each part durable before the next
/// one: a crash between two of them leaves a manifest whose objects all exist. Only the deletions may go on during the next write.
#[derive(Clone, Debug)]
pub struct PendingWrite {
    parts: vec::IntoIter<WritePart>,
}

/// A part of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum WritePart {
    /// A checkpoint to which the manifest refers.
    Checkpoint(NewCheckpoint),
    /// The manifest. It is absent if it has not changed.
    Manifest {
        /// The manifest.
        manifest: Box<RunManifest>,
        /// Number of the last change in the manifest. Answers that tell of a change up to it may leave once the manifest is on
        /// the disk.
        change: u64,
    },
    /// Names of objects to which the manifest on the disk does not refer any more. They are deleted when no reader pins them.
    Deletions(Vec<String>),
}

impl Iterator for PendingWrite {
    type Item = WritePart;

    fn next(&mut self) -> Option<WritePart> {
        self.parts.next()
    }
}

/// The next write as the ledger hands it out. It shares the records with the ledger, so making it takes microseconds.
/// [`WriteDraft::finish`] does everything that takes long, and needs no ledger: requests go on meanwhile.
#[derive(Debug)]
pub struct WriteDraft {
    manifest: Option<ManifestDraft>,
    obsolete: Vec<String>,
}

#[derive(Debug)]
struct ManifestDraft {
    /// The manifest without the training and the checkpoints.
    manifest: RunManifest,
    training: TrainingSnapshot,
    checkpoints: CheckpointTurn,
    /// Number of the last change in it.
    change: u64,
}

impl WriteDraft {
    /// The write with its content. Finish each draft before the next one is made: a manifest names only the checkpoints of
    /// finished drafts.
    ///
    /// # Errors
    /// When the ledger contradicts itself.
    pub fn finish(self) -> Result<PendingWrite, LedgerError> {
        let Self { manifest, mut obsolete } = self;
        let mut parts = Vec::new();
        if let Some(ManifestDraft { manifest, training, checkpoints, change }) = manifest {
            let record = training.record()?;
            parts.extend(checkpoints.encode_new(&record)?.map(WritePart::Checkpoint));
            obsolete.extend(checkpoints.obsolete(&training.objects));
            let checkpoints = checkpoints.records();
            let manifest = Box::new(RunManifest { training: Some(record), checkpoints, ..manifest });
            parts.push(WritePart::Manifest { manifest, change });
        }
        parts.push(WritePart::Deletions(obsolete));
        Ok(PendingWrite { parts: parts.into_iter() })
    }
}

impl Ledger {
    /// Drafts the next write; `None` if nothing has changed since the last call. Copies no records and looks at no path.
    pub fn poll_write(&mut self) -> Option<WriteDraft> {
        let changed = self.changes > self.polled;
        if !changed && self.obsolete.is_empty() {
            return None;
        }
        debug_assert!(self.gradients_agree());
        self.polled = self.changes;
        let manifest = changed.then(|| {
            let training = TrainingSnapshot::new(&self.objects, self.state.progress(), self.state.phase());
            ManifestDraft {
                manifest: RunManifest {
                    run: self.run.clone(),
                    incarnation: self.incarnation,
                    seed: self.seed.clone(),
                    extension: self.extension.clone(),
                    training: None,
                    checkpoints: Vec::new(),
                    rollbacks: self.rollbacks.clone(),
                },
                checkpoints: self.turn_checkpoints(&training),
                training,
                change: self.changes,
            }
        });
        Some(WriteDraft { manifest, obsolete: mem::take(&mut self.obsolete) })
    }

    /// True if the outer gradients with objects are the contributions that wait.
    fn gradients_agree(&self) -> bool {
        let pending = &self.state.progress().pending;
        self.objects.fragments.iter().all(|(fragment, objects)| {
            objects.gradients.keys().eq(pending.get(fragment).into_iter().flatten())
        })
    }
}
