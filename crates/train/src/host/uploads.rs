//! Uploads of lease results, collected piece by piece.
//!
//! Received pieces lie in memory while there is room, and in a file otherwise. A worker that stops in the middle of an
//! upload does not block the memory for others: the upload that has waited longest for its next piece moves to a file.

mod received_pieces;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dipaco_ledger::ExpectedResult;
use dipaco_sync::{Fence, LeaseClaim, LeaseKey, ProcessId};
use dipaco_topology::PathId;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::TrainError;
use crate::blocking::blocking;
use crate::host::HostError;
use dipaco_protocol::{ContentDigest, LeaseResult, PIECE_BYTES, Response};
pub use received_pieces::ReceivedContent;
use received_pieces::{ReceivedPiece, ReceivedPieces};

/// Number of pieces that are collected in memory: 128 MiB.
const COLLECTED_PIECES: usize = 64;
/// Number of pieces of complete results in memory that were read from a file or arrived as one piece, until their
/// results are stored: 128 MiB. A longer result is read while no other is.
const READ_PIECES: usize = 64;

/// All uploads in progress: at most one for each result that a lease asks for.
pub struct Uploads {
    folder: PathBuf,
    uploads: Mutex<BTreeMap<UploadKey, Arc<Upload>>>,
    /// Permits for [`COLLECTED_PIECES`].
    collected: Arc<Semaphore>,
    /// Longest result that is collected in memory, in bytes.
    longest: u64,
    /// Permits for [`READ_PIECES`].
    read: Arc<Semaphore>,
    /// Number of pieces that have been added to uploads.
    pieces: AtomicU64,
}

/// A piece of an upload.
#[derive(Clone, Debug)]
pub struct UploadedPiece {
    /// The lease and the worker that names it.
    pub claim: LeaseClaim,
    /// The result that is uploaded.
    pub item: LeaseResult,
    /// Announced digest of the complete result.
    pub digest: ContentDigest,
    /// First byte of the piece in the result: a multiple of [`PIECE_BYTES`].
    pub offset: u64,
}

/// The result that an upload is for. Neither its number of tokens nor the lease's secret is part of the key: a secret is
/// never looked up, only compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UploadKey {
    worker: ProcessId,
    path: PathId,
    fence: Fence,
    item: LeaseResult,
}

impl UploadKey {
    fn of(piece: &UploadedPiece) -> Self {
        let LeaseClaim { key: LeaseKey { path, fence, .. }, worker } = piece.claim.clone();
        Self { worker, path, fence, item: piece.item.without_tokens() }
    }
}

/// The decision to take an upload.
#[derive(Clone, Debug, Default)]
pub struct AdmittedUpload {
    /// Inner steps of the path after which its worker makes the result.
    pub to: u64,
    /// The ledger's check of the result; `None` if the ledger is in another process.
    pub expected: Option<ExpectedResult>,
}

/// The upload of one result.
pub struct Upload {
    pub(crate) claim: LeaseClaim,
    pub(crate) item: LeaseResult,
    digest: ContentDigest,
    pub(crate) admitted: AdmittedUpload,
    progress: Arc<tokio::sync::Mutex<UploadProgress>>,
}

/// State of an upload.
pub(crate) struct UploadProgress {
    received: ReceivedPieces,
    /// Offsets of the pieces that have not arrived.
    missing: BTreeSet<u64>,
    /// Number of the upload's last piece among the pieces of all uploads.
    last: u64,
    /// Answer to the last piece, repeated for every later piece.
    answer: Option<Response>,
}

/// The outcome of adding a piece.
pub enum PieceOutcome {
    /// The piece is answered.
    Answer(Response),
    /// The result is complete.
    Complete(CompleteUpload),
}

/// A result of which every piece has arrived. Other requests for this upload wait until it is finished or dropped.
pub struct CompleteUpload {
    progress: OwnedMutexGuard<UploadProgress>,
    content: ReceivedContent,
}

impl Uploads {
    /// Collects in memory, and in unnamed files on the disk of `folder` when the memory is full.
    pub fn new(folder: PathBuf) -> Self {
        Self::with_room(folder, COLLECTED_PIECES)
    }

    fn with_room(folder: PathBuf, collected: usize) -> Self {
        let longest = collected as u64 * PIECE_BYTES;
        let [collected, read] = [collected, READ_PIECES].map(|pieces| Arc::new(Semaphore::new(pieces)));
        let pieces = AtomicU64::new(0);
        Self { folder, uploads: Mutex::default(), collected, longest, read, pieces }
    }

    fn uploads(&self) -> MutexGuard<'_, BTreeMap<UploadKey, Arc<Upload>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The upload to which a piece belongs, or its key if it has not begun.
    pub fn find(&self, piece: &UploadedPiece) -> Result<Arc<Upload>, UploadKey> {
        let key = UploadKey::of(piece);
        self.uploads().get(&key).filter(|upload| upload.has(piece)).cloned().ok_or(key)
    }

    /// Begins the upload to which a piece belongs, unless another piece has begun it meanwhile. [`Self::find`] gave the
    /// key. Another content of the same result replaces an upload that is not complete: the worker may have made the result
    /// again. The caller has checked that the lease expects the result, and that it may have the announced length.
    pub fn begin(&self, key: UploadKey, piece: &UploadedPiece, admitted: AdmittedUpload) -> Arc<Upload> {
        let mut uploads = self.uploads();
        match uploads.get(&key) {
            Some(upload) if upload.has(piece) => upload.clone(),
            _ => {
                let upload = Arc::new(Upload::new(piece, admitted));
                uploads.insert(key, upload.clone());
                upload
            }
        }
    }

    /// Adds a piece to its upload.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn add_piece(
        &self,
        upload: &Upload,
        offset: u64,
        content: Bytes,
    ) -> Result<PieceOutcome, HostError> {
        let (digest, found) = (&upload.digest, content.len() as u64);
        if digest.piece(offset) != Some(found) {
            let reason = format!(
                "{} of {} bytes has no piece of {found} bytes at {offset}: every piece but the last has {PIECE_BYTES} bytes",
                upload.item.name(),
                digest.bytes
            );
            return Ok(PieceOutcome::Answer(Response::Refused { reason }));
        }
        let mut progress = upload.progress.clone().lock_owned().await;
        if let Some(answer) = &progress.answer {
            return Ok(PieceOutcome::Answer(answer.clone()));
        }
        if digest.bytes == found {
            let content = ReceivedPiece::new(content, self.read_permit(1).await?);
            let content = blocking(move || ReceivedContent::of_one_piece(content)).await?;
            return Ok(PieceOutcome::Complete(CompleteUpload { progress, content }));
        }
        if progress.missing.contains(&offset) {
            progress = self.store_piece(progress, upload, offset, content).await?;
        }
        if progress.missing.is_empty() {
            return Ok(PieceOutcome::Complete(self.assemble(progress, digest.bytes).await?));
        }
        Ok(PieceOutcome::Answer(Response::PieceStored))
    }

    /// Stores a piece in memory or in the file. Like every future here it may be dropped at any point, because the
    /// connection may break: a piece leaves `missing` only when it is stored.
    async fn store_piece(
        &self,
        mut progress: OwnedMutexGuard<UploadProgress>,
        upload: &Upload,
        offset: u64,
        content: Bytes,
    ) -> Result<OwnedMutexGuard<UploadProgress>, HostError> {
        progress.last = self.pieces.fetch_add(1, Ordering::Relaxed);
        if upload.digest.bytes <= self.longest
            && !progress.received.is_in_file()
            && let Some(permit) = self.memory_permit().await?
        {
            // Hashed on this thread: a hash takes less time than the transfer of the piece, and the processor's cache
            // still holds the bytes.
            progress.received.store_in_memory(offset, ReceivedPiece::new(content, permit));
            progress.missing.remove(&offset);
            return Ok(progress);
        }
        let folder = self.folder.clone();
        blocking(move || {
            progress.received.store_in_file(&folder, offset, &content)?;
            progress.missing.remove(&offset);
            Ok(progress)
        })
        .await?
    }

    /// A permit for a piece in memory. Moves idle uploads to files until there is one; `None` if no upload is idle.
    async fn memory_permit(&self) -> Result<Option<OwnedSemaphorePermit>, HostError> {
        loop {
            if let Ok(permit) = self.collected.clone().try_acquire_owned() {
                return Ok(Some(permit));
            }
            let Some(mut idle) = self.longest_idle() else { return Ok(None) };
            let folder = self.folder.clone();
            blocking(move || idle.received.file(&folder).map(drop)).await??;
        }
    }

    /// Puts the content of a complete upload into memory. The upload keeps its pieces until it is finished.
    async fn assemble(
        &self,
        mut progress: OwnedMutexGuard<UploadProgress>,
        bytes: u64,
    ) -> Result<CompleteUpload, HostError> {
        if let Some(content) = progress.received.content_in_memory() {
            return Ok(CompleteUpload { progress, content });
        }
        let permit = self.read_permit(bytes.div_ceil(PIECE_BYTES)).await?;
        let folder = self.folder.clone();
        blocking(move || {
            let content = progress.received.read_file(&folder, bytes, permit)?;
            Ok(CompleteUpload { progress, content })
        })
        .await?
    }

    /// Waits for permits for pieces of a complete result. A result of more than [`READ_PIECES`] takes all permits.
    async fn read_permit(&self, pieces: u64) -> Result<OwnedSemaphorePermit, HostError> {
        let pieces = u32::try_from(pieces.min(READ_PIECES as u64)).unwrap_or(u32::MAX);
        let permit = self.read.clone().acquire_many_owned(pieces).await;
        permit.map_err(|_| {
            TrainError::Internal { what: "the semaphore of uploads is closed".to_owned() }.into()
        })
    }

    /// The upload that has waited longest for a piece, among uploads with pieces in memory that no request works on.
    fn longest_idle(&self) -> Option<OwnedMutexGuard<UploadProgress>> {
        let uploads = self.uploads();
        let idle = uploads.values().filter_map(|upload| upload.progress.clone().try_lock_owned().ok());
        idle.filter(|progress| progress.received.is_in_memory()).min_by_key(|progress| progress.last)
    }

    /// Drops the uploads of leases that are not out any more.
    pub fn retain(&self, is_out: impl Fn(&LeaseClaim) -> bool) {
        self.uploads().retain(|_, upload| is_out(&upload.claim));
    }
}

impl Upload {
    fn new(piece: &UploadedPiece, admitted: AdmittedUpload) -> Self {
        let UploadedPiece { claim, item, digest, .. } = piece.clone();
        // The caller has bounded the announced length, so this set is as long as the model's files have pieces.
        let missing =
            (0..).step_by(PIECE_BYTES as usize).take_while(|&at| digest.piece(at).is_some()).collect();
        let progress = UploadProgress { received: ReceivedPieces::default(), missing, last: 0, answer: None };
        Self { claim, item, digest, admitted, progress: Arc::new(tokio::sync::Mutex::new(progress)) }
    }

    /// True if a piece is one of this upload: it has the lease's secret, and announces the same content.
    fn has(&self, piece: &UploadedPiece) -> bool {
        piece.claim.matches(&self.claim) && piece.item == self.item && piece.digest == self.digest
    }
}

impl CompleteUpload {
    /// The content of the result.
    pub fn content(&self) -> ReceivedContent {
        self.content.clone()
    }

    /// Sets the answer to every later piece of this upload, and drops the received pieces.
    pub fn finish(&mut self, answer: Response) {
        self.progress.answer = Some(answer);
        self.progress.received = ReceivedPieces::default();
    }
}

#[cfg(test)]
mod tests;
