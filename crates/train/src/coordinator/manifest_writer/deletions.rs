//! Deletes what the manifest on the disk does not refer to any more.

use std::sync::{Arc, Mutex};

use dipaco_ledger::{DroppedObjects, Ledger};
use dipaco_net::Clock;
use dipaco_store::RunStore;
use tokio::sync::mpsc::Receiver;

use crate::coordinator::error::CoordinatorError;
use crate::host::HostError;

/// Deletes objects beside the writes of the manifest. A write with thousands of answers does not wait for it.
pub(super) struct Deletions {
    ledger: Arc<Mutex<Ledger>>,
    store: RunStore,
    /// Ends the pins of readers that are gone.
    clock: Clock,
    /// Objects to delete when no reader has pinned them any more.
    dropped: DroppedObjects,
}

impl Deletions {
    pub(super) fn new(ledger: Arc<Mutex<Ledger>>, store: RunStore, clock: Clock) -> Self {
        Self { ledger, store, clock, dropped: DroppedObjects::default() }
    }

    /// Deletes what the writes drop, until there are no further writes. Each write is another look at the pins.
    ///
    /// # Errors
    /// When the store fails, and when a panic has left the ledger half changed.
    pub(super) async fn run(mut self, mut writes: Receiver<Vec<String>>) -> Result<(), CoordinatorError> {
        while let Some(names) = writes.recv().await {
            self.dropped.add(names);
            // The writes since the last look.
            while let Ok(names) = writes.try_recv() {
                self.dropped.add(names);
            }
            self.delete_unpinned().await?;
        }
        Ok(())
    }

    /// Deletes the dropped objects, except for those that a reader has pinned.
    async fn delete_unpinned(&mut self) -> Result<(), CoordinatorError> {
        if self.dropped.is_empty() {
            return Ok(());
        }
        // After the manifest: a reader that found its objects in the manifest before has written its pin by now.
        let pinned = self.store.pinned(self.clock.now()).await?;
        let names = self.dropped.take_unpinned(&pinned);
        let names = self.ledger.lock().map_err(|_| HostError::Broken)?.unused(names);
        Ok(self.store.delete_each(names).await?)
    }
}
