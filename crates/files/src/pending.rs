//! Files on their way to publication.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::FileError;

/// A temporary file beside its destination. [`Self::publish`] gives it the destination's name; dropping it removes it, so
/// a failed writer leaves nothing behind.
///
/// The temporary file is hidden and named after the destination (`.NAME….tmp`), so a file that a killed process leaves
/// behind shows its origin. It also serves as scratch space that needs the disk of the destination and is never
/// published.
#[derive(Debug)]
pub struct PendingFile {
    temporary: NamedTempFile,
    destination: PathBuf,
    folder: PathBuf,
}

/// Mode of a file that the umask restricts.
const PUBLIC: u32 = 0o666;
/// Mode of a file that only its owner may read.
const PRIVATE: u32 = 0o600;

impl PendingFile {
    /// Creates a temporary file in the folder of `destination`, which must exist. The umask decides who may read the
    /// published file.
    ///
    /// # Errors
    /// The temporary file cannot be created.
    pub fn create(destination: &Path) -> Result<Self, FileError> {
        Self::with_mode(destination, PUBLIC)
    }

    /// [`Self::create`] for secrets: on Unix only the owner may read and write the file, whatever the umask.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_private(destination: &Path) -> Result<Self, FileError> {
        Self::with_mode(destination, PRIVATE)
    }

    fn with_mode(destination: &Path, mode: u32) -> Result<Self, FileError> {
        let folder = match destination.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut prefix = OsString::from(".");
        prefix.push(destination.file_name().unwrap_or_default());
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".tmp");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(mode));
        }
        #[cfg(not(unix))]
        let _ = mode;
        let temporary =
            builder.tempfile_in(&folder).map_err(FileError::new("create a temporary file in", &folder))?;
        Ok(Self { temporary, destination: destination.to_owned(), folder })
    }

    /// Path of the temporary file, for libraries that open files by path.
    #[must_use]
    pub fn temporary_path(&self) -> &Path {
        self.temporary.path()
    }

    /// Path that [`Self::publish`] gives the file.
    #[must_use]
    pub fn destination(&self) -> &Path {
        &self.destination
    }

    /// The open temporary file.
    #[must_use]
    pub fn file(&self) -> &File {
        self.temporary.as_file()
    }

    /// The open temporary file, for writing.
    pub fn file_mut(&mut self) -> &mut File {
        self.temporary.as_file_mut()
    }

    /// Syncs the file, renames it to its destination, replacing an earlier file, and syncs the folder.
    ///
    /// # Errors
    /// The disk fails, or the destination cannot be replaced. The temporary file is gone then.
    pub fn publish(self) -> Result<(), FileError> {
        self.sync_file()?;
        let Self { temporary, destination, folder } = self;
        temporary
            .persist(&destination)
            .map_err(|error| FileError::new("rename a temporary file to", &destination)(error.error))?;
        sync_folder(&folder)
    }

    /// [`Self::publish`] where the destination has no file yet. Returns false, and publishes nothing, if it has one.
    ///
    /// # Errors
    /// The disk fails. The temporary file is gone then.
    pub fn publish_new(self) -> Result<bool, FileError> {
        self.sync_file()?;
        let Self { temporary, destination, folder } = self;
        match temporary.persist_noclobber(&destination) {
            Ok(_) => sync_folder(&folder).map(|()| true),
            Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(FileError::new("rename a temporary file to", &destination)(error.error)),
        }
    }

    /// Syncs the content. Before the renaming: otherwise a power failure can leave the new name on an empty file.
    fn sync_file(&self) -> Result<(), FileError> {
        self.temporary.as_file().sync_all().map_err(FileError::new("write", &self.destination))
    }
}

/// Makes the names in a folder durable.
fn sync_folder(folder: &Path) -> Result<(), FileError> {
    // The new name is an entry of the folder and is durable only once the folder is. Other systems cannot open
    // folders as files.
    #[cfg(unix)]
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(FileError::new("sync", folder))?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

impl Write for PendingFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.temporary.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.temporary.as_file_mut().flush()
    }
}

impl Seek for PendingFile {
    fn seek(&mut self, position: SeekFrom) -> std::io::Result<u64> {
        self.temporary.as_file_mut().seek(position)
    }
}
