//! Reading an object without holding it in memory.

use std::fmt;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use crate::transfer::{LOCAL_PARTS, PARTS};
use crate::{ObjectRef, RunStore, StoreError};

/// Most memory of an object in bytes while it is read with [`RunStore::parts`].
pub const PARTS_IN_MEMORY: usize = PARTS.bytes * PARTS.ahead;

/// The content of an object, part by part. Nobody may rely on a part before [`ObjectParts::next`] has returned `None`.
pub struct ObjectParts<'a> {
    store: &'a RunStore,
    reference: &'a ObjectRef,
    parts: BoxStream<'a, Result<Bytes, StoreError>>,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl fmt::Debug for ObjectParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectParts").field("reference", &self.reference).finish_non_exhaustive()
    }
}

impl<'a> ObjectParts<'a> {
    pub(crate) fn new(store: &'a RunStore, reference: &'a ObjectRef) -> Self {
        let parts = if store.is_remote() { PARTS } else { LOCAL_PARTS };
        let parts = store.read_parts(reference, 0..reference.bytes, parts).boxed();
        Self { store, reference, parts, hasher: blake3::Hasher::new(), bytes: 0 }
    }

    /// The next part; `None` when all parts have come and are the object.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Cut`] and [`StoreError::Damaged`], the last of them at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        if let Some(part) = self.parts.try_next().await? {
            self.bytes += part.len() as u64;
            self.hasher.update(&part);
            return Ok(Some(part));
        }
        let hash = self.hasher.finalize().to_hex().to_string();
        if hash != self.reference.hash || self.bytes != self.reference.bytes {
            return Err(self.store.damaged(self.reference, hash, self.bytes));
        }
        Ok(None)
    }

    /// Gives each part to `take` until it fails. The rest is read for its hash, because damage to the object explains the failure
    /// best. Returns the failure of `take`.
    ///
    /// # Errors
    /// As [`ObjectParts::next`].
    pub async fn read<E>(
        mut self,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<(), E>, StoreError> {
        let mut read = Ok(());
        while let Some(part) = self.next().await? {
            if read.is_ok() {
                read = take(&part);
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_object_comes_in_small_parts_and_damage_is_an_error_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::create(folder.path().to_str().unwrap()).unwrap();
        let content: Vec<u8> = (0..3 * LOCAL_PARTS.bytes + 5).map(|at| (at % 251) as u8).collect();
        let whole = store.put("modules/0", content.clone().into()).await.unwrap();
        let (mut found, mut parts) = (Vec::new(), store.parts(&whole));
        while let Some(part) = parts.next().await.unwrap() {
            assert!(part.len() <= LOCAL_PARTS.bytes);
            found.extend_from_slice(&part);
        }
        assert!(found == content);

        let empty = store.put("modules/empty", Bytes::new()).await.unwrap();
        store.verify(&empty).await.unwrap();
        store.delete(&empty.name).await.unwrap();
        assert!(matches!(store.verify(&empty).await, Err(StoreError::Missing { .. })));

        // One bit of the last part.
        let mut damaged = content;
        *damaged.last_mut().unwrap() ^= 1;
        std::fs::write(folder.path().join("modules/0"), damaged).unwrap();
        let mut parts = store.parts(&whole);
        for _ in 0..4 {
            assert!(parts.next().await.unwrap().is_some());
        }
        let error = parts.next().await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
}
