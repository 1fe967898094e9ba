//! Publishing files: each file is whole or absent, and stays so after a crash or a power failure.
//!
//! [`publish`] writes bytes, [`PendingFile`] takes content piece by piece or lends its path to a library such as HDF5.
//! Both follow the same order: write a temporary file in the folder of the destination, sync the file, rename it, sync
//! the folder. Readers therefore see either the old file or the complete new one. [`open_to_lock`] opens a file for a lock.
//! [`remove_unfinished`] removes what killed processes left.
//!
//! ```
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("record.json");
//! dipaco_files::publish(&path, b"{}")?;
//! assert_eq!(dipaco_files::file_hash(&path)?, dipaco_files::content_hash(b"{}"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod hash;
mod leftovers;
mod lock;
mod pending;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

pub use error::FileError;
pub use hash::{content_hash, file_hash};
pub use leftovers::{LEFTOVER, remove_unfinished};
pub use lock::open_to_lock;
pub use pending::PendingFile;

/// Publishes `bytes` as the file `path`, replacing an earlier file. The folder must exist. The umask decides who may read
/// the file.
///
/// # Errors
/// The temporary file cannot be created, written, synced or renamed, or the folder cannot be synced.
pub fn publish(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    write_and_publish(PendingFile::create(path)?, bytes)
}

/// [`publish`] for secrets: on Unix only the owner may read and write the file (mode 0600), whatever the umask.
///
/// # Errors
/// As [`publish`].
pub fn publish_private(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    write_and_publish(PendingFile::create_private(path)?, bytes)
}

/// [`publish_private`] where `path` has no file yet. Returns false, and writes nothing, if it has one.
///
/// # Errors
/// As [`publish`].
pub fn publish_private_new(path: &Path, bytes: &[u8]) -> Result<bool, FileError> {
    written(PendingFile::create_private(path)?, bytes)?.publish_new()
}

/// Opens a file from elsewhere to read it. A link in a downloaded folder may lead to a device or a pipe, which never ends:
/// such a file is refused.
///
/// # Errors
/// The file can't be opened, or is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    File::open(path)
}

/// Reads a file from elsewhere, which has at most `largest` bytes; `None` if it is longer. A sparse file of any length takes no
/// space on a disk, so its author can fill the memory of whoever reads it.
///
/// # Errors
/// As [`open_regular`], and when the file can't be read.
pub fn read_regular(path: &Path, largest: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    // One byte more than allowed, to see that the file goes on. Its length in the file system may change meanwhile.
    open_regular(path)?.take(largest.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= largest).then_some(bytes))
}

fn write_and_publish(file: PendingFile, bytes: &[u8]) -> Result<(), FileError> {
    written(file, bytes)?.publish()
}

fn written(mut file: PendingFile, bytes: &[u8]) -> Result<PendingFile, FileError> {
    file.write_all(bytes).map_err(FileError::new("write", file.destination()))?;
    Ok(file)
}
