//! Unfinished files of processes that are gone.

use std::fs::{self, DirEntry};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::FileError;

/// Age from which on an unfinished file is a leftover of a process that is gone.
pub const LEFTOVER: Duration = Duration::from_secs(3600);

/// Removes the files of a folder whose names `is_unfinished` accepts, if they have not changed since `before`. Returns their
/// number. The folder need not exist, and may hold other files.
///
/// # Errors
/// The folder can't be read, or a file can't be removed.
pub fn remove_unfinished(
    folder: &Path,
    before: SystemTime,
    is_unfinished: impl Fn(&str) -> bool,
) -> Result<u64, FileError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries.map_err(FileError::new("read", folder))?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry.map_err(FileError::new("read", folder))?;
        if !is_unfinished(&entry.file_name().to_string_lossy()) {
            continue;
        }
        match remove_if_older(&entry, before) {
            Ok(older) => removed += u64::from(older),
            // Finished or removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(FileError::new("remove", entry.path())(error)),
        }
    }
    Ok(removed)
}

/// Removes a file if it has not changed since `before`. Returns whether it did.
fn remove_if_older(entry: &DirEntry, before: SystemTime) -> io::Result<bool> {
    let older = entry.metadata()?.modified()? < before;
    if older {
        fs::remove_file(entry.path())?;
    }
    Ok(older)
}
