//! The locks that keep trainings and rollbacks of a run apart, and the experiments of a folder.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use dipaco_files::open_to_lock;

use crate::error::PipelineError;
use crate::run_directory::RunDirectory;

/// The lock on a run, or on a folder of experiments. It ends with this value or the process.
#[derive(Debug)]
pub(crate) struct RunLock {
    _file: File,
}

impl RunLock {
    /// Locks a run against a rollback. Several coordinators may hold this lock: the newest takes the run over. On a file
    /// system without locks a training goes on without one, and a rollback is refused.
    ///
    /// # Errors
    /// [`PipelineError::RunBusy`] during a rollback.
    pub(crate) fn for_training(run: &RunDirectory) -> Result<Option<Self>, PipelineError> {
        let busy = "is being taken back: wait until `dipaco rollback` has ended";
        match Self::take(run.lock(), File::try_lock_shared, || run_busy(run, busy)) {
            Err(error @ PipelineError::Io { .. }) => {
                tracing::warn!(%error, "the run is not locked against `dipaco rollback`");
                Ok(None)
            }
            locked => locked.map(Some),
        }
    }

    /// Locks a run against every training on this machine.
    ///
    /// # Errors
    /// [`PipelineError::RunBusy`] during a training, [`PipelineError::Io`] when the file can't be made.
    pub(crate) fn for_rollback(run: &RunDirectory) -> Result<Self, PipelineError> {
        let busy = "is in training: stop `dipaco train` or `dipaco coordinator` first";
        Self::take(run.lock(), File::try_lock, || run_busy(run, busy))
    }

    /// Locks a folder of experiments for this process.
    ///
    /// # Errors
    /// [`PipelineError::FolderBusy`] when another process has it, [`PipelineError::Io`] when the file can't be made or the file
    /// system has no locks.
    pub(crate) fn for_experiments(folder: &Path) -> Result<Self, PipelineError> {
        let busy = || PipelineError::FolderBusy { folder: folder.to_owned() };
        Self::take(folder.join("lock"), File::try_lock, busy)
    }

    fn take(
        path: PathBuf,
        lock: impl Fn(&File) -> Result<(), TryLockError>,
        busy: impl FnOnce() -> PipelineError,
    ) -> Result<Self, PipelineError> {
        let failed = |action| {
            let path = path.clone();
            move |source| PipelineError::Io { action, path, source }
        };
        let file = open_to_lock(&path).map_err(failed("create"))?;
        match lock(&file) {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(busy()),
            Err(TryLockError::Error(source)) => Err(failed("lock")(source)),
        }
    }
}

fn run_busy(run: &RunDirectory, busy: &'static str) -> PipelineError {
    PipelineError::RunBusy { folder: run.root().to_owned(), busy }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{OFlags, fcntl_getfl};

    use super::*;

    #[test]
    fn the_file_of_a_lock_is_open_as_nfs_asks_for() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path());
        let flags = |lock: RunLock| fcntl_getfl(&lock._file).unwrap();
        let shared = RunLock::for_training(&run).unwrap().map(flags).unwrap();
        let exclusive = flags(RunLock::for_rollback(&run).unwrap());
        assert!(
            shared.contains(OFlags::RDWR) && exclusive.contains(OFlags::RDWR),
            "{shared:?} {exclusive:?}"
        );
        let experiments = flags(RunLock::for_experiments(folder.path()).unwrap());
        assert!(experiments.contains(OFlags::RDWR), "{experiments:?}");
    }

    #[test]
    fn a_run_is_taken_back_only_while_nobody_trains_it() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path());
        let (one, other) = (RunLock::for_training(&run).unwrap(), RunLock::for_training(&run).unwrap());
        let busy = RunLock::for_rollback(&run).unwrap_err();
        assert!(busy.to_string().contains("is in training: stop"), "{busy}");
        assert!(one.is_some() && other.is_some());
        drop((one, other));
        let rollback = RunLock::for_rollback(&run).unwrap();
        let busy = RunLock::for_training(&run).unwrap_err();
        assert!(busy.to_string().contains("is being taken back"), "{busy}");
        drop(rollback);
        assert!(RunLock::for_training(&run).unwrap().is_some());
    }

    #[test]
    fn one_process_works_in_a_folder_of_experiments_and_a_lock_that_fails_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let lock = RunLock::for_experiments(folder.path()).unwrap();
        let busy = RunLock::for_experiments(folder.path()).unwrap_err();
        assert!(matches!(busy, PipelineError::FolderBusy { .. }), "{busy}");
        drop(lock);
        let no_locks = |_: &File| Err(TryLockError::Error(std::io::ErrorKind::Unsupported.into()));
        let busy = || PipelineError::FolderBusy { folder: folder.path().to_owned() };
        let failed = RunLock::take(folder.path().join("lock"), no_locks, busy).unwrap_err();
        assert!(matches!(failed, PipelineError::Io { action: "lock", .. }), "{failed}");
    }
}
