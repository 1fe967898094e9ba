//! Leftovers of processes that were killed while they wrote into a local directory.

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use crate::{RunStore, StoreError};

impl RunStore {
    /// Removes unfinished writes (`NAME#NUMBER`) and empty folders that have not changed since `before`. Returns the number
    /// of removed files. Does nothing in a store that is not a local directory.
    ///
    /// # Errors
    /// [`StoreError::Leftovers`] if the directory can't be read, or a file can't be removed.
    pub async fn sweep(&self, before: SystemTime) -> Result<u64, StoreError> {
        let Some(folder) = self.folder() else { return Ok(0) };
        let folder = folder.path.clone();
        let swept = tokio::task::spawn_blocking(move || sweep_folder(&folder, before)).await;
        let swept = swept.map_err(io::Error::other).and_then(|swept| swept);
        swept.map_err(|cause| StoreError::Leftovers { store: self.address().to_owned(), cause })
    }
}

fn sweep_folder(folder: &Path, before: SystemTime) -> io::Result<u64> {
    let mut removed = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // Finished or removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let old = metadata.modified()? < before;
        if metadata.is_dir() {
            removed += sweep_folder(&entry.path(), before)?;
            if old {
                // Fails for a folder that is not empty, and may fail for no other reason that matters.
                let _ = fs::remove_dir(entry.path());
            }
        } else if old && is_unfinished(&entry.file_name().to_string_lossy()) {
            match fs::remove_file(entry.path()) {
                Ok(()) => removed += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(removed)
}

/// The object store and [`Folder`](crate::folder::Folder) write `NAME#NUMBER`, which then gets its name.
fn is_unfinished(name: &str) -> bool {
    name.rsplit_once('#')
        .is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}
