//! Writes the books down.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dipaco_store::{RunStore, Sequence};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::TrainError;
use crate::coordinator::ledger::Ledger;

/// The pause after a write for each path of the run, of which the manifest has about a kilobyte.
const PAUSE: Duration = Duration::from_micros(30);

/// Writes the manifest when the books have changed: one write for all changes since the one before, and a pause between
/// them, so that a run with thousands of paths does not spend its time on writing. Nobody is told of a change
/// before it is on the disk, and nothing is deleted that the manifest on the disk refers to.
pub(crate) struct ManifestWriter {
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) store: RunStore,
    /// The place of the manifest on the disk.
    pub(crate) sequence: Sequence,
    /// Woken by a change of the books.
    pub(crate) changed: Arc<Notify>,
    /// The number of the last change that is on the disk.
    pub(crate) written: watch::Sender<u64>,
}

impl ManifestWriter {
    /// Writes until it is told to stop, and then once more what is left.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), TrainError> {
        loop {
            let stopping = stop.is_cancelled();
            let written = *self.written.borrow();
            let page = self.ledger.lock().unwrap_or_else(PoisonError::into_inner).page(written)?;
            if let Some((object, content)) = page.checkpoint {
                self.store.put_referenced(&object, [content]).await?;
            }
            let mut pause = Duration::ZERO;
            if let Some(manifest) = page.manifest {
                let paths = manifest.training.as_ref().map_or(0, |training| training.paths.len());
                pause = PAUSE * u32::try_from(paths).unwrap_or(u32::MAX);
                self.sequence = self.store.replace(&manifest, self.sequence).await?;
                self.written.send_replace(page.change);
            }
            for name in &page.obsolete {
                self.store.delete(name).await?;
            }
            if stopping {
                return Ok(());
            }
            let rest = async {
                tokio::time::sleep(pause).await;
                self.changed.notified().await;
            };
            tokio::select! {
                () = rest => {}
                () = stop.cancelled() => {}
            }
        }
    }
}
