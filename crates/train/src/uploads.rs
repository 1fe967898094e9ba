//! Results of leases on their way to the coordinator, collected piece by piece.
//!
//! What has arrived of a result lies in a file without a name: it takes no memory however slowly the rest comes, and it is
//! gone with the lease, or with the process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dipaco_sync::Fence;
use dipaco_topology::PathId;
use tokio::sync::OwnedMutexGuard;

use crate::TrainError;
use crate::protocol::{Item, PIECE_BYTES, Response, Whole};
use crate::synchronizer::blocking;

/// Results that are looked through and stored at a time, in MiB: a larger one is alone.
const AT_ONCE_MIB: u32 = 256;

/// All results that are being brought: at most one for each item that a lease asks for.
pub(crate) struct Uploads {
    folder: PathBuf,
    uploads: Mutex<BTreeMap<(PathId, Fence, Item), Arc<Upload>>>,
    /// A place for each MiB of results that are whole and in memory.
    memory: tokio::sync::Semaphore,
}

/// One result.
struct Upload {
    item: Item,
    whole: Whole,
    progress: Arc<tokio::sync::Mutex<Progress>>,
}

/// How far a result is.
pub(crate) struct Progress {
    /// Where the pieces are put; made for the first one.
    file: Option<File>,
    /// Where the pieces begin that have not arrived.
    missing: BTreeSet<u64>,
    /// What the last piece was answered, and what repetitions are answered too.
    answer: Option<Response>,
}

/// What became of a piece.
pub(crate) enum Taken {
    /// It is answered.
    Answer(Response),
    /// With it the result is whole.
    Whole(Complete),
}

/// A result of which every piece has arrived. Others that bring a piece of it wait for its answer.
pub(crate) struct Complete {
    progress: OwnedMutexGuard<Progress>,
    /// The last piece of a result that has no other.
    only: Option<Bytes>,
    bytes: u64,
}

impl Uploads {
    /// Collects in unnamed files on the disk of `folder`.
    pub(crate) fn new(folder: PathBuf) -> Self {
        let memory = tokio::sync::Semaphore::new(AT_ONCE_MIB as usize);
        Self { folder, uploads: Mutex::default(), memory }
    }

    fn uploads(&self) -> MutexGuard<'_, BTreeMap<(PathId, Fence, Item), Arc<Upload>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something of an item has arrived.
    pub(crate) fn knows(&self, path: PathId, fence: Fence, item: Item) -> bool {
        self.uploads().contains_key(&(path, fence, item.without_tokens()))
    }

    /// The result that a piece belongs to. One with another content under the same name takes the place of the first: a
    /// lease holds one file for each item that it asks for.
    fn of(&self, path: PathId, fence: Fence, item: Item, whole: Whole) -> Arc<Upload> {
        let mut uploads = self.uploads();
        let key = (path, fence, item.without_tokens());
        match uploads.get(&key) {
            Some(upload) if upload.item == item && upload.whole == whole => upload.clone(),
            _ => {
                let upload = Arc::new(Upload::new(item, whole));
                uploads.insert(key, upload.clone());
                upload
            }
        }
    }

    /// Keeps a piece. The caller has held the length of the whole against what the item may have.
    ///
    /// # Errors
    /// When the disk fails.
    pub(crate) async fn take(
        &self,
        (path, fence): (PathId, Fence),
        item: Item,
        whole: Whole,
        offset: u64,
        piece: Bytes,
    ) -> Result<Taken, TrainError> {
        let found = piece.len() as u64;
        let expected = whole.piece(offset);
        if expected != Some(found) {
            let reason = format!(
                "{} of {} bytes has no piece of {found} bytes at {offset}: pieces have {PIECE_BYTES} bytes, but for the last",
                item.name(),
                whole.bytes
            );
            return Ok(Taken::Answer(Response::Refused { reason }));
        }
        let upload = self.of(path, fence, item, whole);
        let mut progress = upload.progress.clone().lock_owned().await;
        if let Some(answer) = &progress.answer {
            return Ok(Taken::Answer(answer.clone()));
        }
        let mut only = None;
        if upload.whole.bytes == found {
            progress.missing.clear();
            only = Some(piece);
        } else if progress.missing.contains(&offset) {
            let folder = self.folder.clone();
            progress = blocking(move || progress.put(&folder, offset, &piece).map(|()| progress)).await??;
        }
        if progress.missing.is_empty() {
            return Ok(Taken::Whole(Complete { progress, only, bytes: upload.whole.bytes }));
        }
        Ok(Taken::Answer(Response::Kept))
    }

    /// Waits for memory for a complete result, until it is dropped.
    pub(crate) async fn memory(&self, complete: &Complete) -> Option<tokio::sync::SemaphorePermit<'_>> {
        let mib = u32::try_from(complete.bytes.div_ceil(1 << 20)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        self.memory.acquire_many(mib.min(AT_ONCE_MIB)).await.ok()
    }

    /// Drops what belongs to leases that are over.
    pub(crate) fn retain(&self, is_out: impl Fn(PathId, Fence) -> bool) {
        self.uploads().retain(|&(path, fence, _), _| is_out(path, fence));
    }
}

impl Upload {
    fn new(item: Item, whole: Whole) -> Self {
        // The length is one that the item may have, so this set is about as long as the model's files are large.
        let missing =
            (0..).step_by(PIECE_BYTES as usize).take_while(|&at| whole.piece(at).is_some()).collect();
        let progress = Progress { file: None, missing, answer: None };
        Self { item, whole, progress: Arc::new(tokio::sync::Mutex::new(progress)) }
    }
}

impl Progress {
    fn put(&mut self, folder: &std::path::Path, offset: u64, piece: &[u8]) -> Result<(), TrainError> {
        let io = |action| move |source| TrainError::Io { action, file: folder.join("a result"), source };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile_in(folder).map_err(io("create"))?),
        };
        file.seek(SeekFrom::Start(offset)).map_err(io("write"))?;
        file.write_all(piece).map_err(io("write"))?;
        self.missing.remove(&offset);
        Ok(())
    }
}

impl Complete {
    /// Reads the result.
    ///
    /// # Errors
    /// When the disk fails, or there is no memory for it.
    pub(crate) async fn content(&mut self) -> Result<Bytes, TrainError> {
        if let Some(only) = self.only.take() {
            return Ok(only);
        }
        let Some(mut file) = self.progress.file.take() else { return Ok(Bytes::new()) };
        let bytes = self.bytes;
        blocking(move || {
            let failed =
                |source| TrainError::Io { action: "read", file: "a result that was brought".into(), source };
            let length = usize::try_from(bytes).map_err(|_| TrainError::Memory { bytes })?;
            let mut content = Vec::new();
            content.try_reserve_exact(length).map_err(|_| TrainError::Memory { bytes })?;
            file.seek(SeekFrom::Start(0)).map_err(failed)?;
            file.read_to_end(&mut content).map_err(failed)?;
            Ok(content.into())
        })
        .await?
    }

    /// Says what everyone is answered who brings a piece of it from now on.
    pub(crate) fn answer(&mut self, answer: Response) {
        self.progress.answer = Some(answer);
    }
}

#[cfg(test)]
mod tests;
