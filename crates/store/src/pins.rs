//! Pins: objects that a reader needs while a training goes on beside it.
//!
//! A reader writes the names of its objects under `readers/`. The writer of the manifest deletes no pinned object. A pin
//! has an end, so a reader that is gone holds nothing for long.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::{RunStore, StoreError, names};

/// The content of a pin.
#[derive(Serialize, Deserialize)]
struct Pin {
    /// End of the pin, in seconds since 1970-01-01 UTC.
    ends: u64,
    /// Names of the objects.
    objects: BTreeSet<String>,
}

impl RunStore {
    /// Keeps objects until `end`, in place of an earlier pin of the same reader.
    ///
    /// An object that was dropped before may be gone. Load the manifest again afterwards: the objects to which it still
    /// refers stay.
    ///
    /// # Errors
    /// [`StoreError::Full`] and [`StoreError::Io`], as for a store that can't be written.
    pub async fn pin(
        &self,
        reader: &str,
        objects: BTreeSet<String>,
        end: SystemTime,
    ) -> Result<(), StoreError> {
        let ends = end.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let name = names::reader(reader);
        let content = serde_json::to_vec(&Pin { ends, objects });
        let content = content.map_err(|error| {
            self.failed("write", &name, object_store::Error::Generic { store: "pins", source: error.into() })
        })?;
        self.put_replacing(&name, [content.into()]).await.map(|_| ())
    }

    /// Ends the pin of a reader.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub async fn unpin(&self, reader: &str) -> Result<(), StoreError> {
        self.delete(&names::reader(reader)).await
    }

    /// The names of all objects that readers need at `now`. Removes pins that have ended.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub async fn pinned(&self, now: SystemTime) -> Result<BTreeSet<String>, StoreError> {
        let mut pinned = BTreeSet::new();
        for pin in self.list(names::READERS).await? {
            let content = match self.read(&pin.name.as_str().into()).await {
                Ok(content) => content,
                // The reader has ended its pin meanwhile.
                Err(StoreError::Missing { .. }) => continue,
                Err(error) => return Err(error),
            };
            match serde_json::from_slice::<Pin>(&content) {
                Ok(Pin { ends, objects }) if is_after(ends, now) => pinned.extend(objects),
                _ => self.delete(&pin.name).await?,
            }
        }
        Ok(pinned)
    }
}

/// True if a time in seconds since 1970-01-01 UTC is later than `now`. A damaged pin may name one that no clock shows.
fn is_after(seconds: u64, now: SystemTime) -> bool {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).is_some_and(|time| time > now)
}
