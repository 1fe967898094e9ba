//! Deletes objects.

use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt};

use crate::store::object_path;
use crate::{RunStore, StoreError};

/// Objects that are deleted at a time. A remote store takes some ten milliseconds for each.
const AT_ONCE: usize = 32;

impl RunStore {
    /// Deletes an object. An absent object is no error, so a caller may repeat a deletion.
    ///
    /// # Errors
    /// [`StoreError::Name`] and [`StoreError::Io`].
    pub async fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.remove(&object_path(name)?).await
    }

    /// Deletes objects as [`Self::delete`] does, some at a time and in any order.
    ///
    /// # Errors
    /// As [`Self::delete`], for the first deletion that fails. Some of the other objects may remain.
    pub async fn delete_each(&self, names: impl IntoIterator<Item = String>) -> Result<(), StoreError> {
        let delete = |name: String| async move { self.delete(&name).await };
        stream::iter(names).map(delete).buffer_unordered(AT_ONCE).try_collect().await
    }

    pub(crate) async fn remove(&self, path: &Path) -> Result<(), StoreError> {
        self.patiently(|| self.remove_once(path)).await
    }

    /// Removes an object without patience.
    pub(crate) async fn remove_once(&self, path: &Path) -> Result<(), StoreError> {
        match self.objects.delete(path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(self.failed("delete", path.as_ref(), source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[tokio::test]
    async fn many_objects_are_deleted_at_a_time() {
        let (store, load) = RunStore::in_memory().counted();
        let names: Vec<String> = (0..2 * AT_ONCE).map(|number| format!("modules/{number}")).collect();
        let others = names.iter().skip(1).cloned();
        store.put_replacing_each(others, &Bytes::from_static(b"old")).await.unwrap();
        // The first is absent.
        store.delete_each(names).await.unwrap();
        assert!(store.list("modules").await.unwrap().is_empty());
        assert_eq!(load.most_deletions(), AT_ONCE);
        let error = store.delete_each(["../else".to_owned()]).await;
        assert!(matches!(error, Err(StoreError::Name { .. })), "{error:?}");
    }
}
