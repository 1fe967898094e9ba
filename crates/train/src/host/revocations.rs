//! Tokens that may not be used any more.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::TrainError;

/// The names of tokens that have been revoked: a file of one name a line, looked at for every question and read when it
/// has changed, so that a revocation holds from the next request on.
#[derive(Clone, Debug, Default)]
pub struct Revocations {
    file: Option<PathBuf>,
    /// What was read last.
    known: Arc<Mutex<Known>>,
}

/// The names as they were in the file that looked like this; none when there was no file.
#[derive(Debug, Default)]
struct Known {
    look: Option<Look>,
    names: BTreeSet<String>,
}

/// What tells one state of a file from another: each revocation makes a new file.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    bytes: u64,
    modified: Option<std::time::SystemTime>,
    #[cfg(unix)]
    inode: u64,
}

impl Look {
    fn of(metadata: &Metadata) -> Self {
        Self {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
            #[cfg(unix)]
            inode: std::os::unix::fs::MetadataExt::ino(metadata),
        }
    }
}

impl Revocations {
    /// No token is ever revoked.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Those that are named in a file, which need not be there yet.
    #[must_use]
    pub fn of(file: &Path) -> Self {
        Self { file: Some(file.to_owned()), known: Arc::default() }
    }

    /// All names.
    ///
    /// # Errors
    /// When the file is there and can't be read: nobody is let in by a list that is not known.
    pub fn names(&self) -> Result<BTreeSet<String>, TrainError> {
        let Some(file) = &self.file else { return Ok(BTreeSet::new()) };
        match std::fs::read_to_string(file) {
            Ok(text) => {
                Ok(text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect())
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(source) => Err(TrainError::Io { action: "read", file: file.clone(), source }),
        }
    }

    /// Whether a token may not be used any more.
    ///
    /// # Errors
    /// As [`names`](Self::names).
    pub fn hold(&self, token: &str) -> Result<bool, TrainError> {
        let Some(file) = &self.file else { return Ok(false) };
        let look = match std::fs::metadata(file) {
            Ok(metadata) => Some(Look::of(&metadata)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => return Err(TrainError::Io { action: "read", file: file.clone(), source }),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.look != look {
            *known = Known { look, names: self.names()? };
        }
        Ok(known.names.contains(token))
    }

    /// Adds a name. Returns whether it is new.
    ///
    /// # Errors
    /// When the file can't be read or written, or there is none.
    pub fn revoke(&self, name: &str) -> Result<bool, TrainError> {
        let Some(file) = &self.file else { return Ok(false) };
        let mut names = self.names()?;
        if !names.insert(name.to_owned()) {
            return Ok(false);
        }
        let io = |action| move |source| TrainError::Io { action, file: file.clone(), source };
        let folder = file.parent().unwrap_or(Path::new("."));
        let mut temporary = tempfile::NamedTempFile::new_in(folder).map_err(io("create"))?;
        for name in &names {
            writeln!(temporary, "{name}").map_err(io("write"))?;
        }
        temporary.as_file().sync_all().map_err(io("write"))?;
        temporary.persist(file).map_err(|error| io("name")(error.error))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_revoked_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let revocations = Revocations::of(&folder.path().join("revoked"));
        assert!(revocations.names().unwrap().is_empty());
        assert!(!revocations.hold("gpu-3").unwrap());
        assert!(revocations.revoke("gpu-3").unwrap());
        assert!(revocations.hold("gpu-3").unwrap() && !revocations.hold("gpu-1").unwrap());
        assert!(revocations.revoke("gpu-1").unwrap());
        assert!(!revocations.revoke("gpu-3").unwrap());
        assert_eq!(revocations.names().unwrap().into_iter().collect::<Vec<_>>(), ["gpu-1", "gpu-3"]);
        assert!(Revocations::none().names().unwrap().is_empty());
        assert!(!Revocations::none().hold("gpu-3").unwrap());
        assert!(revocations.hold("gpu-1").unwrap() && !revocations.hold("gpu-2").unwrap());
        // A list that can't be read lets nobody in.
        assert!(Revocations::of(folder.path()).names().is_err());
    }
}
