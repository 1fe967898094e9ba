//! The next write of the manifest.

use std::mem;

use super::checkpoints::CheckpointTurn;
use super::{Ledger, NewCheckpoint};
use crate::records::TrainingSnapshot;
use crate::{LedgerError, RunManifest};

/// The next write of the manifest. Checkpoint, manifest, deletions: a crash between two of them leaves a manifest whose
/// objects all exist.
#[derive(Clone, Debug)]
pub struct PendingWrite {
    /// A checkpoint to which the manifest refers, to be written before it.
    pub checkpoint: Option<NewCheckpoint>,
    /// The manifest; `None` if it has not changed.
    pub manifest: Option<RunManifest>,
    /// Number of the last change in the manifest.
    pub change: u64,
    /// Objects that can be deleted after the write.
    pub obsolete: Vec<String>,
}

/// The next write as the ledger hands it out. It shares the records with the ledger, so making it takes microseconds.
/// [`WriteDraft::finish`] does everything that takes long, and needs no ledger: requests go on meanwhile.
#[derive(Debug)]
pub struct WriteDraft {
    manifest: Option<ManifestDraft>,
    change: u64,
    obsolete: Vec<String>,
}

#[derive(Debug)]
struct ManifestDraft {
    /// The manifest without the training and the checkpoints.
    manifest: RunManifest,
    training: TrainingSnapshot,
    checkpoints: CheckpointTurn,
}

impl WriteDraft {
    /// The write with its content. Finish each draft before the next one is made: a manifest names only the checkpoints of
    /// finished drafts.
    ///
    /// # Errors
    /// When the ledger contradicts itself.
    pub fn finish(self) -> Result<PendingWrite, LedgerError> {
        let Self { manifest, change, mut obsolete } = self;
        let (mut checkpoint, mut written) = (None, None);
        if let Some(ManifestDraft { manifest, training, checkpoints }) = manifest {
            let record = training.record()?;
            checkpoint = checkpoints.encode_new(&record)?;
            obsolete.extend(checkpoints.obsolete(&training.objects));
            let checkpoints = checkpoints.records();
            written = Some(RunManifest { training: Some(record), checkpoints, ..manifest });
        }
        Ok(PendingWrite { checkpoint, manifest: written, change, obsolete })
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
            }
        });
        Some(WriteDraft { manifest, change: self.changes, obsolete: mem::take(&mut self.obsolete) })
    }

    /// True if the outer gradients with objects are the contributions that wait.
    fn gradients_agree(&self) -> bool {
        let pending = &self.state.progress().pending;
        self.objects.fragments.iter().all(|(fragment, objects)| {
            objects.gradients.keys().eq(pending.get(fragment).into_iter().flatten())
        })
    }
}
