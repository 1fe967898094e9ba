//! The error of this package.

use std::path::PathBuf;

/// A file that could not be published or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: check that the path exists, its permissions and the free disk space", path.display())]
pub struct FileError {
    /// The action that failed: "write", "rename" ….
    pub action: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// The operating system's error.
    #[source]
    pub source: std::io::Error,
}

impl FileError {
    /// Adds the action and the path to an error of the operating system, for use with `map_err`.
    pub fn new(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self { action, path, source }
    }
}
