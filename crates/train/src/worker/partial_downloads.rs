//! Downloads of shards that killed workers have left unfinished.

use std::path::PathBuf;
use std::time::SystemTime;

use dipaco_files::{LEFTOVER, remove_unfinished};

use super::WorkerError;
use crate::blocking::blocking;

/// Removes the unfinished downloads of workers that are gone from a folder of downloaded shards, which need not exist. No
/// worker needs that, so a failure is only told.
pub(super) async fn remove_partial_downloads(cache: PathBuf, now: SystemTime) {
    let removed = blocking(move || remove_unfinished(&cache, now - LEFTOVER, is_partial)).await;
    match removed.map_err(WorkerError::from).and_then(|removed| Ok(removed?)) {
        Ok(0) => {}
        Ok(leftovers) => {
            tracing::info!(leftovers, "unfinished downloads of earlier workers were removed from the cache");
        }
        Err(error) => tracing::warn!(%error, "the cache keeps unfinished downloads of earlier workers"),
    }
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
            std::fs::write(file, "half").unwrap();
        }
        let written = SystemTime::now();
        let left = |files: &[PathBuf]| files.iter().filter(|file| file.exists()).count();
        remove_partial_downloads(folder.path().to_owned(), written + LEFTOVER / 2).await;
        assert_eq!((left(&unfinished), left(&others)), (2, 3), "a download that may still go on");
        remove_partial_downloads(folder.path().to_owned(), written + 2 * LEFTOVER).await;
        assert_eq!((left(&unfinished), left(&others)), (0, 3));
        assert_eq!(remove_unfinished(&place("nothing"), written, is_partial).unwrap(), 0);
    }
}
