//! Revoked tokens.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::TrainError;
use crate::host::HostError;

/// Time between two looks at the file's metadata.
const LOOK: Duration = Duration::from_secs(1);

/// The names of revoked tokens: a file of one name a line. Every lookup compares the file's metadata and reads the file
/// when it has changed, so a revocation holds from the next request on.
#[derive(Clone, Debug, Default)]
pub struct Revocations {
    file: Option<PathBuf>,
    /// The names of the last reading.
    known: Arc<Mutex<KnownNames>>,
}

/// The names in one state of the file.
#[derive(Debug, Default)]
struct KnownNames {
    /// State of the file; `None` if there was no file.
    state: Option<FileState>,
    names: BTreeSet<String>,
}

/// Metadata that tells one state of the file from another: each revocation makes a new file.
#[derive(Debug, PartialEq, Eq)]
struct FileState {
    bytes: u64,
    modified: Option<std::time::SystemTime>,
    #[cfg(unix)]
    inode: u64,
}

impl FileState {
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
    /// A list that stays empty.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The list in `file`, which need not exist yet.
    #[must_use]
    pub fn of(file: &Path) -> Self {
        Self { file: Some(file.to_owned()), known: Arc::default() }
    }

    /// All names.
    ///
    /// # Errors
    /// When the file exists and can't be read. An unknown list lets nobody in.
    pub fn names(&self) -> Result<BTreeSet<String>, HostError> {
        let Some(file) = &self.file else { return Ok(BTreeSet::new()) };
        match std::fs::read_to_string(file) {
            Ok(text) => {
                Ok(text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect())
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(source) => Err(TrainError::Io { action: "read", file: file.clone(), source }.into()),
        }
    }

    /// Returns whether a token is revoked.
    ///
    /// # Errors
    /// As [`names`](Self::names).
    pub fn contains(&self, token: &str) -> Result<bool, HostError> {
        Ok(self.current()?.names.contains(token))
    }

    /// Calls `revoke` with all names now, and again whenever the file has changed. Ends only with an error.
    pub(crate) async fn watch(&self, revoke: impl Fn(BTreeSet<String>)) -> Result<Infallible, HostError> {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = BTreeSet::new();
        loop {
            looks.tick().await;
            let names = self.current()?.names.clone();
            if names != told {
                revoke(names.clone());
                told = names;
            }
        }
    }

    /// The names in the current state of the file.
    fn current(&self) -> Result<MutexGuard<'_, KnownNames>, HostError> {
        let state = match &self.file {
            None => None,
            Some(file) => match std::fs::metadata(file) {
                Ok(metadata) => Some(FileState::of(&metadata)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(source) => {
                    return Err(TrainError::Io { action: "read", file: file.clone(), source }.into());
                }
            },
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.state != state {
            *known = KnownNames { state, names: self.names()? };
        }
        Ok(known)
    }

    /// Adds a name. Returns true if it is new.
    ///
    /// # Errors
    /// When the file can't be read or written.
    pub fn revoke(&self, name: &str) -> Result<bool, HostError> {
        let Some(file) = &self.file else { return Ok(false) };
        let mut names = self.names()?;
        if !names.insert(name.to_owned()) {
            return Ok(false);
        }
        let text: String = names.iter().map(|name| format!("{name}\n")).collect();
        dipaco_files::publish(file, text.as_bytes()).map_err(TrainError::from)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_name_stays_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let revocations = Revocations::of(&folder.path().join("revoked"));
        assert!(revocations.names().unwrap().is_empty());
        assert!(!revocations.contains("gpu-3").unwrap());
        assert!(revocations.revoke("gpu-3").unwrap());
        assert!(revocations.contains("gpu-3").unwrap() && !revocations.contains("gpu-1").unwrap());
        assert!(revocations.revoke("gpu-1").unwrap());
        assert!(!revocations.revoke("gpu-3").unwrap());
        assert_eq!(revocations.names().unwrap().into_iter().collect::<Vec<_>>(), ["gpu-1", "gpu-3"]);
        assert!(Revocations::none().names().unwrap().is_empty());
        assert!(!Revocations::none().contains("gpu-3").unwrap());
        assert!(revocations.contains("gpu-1").unwrap() && !revocations.contains("gpu-2").unwrap());
        // A list that can't be read lets nobody in.
        assert!(Revocations::of(folder.path()).names().is_err());
    }
}
