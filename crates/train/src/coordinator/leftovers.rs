//! Unfinished writes of processes that are gone.

use std::convert::Infallible;
use std::time::Duration;

use dipaco_files::LEFTOVER;
use dipaco_net::Clock;
use dipaco_store::RunStore;

/// Removes the unfinished writes of processes that are gone from a store.
pub(super) struct Leftovers {
    pub(super) store: RunStore,
    pub(super) clock: Clock,
    /// Time between two looks for them.
    pub(super) every: Duration,
}

impl Leftovers {
    /// Removes what is there now. No run needs that, so a failure is only told.
    pub(super) async fn remove(&self) {
        match self.store.sweep(self.clock.now() - LEFTOVER).await {
            Ok(0) => {}
            Ok(leftovers) => {
                tracing::info!(
                    leftovers,
                    "unfinished writes of earlier processes were removed from the store"
                );
            }
            Err(error) => tracing::warn!(%error, "the store keeps unfinished writes of earlier processes"),
        }
    }

    /// Removes leftovers from time to time: synchronizers that are killed leave some during the training.
    pub(super) async fn keep_removing(&self) -> Infallible {
        loop {
            tokio::time::sleep(self.every).await;
            self.remove().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[tokio::test]
    async fn what_a_killed_process_leaves_during_the_training_is_removed_when_it_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::create(&folder.path().to_string_lossy()).unwrap();
        let unfinished = folder.path().join("object#1");
        std::fs::write(&unfinished, "half").unwrap();
        let at = |age: Duration| {
            let now = SystemTime::now() + age;
            Leftovers { store: store.clone(), clock: Clock::from_fn(move || now), every: Duration::ZERO }
        };
        at(LEFTOVER / 2).remove().await;
        assert!(unfinished.exists());
        let old = at(2 * LEFTOVER);
        let gone = async {
            while unfinished.exists() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            never = old.keep_removing() => match never {},
            () = gone => {}
        }
    }
}
