//! Writing small files atomically, and opening files for locks.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

pub use dipaco_files::open_to_lock;
use dipaco_files::{FileError, PendingFile};

use crate::error::PipelineError;

/// Writes a secret whole or not at all, and creates its folder. Only the owner may read the file.
///
/// # Errors
/// [`PipelineError::Io`] and [`PipelineError::File`].
pub fn write_private(file: &Path, bytes: &[u8]) -> Result<(), PipelineError> {
    create_folder_of(file)?;
    Ok(dipaco_files::publish_private(file, bytes)?)
}

/// Writes a file whole or not at all, and creates its folder.
///
/// # Errors
/// [`PipelineError::Io`] and [`PipelineError::File`].
pub fn write(file: &Path, bytes: &[u8]) -> Result<(), PipelineError> {
    create_folder_of(file)?;
    Ok(dipaco_files::publish(file, bytes)?)
}

/// Writes a large file whole or not at all, piece by piece, and creates its folder.
///
/// # Errors
/// [`PipelineError::Io`], [`PipelineError::File`], and the errors of `write`.
pub fn write_large<E: Into<PipelineError>>(
    file: &Path,
    write: impl FnOnce(&mut BufWriter<&mut File>) -> Result<(), E>,
) -> Result<(), PipelineError> {
    create_folder_of(file)?;
    let mut pending = PendingFile::create(file)?;
    let mut out = BufWriter::new(pending.file_mut());
    write(&mut out).map_err(Into::into)?;
    let flushed = out.flush();
    drop(out);
    flushed.map_err(FileError::new("write", file))?;
    Ok(pending.publish()?)
}

/// Writes a secret whole or not at all where there is no file of its name, and creates its folder. Returns false if there is
/// one. Only the owner may read the file.
///
/// # Errors
/// [`PipelineError::Io`] and [`PipelineError::File`].
pub fn create_private(file: &Path, bytes: &[u8]) -> Result<bool, PipelineError> {
    create_folder_of(file)?;
    Ok(dipaco_files::publish_private_new(file, bytes)?)
}

/// Creates a folder that only its owner may enter, and makes an existing folder such a folder.
///
/// # Errors
/// [`PipelineError::Io`].
pub fn create_private_folder(folder: &Path) -> Result<(), PipelineError> {
    let failed = |source| PipelineError::Io { action: "create", path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(failed)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}

fn create_folder_of(file: &Path) -> Result<(), PipelineError> {
    let Some(folder) = file.parent() else { return Ok(()) };
    let failed = |source| PipelineError::Io { action: "create", path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(failed)
}
