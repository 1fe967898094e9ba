//! Checks of objects that workers received with a wrong hash.

use std::collections::BTreeMap;
use std::time::Duration;

use dipaco_store::{ObjectRef, RunStore, StoreError};
use tokio::sync::Mutex;

/// Time for which a sound object is not read again.
const SOUND_FOR: Duration = Duration::from_secs(60);

/// Reads whole objects for their hashes: one at a time, and a sound one at most once a minute. Any number of checks from any number
/// of peers take the store, and the line to it, no more than that.
#[derive(Debug, Default)]
pub(crate) struct ObjectChecks {
    /// The objects found sound within [`SOUND_FOR`], with the time of their check. Locked while an object is read.
    sound: Mutex<BTreeMap<ObjectRef, Duration>>,
}

impl ObjectChecks {
    /// Checks an object of the store. `now` is the time since the start of the process.
    ///
    /// # Errors
    /// As [`RunStore::verify`].
    pub(crate) async fn check(
        &self,
        now: Duration,
        store: &RunStore,
        object: &ObjectRef,
    ) -> Result<(), StoreError> {
        let mut sound = self.sound.lock().await;
        sound.retain(|_, checked| now < *checked + SOUND_FOR);
        if !sound.contains_key(object) {
            store.verify(object).await?;
            sound.insert(object.clone(), now);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn many_checks_read_an_object_once_in_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::create(&folder.path().to_string_lossy()).unwrap();
        let mut objects = Vec::new();
        for name in ["modules/0/0/1", "modules/0/1/1"] {
            objects.push(store.put(name, vec![1; 5 << 20].into()).await.unwrap());
        }
        let (store, alone) = store.counted();
        store.verify(&objects[0]).await.unwrap();
        let (store, together) = store.counted();
        let checks = Arc::new(ObjectChecks::default());
        let mut all = JoinSet::new();
        for asker in 0..64 {
            let (checks, store, object) = (checks.clone(), store.clone(), objects[asker % 2].clone());
            all.spawn(async move { checks.check(Duration::ZERO, &store, &object).await });
        }
        assert!(all.join_all().await.into_iter().all(|found| found.is_ok()));
        assert_eq!(together.most_reads(), alone.most_reads());

        store.delete(&objects[0].name).await.unwrap();
        let [before, after] = [59, 61].map(Duration::from_secs);
        checks.check(before, &store, &objects[0]).await.unwrap();
        let missing = checks.check(after, &store, &objects[0]).await.unwrap_err();
        assert!(matches!(missing, StoreError::Missing { .. }), "{missing}");
        checks.check(after, &store, &objects[1]).await.unwrap();
    }
}
