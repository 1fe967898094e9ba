//! Unfinished writes of processes that are gone.

use std::convert::Infallible;
use std::time::Duration;

use dipaco_net::Clock;
use dipaco_store::{RunStore, StoreError};

/// Age from which on an unfinished write is a leftover of a process that is gone, and time between two looks for them.
const LEFTOVER: Duration = Duration::from_secs(3600);

/// Removes the unfinished writes of processes that are gone from a store.
pub(super) struct Leftovers {
    pub(super) store: RunStore,
    pub(super) clock: Clock,
}

impl Leftovers {
    /// Removes what is there now.
    ///
    /// # Errors
    /// When the store can't be read.
    pub(super) async fn remove(&self) -> Result<(), StoreError> {
        let leftovers = self.store.sweep(self.clock.now() - LEFTOVER).await?;
        if leftovers > 0 {
            tracing::info!(leftovers, "unfinished writes of earlier processes were removed from the store");
        }
        Ok(())
    }

    /// Removes leftovers from time to time: synchronizers that are killed leave some during the training.
    pub(super) async fn keep_removing(&self) -> Infallible {
        loop {
            tokio::time::sleep(LEFTOVER).await;
            if let Err(error) = self.remove().await {
                tracing::warn!(%error, "the store keeps unfinished writes of earlier processes");
            }
        }
    }
}
