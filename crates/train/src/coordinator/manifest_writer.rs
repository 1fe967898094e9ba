//! Writes the manifest when the ledger has changed.

mod deletions;

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dipaco_ledger::{Ledger, NewCheckpoint, WritePart};
use dipaco_net::Clock;
use dipaco_store::{ManifestSequence, RunStore};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, Sender};
use tokio_util::sync::CancellationToken;

use crate::coordinator::error::CoordinatorError;
use crate::coordinator::written_changes::WrittenChanges;
use crate::host::HostError;
use deletions::Deletions;

/// Pause after a write for each path of the run. The manifest has about a kilobyte a path.
const PAUSE: Duration = Duration::from_micros(30);

/// Writes whose objects may wait for their deletion. Further writes, and so answers, wait until the store keeps up again.
const WAITING: usize = 64;

/// Writes the manifest: one write for all changes since the previous write, and a pause between writes, so that a run
/// with thousands of paths does not spend its time on writing. No peer is told of a result before it is on the disk, and
/// no object is deleted to which the manifest on the disk refers.
pub(crate) struct ManifestWriter {
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) store: RunStore,
    /// Sequence number of the manifest on the disk.
    pub(crate) sequence: ManifestSequence,
    /// Notified by every change of the ledger.
    pub(crate) changed: Arc<Notify>,
    /// The requests that wait for their change to be on the disk.
    pub(crate) written: Arc<WrittenChanges>,
    /// Objects to which the manifest on the disk does not refer any more, until [`Self::run`] passes them on.
    pub(crate) dropped: Vec<String>,
    /// Ends the pins of readers that are gone.
    pub(crate) clock: Clock,
}

impl Drop for ManifestWriter {
    fn drop(&mut self) {
        self.written.end();
    }
}

impl ManifestWriter {
    /// Writes the changes of the ledger since the last write, in the order of its parts. Returns the pause before the next
    /// write.
    pub(crate) async fn write_pending(&mut self) -> Result<Duration, CoordinatorError> {
        // A statement of its own, so that the ledger is not locked while the write is encoded: with thousands of paths that
        // takes long.
        // A ledger that a panic or a failure has left half changed is never written, even if nobody waits for it.
        let draft = {
            let mut ledger = self.ledger.lock().map_err(|_| HostError::Broken)?;
            if let Some(failure) = self.written.take_failure() {
                return Err(failure);
            }
            ledger.poll_write()
        };
        let Some(draft) = draft else {
            return Ok(Duration::ZERO);
        };
        let mut pause = Duration::ZERO;
        for part in draft.finish()? {
            match part {
                WritePart::Checkpoint(NewCheckpoint { object, content }) => {
                    self.store.put_referenced(&object, [content.into()]).await?;
                }
                WritePart::Manifest { manifest, change } => {
                    let paths = manifest.training.as_ref().map_or(0, |training| training.paths.len());
                    pause = PAUSE * u32::try_from(paths).unwrap_or(u32::MAX);
                    self.sequence = self.store.replace(&*manifest, self.sequence).await?;
                    self.written.note(change);
                }
                WritePart::Deletions(names) => self.dropped.extend(names),
            }
        }
        Ok(pause)
    }

    /// Writes until `stop` is triggered, and then the remaining changes. Deletes meanwhile, and to the end, the objects to which
    /// the manifest does not refer any more. Returns the sequence number of the last manifest.
    ///
    /// # Errors
    /// When a write, a deletion or a change of the ledger fails. After a deletion the write under way is finished.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<ManifestSequence, CoordinatorError> {
        let (written, writes) = mpsc::channel(WAITING);
        let mut deleting =
            pin!(Deletions::new(self.ledger.clone(), self.store.clone(), self.clock.clone()).run(writes));
        let mut writing = pin!(self.write_until(stop, written));
        tokio::select! {
            biased;
            result = &mut writing => {
                let sequence = result?;
                deleting.await?;
                Ok(sequence)
            }
            result = &mut deleting => {
                let sequence = writing.await?;
                result?;
                Ok(sequence)
            }
        }
    }

    /// Writes until `stop` is triggered or the deletions have failed, and passes the dropped objects of each write on. Returns
    /// the sequence number of the last manifest.
    async fn write_until(
        &mut self,
        stop: CancellationToken,
        written: Sender<Vec<String>>,
    ) -> Result<ManifestSequence, CoordinatorError> {
        loop {
            // Read before the ledger: changes that precede the stop are in this write, the last one.
            let stopping = stop.is_cancelled();
            let pause = self.write_pending().await?;
            let dropped = std::mem::take(&mut self.dropped);
            if written.send(dropped).await.is_err() || stopping {
                return Ok(self.sequence);
            }
            let next_change = async {
                tokio::time::sleep(pause).await;
                self.changed.notified().await;
            };
            tokio::select! {
                () = next_change => {}
                () = stop.cancelled() => {}
                () = written.closed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
