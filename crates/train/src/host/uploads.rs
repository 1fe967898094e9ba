//! Results of leases on their way to the coordinator, collected piece by piece.
//!
//! What has arrived of a result lies in memory while there is room, and on the disk otherwise. Whoever stops in the middle
//! keeps no other from the memory: what has waited longest for its next piece makes room.

mod received_pieces;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dipaco_sync::Fence;
use dipaco_topology::PathId;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::TrainError;
use crate::blocking::blocking;
use dipaco_protocol::{ContentDigest, LeaseResult, PIECE_BYTES, Response};
pub use received_pieces::ReceivedContent;
use received_pieces::{Piece, ReceivedPieces};

/// Pieces that are collected in memory at a time: 128 MiB.
const COLLECTED_PIECES: usize = 64;
/// Pieces of results that are read from their files, or came in one piece, at a time until they are stored: 128 MiB. A
/// longer result is alone.
const READ_PIECES: usize = 64;

/// All results that are being brought: at most one for each item that a lease asks for.
pub struct Uploads {
    folder: PathBuf,
    uploads: Mutex<BTreeMap<(PathId, Fence, LeaseResult), Arc<Upload>>>,
    /// Room for each of [`COLLECTED_PIECES`].
    collected: Arc<Semaphore>,
    /// The longest result that is collected in memory, in bytes.
    longest: u64,
    /// Room for each of [`READ_PIECES`].
    read: Arc<Semaphore>,
    /// Pieces that have been put to others.
    pieces: AtomicU64,
}

/// One result.
struct Upload {
    item: LeaseResult,
    whole: ContentDigest,
    progress: Arc<tokio::sync::Mutex<UploadProgress>>,
}

/// How far a result is.
pub(crate) struct UploadProgress {
    held: ReceivedPieces,
    /// Where the pieces begin that have not arrived.
    missing: BTreeSet<u64>,
    /// The number of the last piece among those of all results.
    last: u64,
    /// What the last piece was answered, and what repetitions are answered too.
    answer: Option<Response>,
}

/// What became of a piece.
pub enum PieceOutcome {
    /// It is answered.
    Answer(Response),
    /// With it the result is whole.
    Complete(CompleteUpload),
}

/// A result of which every piece has arrived. Others that bring a piece of it wait for its answer.
pub struct CompleteUpload {
    progress: OwnedMutexGuard<UploadProgress>,
    content: ReceivedContent,
}

impl Uploads {
    /// What does not fit into memory is collected in unnamed files on the disk of `folder`.
    pub fn new(folder: PathBuf) -> Self {
        Self::with_room(folder, COLLECTED_PIECES)
    }

    fn with_room(folder: PathBuf, collected: usize) -> Self {
        let longest = collected as u64 * PIECE_BYTES;
        let [collected, read] = [collected, READ_PIECES].map(|pieces| Arc::new(Semaphore::new(pieces)));
        let pieces = AtomicU64::new(0);
        Self { folder, uploads: Mutex::default(), collected, longest, read, pieces }
    }

    fn uploads(&self) -> MutexGuard<'_, BTreeMap<(PathId, Fence, LeaseResult), Arc<Upload>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something of an item has arrived.
    pub fn knows(&self, path: PathId, fence: Fence, item: LeaseResult) -> bool {
        self.uploads().contains_key(&(path, fence, item.without_tokens()))
    }

    /// The result that a piece belongs to. One with another content under the same name takes the place of the first: a
    /// lease holds one file for each item that it asks for.
    fn of(&self, path: PathId, fence: Fence, item: LeaseResult, whole: ContentDigest) -> Arc<Upload> {
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
    pub async fn take(
        &self,
        (path, fence): (PathId, Fence),
        item: LeaseResult,
        whole: ContentDigest,
        offset: u64,
        piece: Bytes,
    ) -> Result<PieceOutcome, TrainError> {
        let found = piece.len() as u64;
        let expected = whole.piece(offset);
        if expected != Some(found) {
            let reason = format!(
                "{} of {} bytes has no piece of {found} bytes at {offset}: pieces have {PIECE_BYTES} bytes, but for the last",
                item.name(),
                whole.bytes
            );
            return Ok(PieceOutcome::Answer(Response::Refused { reason }));
        }
        let upload = self.of(path, fence, item, whole);
        let mut progress = upload.progress.clone().lock_owned().await;
        if let Some(answer) = &progress.answer {
            return Ok(PieceOutcome::Answer(answer.clone()));
        }
        let bytes = upload.whole.bytes;
        if bytes == found {
            let piece = Piece::new(piece, self.room_to_read(1).await?);
            let content = blocking(move || ReceivedContent::alone(piece)).await?;
            return Ok(PieceOutcome::Complete(CompleteUpload { progress, content }));
        }
        if progress.missing.contains(&offset) {
            progress = self.put(progress, bytes, offset, piece).await?;
        }
        if progress.missing.is_empty() {
            return Ok(PieceOutcome::Complete(self.complete(progress, bytes).await?));
        }
        Ok(PieceOutcome::Answer(Response::PieceStored))
    }

    /// Puts a piece to what has arrived. As everything here, it may be given up at any point: its connection may break.
    async fn put(
        &self,
        mut progress: OwnedMutexGuard<UploadProgress>,
        bytes: u64,
        offset: u64,
        piece: Bytes,
    ) -> Result<OwnedMutexGuard<UploadProgress>, TrainError> {
        progress.last = self.pieces.fetch_add(1, Ordering::Relaxed);
        if bytes <= self.longest
            && !progress.held.is_in_file()
            && let Some(room) = self.room().await?
        {
            // Hashing a piece takes less than what brought it here; another thread would not have it at hand.
            progress.held.put_in_memory(offset, Piece::new(piece, room));
            progress.missing.remove(&offset);
            return Ok(progress);
        }
        let folder = self.folder.clone();
        blocking(move || {
            progress.held.put_in_file(&folder, offset, &piece)?;
            progress.missing.remove(&offset);
            Ok(progress)
        })
        .await?
    }

    /// Room for a piece, which results make that wait for theirs; `None` when those that have it are all moving.
    async fn room(&self) -> Result<Option<OwnedSemaphorePermit>, TrainError> {
        loop {
            if let Ok(room) = self.collected.clone().try_acquire_owned() {
                return Ok(Some(room));
            }
            let Some(mut waiting) = self.waiting_longest() else { return Ok(None) };
            let folder = self.folder.clone();
            blocking(move || waiting.held.file(&folder).map(drop)).await??;
        }
    }

    /// Brings into memory what is whole. It stays where it is until the result is answered.
    async fn complete(
        &self,
        mut progress: OwnedMutexGuard<UploadProgress>,
        bytes: u64,
    ) -> Result<CompleteUpload, TrainError> {
        if let Some(content) = progress.held.content() {
            return Ok(CompleteUpload { progress, content });
        }
        let room = self.room_to_read(bytes.div_ceil(PIECE_BYTES)).await?;
        let folder = self.folder.clone();
        blocking(move || {
            let content = progress.held.read(&folder, bytes, room)?;
            Ok(CompleteUpload { progress, content })
        })
        .await?
    }

    /// Waits for room for pieces that are not collected in memory.
    async fn room_to_read(&self, pieces: u64) -> Result<OwnedSemaphorePermit, TrainError> {
        let pieces = u32::try_from(pieces.min(READ_PIECES as u64)).unwrap_or(u32::MAX);
        self.read.clone().acquire_many_owned(pieces).await.map_err(|_| TrainError::Cancelled)
    }

    /// Of the results in memory that are not just being put to, the one that has waited longest for a piece.
    fn waiting_longest(&self) -> Option<OwnedMutexGuard<UploadProgress>> {
        let uploads = self.uploads();
        let idle = uploads.values().filter_map(|upload| upload.progress.clone().try_lock_owned().ok());
        idle.filter(|progress| progress.held.takes_room()).min_by_key(|progress| progress.last)
    }

    /// Drops what belongs to leases that are over.
    pub fn retain(&self, is_out: impl Fn(PathId, Fence) -> bool) {
        self.uploads().retain(|&(path, fence, _), _| is_out(path, fence));
    }
}

impl Upload {
    fn new(item: LeaseResult, whole: ContentDigest) -> Self {
        // The length is one that the item may have, so this set is about as long as the model's files are large.
        let missing =
            (0..).step_by(PIECE_BYTES as usize).take_while(|&at| whole.piece(at).is_some()).collect();
        let progress = UploadProgress { held: ReceivedPieces::default(), missing, last: 0, answer: None };
        Self { item, whole, progress: Arc::new(tokio::sync::Mutex::new(progress)) }
    }
}

impl CompleteUpload {
    /// The result.
    pub fn content(&self) -> ReceivedContent {
        self.content.clone()
    }

    /// Says what everyone is answered who brings a piece of it from now on.
    pub fn answer(&mut self, answer: Response) {
        self.progress.answer = Some(answer);
        self.progress.held = ReceivedPieces::default();
    }
}

#[cfg(test)]
mod tests;
