//! Revoked tokens.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs::{File, Metadata};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dipaco_files::PendingFile;
use tokio::time::{MissedTickBehavior, interval};

use crate::TrainError;
use crate::host::HostError;

/// Time between two looks at the file's metadata.
const LOOK: Duration = Duration::from_secs(1);

/// The names of revoked tokens. The coordinator has them from a file of one name a line: every lookup compares the file's
/// metadata and reads the file when it has changed, so a revocation holds from the next request on. While the file can't be
/// read, the names of its last reading count. A synchronizer has them from the coordinator.
#[derive(Clone, Debug, Default)]
pub struct Revocations {
    /// The file; `None` if the coordinator tells the names.
    file: Option<PathBuf>,
    /// The names of the last reading, or those that were told last.
    known: Arc<Mutex<KnownNames>>,
}

/// The names in one state of the file.
#[derive(Debug, Default)]
struct KnownNames {
    /// State of the file; `None` if there was no file.
    state: Option<FileState>,
    names: BTreeSet<String>,
    /// True once a look at the file has succeeded.
    looked: bool,
    /// True if the last look has failed.
    failing: bool,
}

/// Metadata that tells one state of the file from another: each revocation makes the file longer.
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

impl KnownNames {
    /// Takes the names of the file, which is in this state.
    fn update(&mut self, file: &Path, state: Option<FileState>) -> std::io::Result<()> {
        if self.state != state {
            self.names = read(file)?;
            self.state = state;
        }
        (self.looked, self.failing) = (true, false);
        Ok(())
    }
}

impl Revocations {
    /// A list without a file, empty until [`tell`](Self::tell).
    #[must_use]
    pub fn told() -> Self {
        Self::default()
    }

    /// Replaces the names of a list without a file.
    pub fn tell(&self, names: BTreeSet<String>) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).names = names;
    }

    /// The list in `file`, which need not exist yet.
    #[must_use]
    pub fn of(file: &Path) -> Self {
        Self { file: Some(file.to_owned()), known: Arc::default() }
    }

    /// All names.
    ///
    /// # Errors
    /// When the file exists and can't be read, and never could. An unknown list lets nobody in.
    pub fn names(&self) -> Result<BTreeSet<String>, HostError> {
        Ok(self.current()?.names.clone())
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

    /// The names in the current state of the file, or those that were told last.
    fn current(&self) -> Result<MutexGuard<'_, KnownNames>, HostError> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &self.file else { return Ok(known()) };
        let state = match std::fs::metadata(file) {
            Ok(metadata) => Ok(Some(FileState::of(&metadata))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let mut known = known();
        if let Err(source) = state.and_then(|state| known.update(file, state)) {
            if !known.looked {
                return Err(TrainError::Io { action: "read", file: file.clone(), source }.into());
            }
            if !std::mem::replace(&mut known.failing, true) {
                tracing::warn!(
                    file = %file.display(),
                    error = %source,
                    "the list of revoked tokens can't be read: it counts as it was, and new revocations wait until it can"
                );
            }
        }
        Ok(known)
    }

    /// Adds a name. Returns true if it is new. Processes may add names at the same time: a file takes appended bytes one write
    /// after the other.
    ///
    /// # Errors
    /// When the file can't be read or written.
    pub fn revoke(&self, name: &str) -> Result<bool, HostError> {
        let Some(file) = &self.file else { return Ok(false) };
        if self.contains(name)? {
            return Ok(false);
        }
        PendingFile::create(file).and_then(PendingFile::publish_new).map_err(TrainError::from)?;
        let append = || {
            let mut file = File::options().append(true).open(file)?;
            // A line that a dying process cut off stays a line of its own.
            file.write_all(format!("\n{name}\n").as_bytes())?;
            file.sync_all()
        };
        append().map_err(|source| TrainError::Io { action: "write", file: file.clone(), source })?;
        Ok(true)
    }
}

/// The names in a file; none if it does not exist.
fn read(file: &Path) -> std::io::Result<BTreeSet<String>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

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
        let told = Revocations::told();
        assert!(told.names().unwrap().is_empty() && !told.contains("gpu-3").unwrap());
        told.tell(revocations.names().unwrap());
        assert!(told.contains("gpu-3").unwrap() && !told.contains("gpu-2").unwrap());
        assert!(revocations.contains("gpu-1").unwrap() && !revocations.contains("gpu-2").unwrap());
        // A list that can't be read lets nobody in.
        assert!(Revocations::of(folder.path()).names().is_err());
    }

    #[test]
    fn a_list_that_cannot_be_read_for_a_while_counts_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let (file, kept) = (folder.path().join("revoked"), folder.path().join("kept"));
        let revocations = Revocations::of(&file);
        assert!(revocations.revoke("gpu-3").unwrap() && revocations.contains("gpu-3").unwrap());
        std::fs::rename(&file, &kept).unwrap();
        std::fs::create_dir(&file).unwrap();
        for _ in 0..2 {
            assert!(revocations.contains("gpu-3").unwrap() && !revocations.contains("gpu-1").unwrap());
        }
        assert!(Revocations::of(&file).names().is_err());
        std::fs::remove_dir(&file).unwrap();
        std::fs::rename(&kept, &file).unwrap();
        assert!(Revocations::of(&file).revoke("gpu-1").unwrap());
        assert!(revocations.contains("gpu-3").unwrap() && revocations.contains("gpu-1").unwrap());
    }

    #[test]
    fn revocations_at_the_same_time_all_hold() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("revoked");
        let names: BTreeSet<String> = (0..16).map(|worker| format!("gpu-{worker}")).collect();
        let all = Barrier::new(names.len());
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| {
                    all.wait();
                    assert!(Revocations::of(&file).revoke(name).unwrap());
                });
            }
        });
        assert_eq!(Revocations::of(&file).names().unwrap(), names);
    }

    #[test]
    fn a_name_that_a_dying_process_cut_off_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("revoked");
        std::fs::write(&file, "gpu-1\ngpu").unwrap();
        assert!(Revocations::of(&file).revoke("gpu-2").unwrap());
        let names = Revocations::of(&file).names().unwrap();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["gpu", "gpu-1", "gpu-2"]);
    }
}
