//! Patience with a store that fails for a while.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{RunStore, StoreError};

/// Hears of a failure, and says whether another attempt follows.
type GoesOn = dyn Fn(&dyn Error) -> bool + Send + Sync;

/// How long an operation is repeated while it fails. Without patience, as by default, the first failure counts.
#[derive(Clone)]
pub struct Patience {
    pause: Duration,
    limit: Duration,
    goes_on: Arc<GoesOn>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { pause: Duration::ZERO, limit: Duration::ZERO, goes_on: Arc::new(|_| false) }
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pause, limit, goes_on: _ } = self;
        f.debug_struct("Patience").field("pause", pause).field("limit", limit).finish_non_exhaustive()
    }
}

impl Patience {
    /// Repeats an operation `pause` after each failure until `limit` is over. `goes_on` hears of each failure that another
    /// attempt may follow, and ends the patience with `false`.
    #[must_use]
    pub fn new(
        pause: Duration,
        limit: Duration,
        goes_on: impl Fn(&dyn Error) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { pause, limit, goes_on: Arc::new(goes_on) }
    }

    /// Repeats `attempt` until it succeeds or the patience ends. An attempt must do no harm where an earlier one has
    /// succeeded in secret.
    ///
    /// # Errors
    /// The error of the last attempt. An error that does not pass by itself, as `may_pass` tells, ends the attempts at once.
    pub async fn repeat<T, E, F>(
        &self,
        attempt: impl Fn() -> F,
        may_pass: impl Fn(&E) -> bool,
    ) -> Result<T, E>
    where
        E: Error + 'static,
        F: Future<Output = Result<T, E>>,
    {
        let begun = Instant::now();
        loop {
            match attempt().await {
                Err(error) if may_pass(&error) && begun.elapsed() < self.limit && (self.goes_on)(&error) => {}
                outcome => return outcome,
            }
            tokio::time::sleep(self.pause).await;
        }
    }
}

impl RunStore {
    /// This store, with patience: each read and each write is repeated while the disk, the network or the remote store
    /// fails. Damage and absence are errors at once.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// The patience of this store, for the other files of its run.
    #[must_use]
    pub fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Repeats a part of an operation with the patience of this store.
    pub(crate) async fn patiently<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        self.patience.repeat(attempt, StoreError::may_pass).await
    }
}

#[cfg(test)]
mod tests;
