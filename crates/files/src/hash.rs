//! BLAKE3 hashes in hexadecimal.

use std::fs::File;
use std::path::Path;

use crate::FileError;

/// BLAKE3 of `bytes` in hexadecimal: 64 lower-case digits.
#[must_use]
pub fn content_hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// [`content_hash`] of a file's content, read in blocks, so memory does not grow with the file.
///
/// # Errors
/// The file cannot be opened or read.
pub fn file_hash(path: &Path) -> Result<String, FileError> {
    let file = File::open(path).map_err(FileError::new("open", path))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file).map_err(FileError::new("read", path))?;
    Ok(hasher.finalize().to_hex().to_string())
}
