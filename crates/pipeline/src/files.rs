//! Writing small files atomically.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::error::PipelineError;

/// Writes a file whole or not at all, and creates its folder. Only the owner may read the file.
///
/// # Errors
/// [`PipelineError::Io`].
pub fn write_private(file: &Path, bytes: &[u8]) -> Result<(), PipelineError> {
    let failed = |source| PipelineError::Io { action: "write", path: file.to_owned(), source };
    let folder = file.parent().unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(folder).map_err(failed)?;
    let mut temporary = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    temporary.write_all(bytes).map_err(failed)?;
    temporary.as_file().sync_all().map_err(failed)?;
    temporary.persist(file).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Writes a file whole or not at all, and creates its folder. Everybody may read the file.
///
/// # Errors
/// [`PipelineError::Io`].
pub fn write(file: &Path, bytes: &[u8]) -> Result<(), PipelineError> {
    write_private(file, bytes)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let failed =
            |source| PipelineError::Io { action: "set the permissions of", path: file.to_owned(), source };
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).map_err(failed)?;
    }
    Ok(())
}
