//! Files for locks.

use std::fs::File;
use std::io;
use std::path::Path;

/// Opens a file to lock it, and creates it if there is none. Its content stays.
///
/// The file is open for reading and for writing: Linux locks files on NFS as fcntl does, so a shared lock takes a file that can
/// be read, and an exclusive one a file that can be written.
///
/// # Errors
/// The file can't be created or opened in this way.
pub fn open_to_lock(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}
