//! Reading an object of the store again while that fails.

use std::time::Duration;

use dipaco_store::StoreError;
use tokio::time::Instant;

use crate::coordinator::take_over::is_damage;

/// How long a read that fails is repeated.
#[derive(Clone, Copy, Debug)]
pub(super) struct RepeatedRead {
    /// Time between the end of an attempt and the next one.
    pause: Duration,
    /// Time after which no further attempt begins.
    patience: Duration,
}

impl Default for RepeatedRead {
    /// About as long as a remote store repeats a request by itself. A failure that lasts is for the operator, and ends the
    /// coordinator.
    fn default() -> Self {
        Self { pause: Duration::from_secs(1), patience: Duration::from_secs(300) }
    }
}

impl RepeatedRead {
    /// Reads an object until that succeeds; `None` if `is_current` says that the object is not current any more. `failed`
    /// hears of each failure that is followed by another attempt.
    ///
    /// # Errors
    /// When the object is damaged or missing, and when the patience has ended.
    pub(super) async fn of<T, F>(
        self,
        is_current: impl Fn() -> bool,
        read: impl Fn() -> F,
        failed: impl Fn(&StoreError),
    ) -> Result<Option<T>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let begun = Instant::now();
        while is_current() {
            match read().await {
                Ok(content) => return Ok(Some(content)),
                // Superseded and deleted since the look-up.
                Err(_) if !is_current() => break,
                Err(error) if is_damage(&error) || begun.elapsed() >= self.patience => return Err(error),
                Err(error) => failed(&error),
            }
            tokio::time::sleep(self.pause).await;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::symlink;

    use dipaco_store::{ObjectRef, RunStore};

    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(3600);

    /// A store with an object whose file is broken at first, and mended before attempt number `mended`.
    struct Broken {
        folder: tempfile::TempDir,
        store: RunStore,
        object: ObjectRef,
        attempts: Cell<u32>,
        mended: u32,
    }

    impl Broken {
        async fn new(mended: u32) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = RunStore::create(folder.path().to_str().unwrap()).unwrap();
            let object = store.put("object", "content".into()).await.unwrap();
            std::fs::rename(folder.path().join("object"), folder.path().join("kept")).unwrap();
            // A link to itself can't be opened, also not by root, and it is not absent.
            symlink("object", folder.path().join("object")).unwrap();
            Self { folder, store, object, attempts: Cell::new(0), mended }
        }

        async fn verify(&self) -> Result<(), StoreError> {
            self.attempts.set(self.attempts.get() + 1);
            if self.attempts.get() == self.mended {
                std::fs::rename(self.folder.path().join("kept"), self.folder.path().join("object")).unwrap();
            }
            self.store.verify(&self.object).await
        }

        /// The outcome, and the number of failures that were told.
        async fn read(
            &self,
            patience: Duration,
            is_current: impl Fn() -> bool,
        ) -> (Result<Option<()>, StoreError>, u32) {
            let told = Cell::new(0);
            let repeated = RepeatedRead { pause: AT_ONCE, patience };
            let failed = |_: &StoreError| told.set(told.get() + 1);
            (repeated.of(is_current, || self.verify(), failed).await, told.get())
        }
    }

    #[tokio::test]
    async fn a_read_that_fails_for_a_while_is_repeated() {
        let broken = Broken::new(4).await;
        let (read, told) = broken.read(LONG, || true).await;
        assert_eq!((read.unwrap(), told), (Some(()), 3));
    }

    #[tokio::test]
    async fn a_failure_that_outlasts_the_patience_is_an_error() {
        let broken = Broken::new(u32::MAX).await;
        let (read, told) = broken.read(AT_ONCE, || true).await;
        assert!(matches!(read, Err(StoreError::Io { .. })), "{read:?}");
        assert_eq!((broken.attempts.get(), told), (1, 0));
    }

    #[tokio::test]
    async fn an_object_that_is_not_current_any_more_is_not_waited_for() {
        let broken = Broken::new(u32::MAX).await;
        let (read, told) = broken.read(LONG, || broken.attempts.get() < 3).await;
        assert!(matches!(read, Ok(None)), "{read:?}");
        assert_eq!((broken.attempts.get(), told), (3, 2));
    }

    #[tokio::test]
    async fn a_damaged_or_missing_object_is_an_error_at_once() {
        let broken = Broken::new(1).await;
        std::fs::write(broken.folder.path().join("kept"), "CONTENT").unwrap();
        let (read, told) = broken.read(LONG, || true).await;
        assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
        std::fs::remove_file(broken.folder.path().join("object")).unwrap();
        let (missing, again) = broken.read(LONG, || true).await;
        assert!(matches!(missing, Err(StoreError::Missing { .. })), "{missing:?}");
        assert_eq!((broken.attempts.get(), told + again), (2, 0));
    }
}
