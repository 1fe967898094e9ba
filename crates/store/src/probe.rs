//! Finds stores that can't hold a run.

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, PutMode, PutOptions};

use crate::unique::unique;
use crate::{RunStore, StoreError};

/// Prefix of the objects of probes.
const PROBES: &str = "probes";

impl RunStore {
    /// Checks that a remote store can hold a run: it takes these credentials, lists, reads, writes and deletes, and
    /// refuses to create an object that exists. Without the last, two coordinators could overwrite each other's manifest.
    ///
    /// Does nothing for a directory. A store that refuses most but not all of simultaneous creations passes.
    ///
    /// # Errors
    /// [`StoreError::Unconditional`] if the store replaces an existing object, and [`StoreError::Remote`] with the cause
    /// if the store can't be used.
    pub async fn check_writable(&self) -> Result<(), StoreError> {
        if !self.is_remote() {
            return Ok(());
        }
        let name = format!("{PROBES}/{}", unique());
        let path = Path::from(name.as_str());
        self.create_exclusive(&path, Bytes::from_static(b"first").into()).await?;
        self.list_under(Some(&Path::from(PROBES))).await?;
        let second = self.objects.put_opts(&path, "second".into(), PutOptions::from(PutMode::Create)).await;
        let found = self.read(&path).await;
        self.remove(&path).await?;
        let kept = found? == "first";
        match second {
            Err(Error::AlreadyExists { .. }) if kept => Ok(()),
            Ok(_) | Err(Error::AlreadyExists { .. }) => {
                Err(StoreError::Unconditional { store: self.address().to_owned() })
            }
            Err(source) => Err(self.failed("create", &name, source)),
        }
    }
}

pub(crate) fn is_probe(name: &str) -> bool {
    name.split('/').next() == Some(PROBES)
}
