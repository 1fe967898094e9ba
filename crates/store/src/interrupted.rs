//! What writers that were killed leave behind.

use std::path::Path;
use std::time::SystemTime;
use std::{fs, io};

use crate::{RunStore, StoreError};

impl RunStore {
    /// Deletes what writers that were killed left in a directory and that was last written before `before`; returns
    /// how many bytes that freed. Nothing reads such files, but they take up the disk. Cloud stores have none.
    ///
    /// A file that another writer is still filling is younger than its last write: take a `before` that is older than
    /// any write in progress, an hour ago for example.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the directory can't be read or a file can't be deleted.
    pub async fn remove_interrupted(&self, before: SystemTime) -> Result<u64, StoreError> {
        let Some(directory) = self.directory.clone() else { return Ok(0) };
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
            let source = object_store::Error::Generic { store: "directory", source };
            self.failed("remove interrupted writes under", "", source)
        };
        match tokio::task::spawn_blocking(move || remove(&directory, before)).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(error)) => Err(failed(error.into())),
            Err(error) => Err(failed(error.into())),
        }
    }
}

fn remove(directory: &Path, before: SystemTime) -> io::Result<u64> {
    let mut freed = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // The type of a link is not that of its target: links are not followed.
        let kind = entry.file_type()?;
        if kind.is_dir() {
            freed += remove(&entry.path(), before)?;
        } else if kind.is_file() && is_staged(&entry.file_name().to_string_lossy()) {
            let metadata = entry.metadata()?;
            if metadata.modified()? < before {
                fs::remove_file(entry.path())?;
                freed += metadata.len();
            }
        }
    }
    Ok(freed)
}

/// object_store writes a file as `<name>#<number>` until it is complete.
fn is_staged(file_name: &str) -> bool {
    let number = file_name.rsplit_once('#').map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}
