//! Downloads of shards that killed workers have left unfinished.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use dipaco_files::FileError;

use super::WorkerError;
use crate::blocking::blocking;

/// Age from which on an unfinished download is a leftover of a worker that is gone.
const LEFTOVER: Duration = Duration::from_secs(3600);

/// Removes the unfinished downloads of workers that are gone from a folder of downloaded shards, which need not exist. No
/// worker needs that, so a failure is only told.
pub(super) async fn remove_partial_downloads(cache: PathBuf, now: SystemTime) {
    let removed = blocking(move || remove_older(&cache, now - LEFTOVER)).await;
    match removed.map_err(WorkerError::from).and_then(|removed| Ok(removed?)) {
        Ok(0) => {}
        Ok(leftovers) => {
            tracing::info!(leftovers, "unfinished downloads of earlier workers were removed from the cache");
        }
        Err(error) => tracing::warn!(%error, "the cache keeps unfinished downloads of earlier workers"),
    }
}

/// Removes the partial downloads in a folder that have not changed since `before`. Returns their number.
fn remove_older(cache: &Path, before: SystemTime) -> Result<u64, FileError> {
    let entries = match fs::read_dir(cache) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries.map_err(FileError::new("read", cache))?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry.map_err(FileError::new("read", cache))?;
        if !is_partial(&entry.file_name().to_string_lossy()) {
            continue;
        }
        match remove_if_older(&entry, before) {
            Ok(older) => removed += u64::from(older),
            // Finished or removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(FileError::new("remove", entry.path())(error)),
        }
    }
    Ok(removed)
}

/// Removes a file if it has not changed since `before`. Returns whether it did.
fn remove_if_older(entry: &DirEntry, before: SystemTime) -> io::Result<bool> {
    let older = entry.metadata()?.modified()? < before;
    if older {
        fs::remove_file(entry.path())?;
    }
    Ok(older)
}

/// Returns whether a [`PendingFile`](dipaco_files::PendingFile) for `HASH.h5` or `HASH.json` can have this name. The folder may
/// also hold files of the user.
fn is_partial(name: &str) -> bool {
    let inner = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
    inner.and_then(|inner| inner.split_once('.')).is_some_and(|(hash, kind)| {
        let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash && (kind.starts_with("h5") || kind.starts_with("json"))
    })
}

#[cfg(test)]
mod tests {
    use dipaco_files::{PendingFile, content_hash};

    use super::*;

    #[tokio::test]
    async fn unfinished_downloads_are_removed_when_they_are_old() {
        let folder = tempfile::tempdir().unwrap();
        let (hash, place) = (content_hash(b"shard"), |name: &str| folder.path().join(name));
        // A pending file that is dropped leaves its name for a file that stays.
        let name = |kind: &str| {
            let pending = PendingFile::create(&place(&format!("{hash}.{kind}"))).unwrap();
            pending.temporary_path().to_owned()
        };
        let unfinished = ["h5", "json"].map(name);
        let others = [format!("{hash}.h5"), format!("{hash}.json"), ".notes.h5a1B2c3.tmp".to_owned()];
        let others = others.map(|name| place(&name));
        for file in unfinished.iter().chain(&others) {
            fs::write(file, "half").unwrap();
        }
        let written = SystemTime::now();
        let left = |files: &[PathBuf]| files.iter().filter(|file| file.exists()).count();
        remove_partial_downloads(folder.path().to_owned(), written + LEFTOVER / 2).await;
        assert_eq!((left(&unfinished), left(&others)), (2, 3), "a download that may still go on");
        remove_partial_downloads(folder.path().to_owned(), written + 2 * LEFTOVER).await;
        assert_eq!((left(&unfinished), left(&others)), (0, 3));
        assert_eq!(remove_older(&place("nothing"), written).unwrap(), 0);
    }
}
