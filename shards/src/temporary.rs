//! Temporary files that become finished ones.

use std::path::Path;

use tempfile::NamedTempFile;

use crate::ShardsError;

/// A hidden temporary file in `folder`, named after `path` and removed when it is dropped. Once renamed it can be read
/// by whoever the user's umask lets, as any file.
pub(crate) fn temporary(folder: &Path, path: &Path) -> Result<NamedTempFile, ShardsError> {
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder).map_err(ShardsError::io("create a temporary file in", folder))
}
