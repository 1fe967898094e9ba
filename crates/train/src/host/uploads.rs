//! Uploads of lease results, collected piece by piece.
//!
//! Received pieces lie in memory while there is room, and in a file otherwise. A worker that stops in the middle of an
//! upload does not block the memory for others: the upload that has waited longest for its next piece moves to a file.

mod disk_room;
mod lease_uploads;
mod received_pieces;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use dipaco_ledger::ExpectedResult;
use dipaco_net::RareWarning;
use dipaco_sync::{Fence, LeaseClaim, ProcessId};
use dipaco_topology::PathId;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::TrainError;
use crate::blocking::blocking;
use crate::host::HostError;
use crate::host::error::CollectError;
use dipaco_protocol::{ContentDigest, LeaseResult, PIECE_BYTES, Response};
use disk_room::{DiskRoom, DiskShare};
pub use lease_uploads::UploadKey;
use lease_uploads::{HeldLease, LeaseUploads};
pub use received_pieces::ReceivedContent;
use received_pieces::{ReceivedPiece, ReceivedPieces, ResultFile};

/// Number of pieces that are collected in memory: 128 MiB.
const COLLECTED_PIECES: usize = 64;
/// Number of pieces of complete results in memory that were read from a file or arrived as one piece, until their
/// results are stored: 128 MiB. Results of more than half of them are read one at a time besides, so that they take no
/// room from shorter ones.
const READ_PIECES: usize = 64;

/// All uploads in progress: at most one for each result that a lease asks for.
pub struct Uploads {
    folder: PathBuf,
    uploads: Mutex<LeaseUploads>,
    /// Room on the disk of the folder.
    room: Arc<DiskRoom>,
    /// Permits for [`COLLECTED_PIECES`].
    collected: Arc<Semaphore>,
    /// Longest result that is collected in memory, in bytes.
    longest: u64,
    /// Permits for [`READ_PIECES`].
    read: Arc<Semaphore>,
    /// Number of pieces of the longest result that takes of these permits.
    short: u64,
    /// The permit for a longer result.
    long: Arc<Semaphore>,
    /// Number of pieces that have been added to uploads.
    pieces: AtomicU64,
    warnings: RareWarning,
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
#[derive(Default)]
pub(crate) struct UploadProgress {
    received: ReceivedPieces,
    /// Offsets of the pieces that have not arrived.
    missing: BTreeSet<u64>,
    /// True if its pieces were lost since its worker got an answer.
    lost: bool,
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
        Self::with_room(folder, COLLECTED_PIECES, READ_PIECES)
    }

    fn with_room(folder: PathBuf, collected: usize, read: usize) -> Self {
        let permits = |permits| Arc::new(Semaphore::new(permits));
        Self {
            folder,
            uploads: Mutex::default(),
            room: Arc::default(),
            longest: collected as u64 * PIECE_BYTES,
            collected: permits(collected),
            short: read as u64 / 2,
            read: permits(read),
            long: permits(1),
            pieces: AtomicU64::new(0),
            warnings: RareWarning::default(),
        }
    }

    fn uploads(&self) -> MutexGuard<'_, LeaseUploads> {
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
        if let Some(upload) = uploads.get(&key).filter(|upload| upload.has(piece)) {
            return upload.clone();
        }
        let upload = Arc::new(Upload::new(piece, admitted));
        let replaced = uploads.insert(key, upload.clone());
        // Its file is closed while nobody waits for the lock.
        drop(uploads);
        drop(replaced);
        upload
    }

    /// Adds a piece to its upload. A piece for which there is no room is answered with [`Response::Wait`]: the upload has
    /// lost its pieces, and its worker sends them again.
    ///
    /// # Errors
    /// When a task of this process fails.
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
        if std::mem::take(&mut progress.lost) {
            return Ok(upload.no_room());
        }
        if digest.bytes == found {
            let content = ReceivedPiece::new(content, self.read_permit(1).await?);
            let content = blocking(move || ReceivedContent::of_one_piece(content)).await?;
            return Ok(PieceOutcome::Complete(CompleteUpload { progress, content }));
        }
        if progress.missing.contains(&offset) {
            let stored;
            (progress, stored) = self.store_piece(progress, upload, offset, content).await?;
            if stored.is_none() {
                return Ok(upload.no_room());
            }
            progress.missing.remove(&offset);
        }
        if !progress.missing.is_empty() {
            return Ok(PieceOutcome::Answer(Response::PieceStored));
        }
        let (progress, content) = self.assemble(progress, upload).await?;
        Ok(match content {
            Some(content) => PieceOutcome::Complete(CompleteUpload { progress, content }),
            None => upload.no_room(),
        })
    }

    /// Stores a piece in memory or in the file. Like every future here it may be dropped at any point, because the
    /// connection may break: a piece leaves `missing` only when it is stored.
    async fn store_piece(
        &self,
        mut progress: OwnedMutexGuard<UploadProgress>,
        upload: &Upload,
        offset: u64,
        content: Bytes,
    ) -> Result<(OwnedMutexGuard<UploadProgress>, Option<()>), HostError> {
        progress.last = self.pieces.fetch_add(1, Ordering::Relaxed);
        if upload.digest.bytes <= self.longest
            && !progress.received.is_in_file()
            && let Some(permit) = self.memory_permit().await?
        {
            // Hashed on this thread: a hash takes less time than the transfer of the piece, and the processor's cache
            // still holds the bytes.
            progress.received.store_in_memory(offset, ReceivedPiece::new(content, permit));
            return Ok((progress, Some(())));
        }
        self.in_file(progress, upload, move |file| file.write(offset, &content)).await
    }

    /// A permit for a piece in memory. Moves idle uploads to files until there is one; `None` if no upload is idle.
    async fn memory_permit(&self) -> Result<Option<OwnedSemaphorePermit>, HostError> {
        loop {
            if let Ok(permit) = self.collected.clone().try_acquire_owned() {
                return Ok(Some(permit));
            }
            let Some((upload, idle)) = self.longest_idle() else { return Ok(None) };
            let (mut idle, moved) = self.in_file(idle, &upload, |_| Ok(())).await?;
            idle.lost = moved.is_none();
        }
    }

    /// Puts the content of a complete upload into memory. The upload keeps its pieces until it is finished.
    async fn assemble(
        &self,
        progress: OwnedMutexGuard<UploadProgress>,
        upload: &Upload,
    ) -> Result<(OwnedMutexGuard<UploadProgress>, Option<ReceivedContent>), HostError> {
        if let Some(content) = progress.received.content_in_memory() {
            return Ok((progress, Some(content)));
        }
        let bytes = upload.digest.bytes;
        let permit = self.read_permit(bytes.div_ceil(PIECE_BYTES)).await?;
        self.in_file(progress, upload, move |file| file.read(bytes, permit)).await
    }

    /// Works on the file of an upload, to which its pieces move first. `None` if that fails: then this upload, and no other,
    /// has lost its pieces.
    async fn in_file<T: Send + 'static>(
        &self,
        mut progress: OwnedMutexGuard<UploadProgress>,
        upload: &Upload,
        work: impl FnOnce(&mut ResultFile) -> Result<T, CollectError> + Send + 'static,
    ) -> Result<(OwnedMutexGuard<UploadProgress>, Option<T>), HostError> {
        let share = (!progress.received.is_in_file()).then(|| self.disk_share(upload)).transpose();
        let (folder, digest) = (self.folder.clone(), upload.digest.clone());
        let (progress, done) = blocking(move || {
            let done = share.and_then(|share| work(progress.received.file(&folder, share)?));
            if done.is_err() {
                progress.received = ReceivedPieces::default();
                progress.missing = offsets(&digest);
            }
            (progress, done)
        })
        .await?;
        let done = done.map_err(|error| self.warn(upload, &error)).ok();
        Ok((progress, done))
    }

    /// Room for the file of an upload. The files of a token hold no more than its leases may send: an upload that another
    /// one has replaced, or whose lease has ended, may have its file for some time.
    fn disk_share(&self, upload: &Upload) -> Result<DiskShare, CollectError> {
        let token = &upload.claim.worker.token;
        let most = self.uploads().of_token(token).map(|upload| upload.digest.bytes).sum();
        let share = self.room.take(token, upload.digest.bytes, most);
        share.ok_or_else(|| CollectError::Share { token: token.clone(), most })
    }

    fn warn(&self, upload: &Upload, error: &CollectError) {
        if let Some(suppressed) = self.warnings.due(Instant::now()) {
            let (path, worker, item) = (upload.claim.key.path, &upload.claim.worker.name, upload.item.name());
            tracing::warn!(%path, worker, item, %error, suppressed, "a result has no room; its worker sends it again");
        }
    }

    /// Waits for the permits to have a complete result of so many pieces in memory.
    async fn read_permit(&self, pieces: u64) -> Result<OwnedSemaphorePermit, HostError> {
        let (semaphore, permits) = if pieces > self.short { (&self.long, 1) } else { (&self.read, pieces) };
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        let permit = semaphore.clone().acquire_many_owned(permits).await;
        permit.map_err(|_| {
            TrainError::Internal { what: "the semaphore of uploads is closed".to_owned() }.into()
        })
    }

    /// The upload that has waited longest for a piece, among uploads with pieces in memory that no request works on.
    fn longest_idle(&self) -> Option<(Arc<Upload>, OwnedMutexGuard<UploadProgress>)> {
        let uploads = self.uploads();
        let idle = uploads.all().filter_map(|upload| {
            let progress = upload.progress.clone().try_lock_owned().ok()?;
            progress.received.is_in_memory().then(|| (upload.clone(), progress))
        });
        idle.min_by_key(|(_, progress)| progress.last)
    }

    /// Drops the uploads of a lease, which has ended.
    pub fn drop_lease(&self, worker: &ProcessId, path: PathId, fence: Fence) {
        let lease = HeldLease { worker: worker.clone(), path, fence };
        // The files are closed while nobody waits for the lock.
        let ended = self.uploads().remove(&lease);
        drop(ended);
    }

    /// The leases with uploads, at most so many: those with the lowest fencing numbers.
    pub fn oldest_leases(&self, most: usize) -> Vec<(PathId, Fence)> {
        let mut leases = self.uploads().leases();
        leases.sort_unstable_by_key(|&(_, fence)| fence);
        leases.truncate(most);
        leases
    }

    /// Drops the uploads of leases that are not out any more.
    pub fn retain(&self, is_out: impl Fn(&LeaseClaim) -> bool) {
        let ended = self.uploads().remove_ended(is_out);
        drop(ended);
    }
}

impl Upload {
    fn new(piece: &UploadedPiece, admitted: AdmittedUpload) -> Self {
        let UploadedPiece { claim, item, digest, .. } = piece.clone();
        let progress = UploadProgress { missing: offsets(&digest), ..UploadProgress::default() };
        Self { claim, item, digest, admitted, progress: Arc::new(tokio::sync::Mutex::new(progress)) }
    }

    /// The answer to a piece for which there is no room.
    fn no_room(&self) -> PieceOutcome {
        let reason = format!("there is no room for {} now", self.item.name());
        PieceOutcome::Answer(Response::Wait { reason })
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

/// Offsets of the pieces of a result. The caller of [`Uploads::begin`] has bounded the announced length, so this set is as
/// long as the model's files have pieces.
fn offsets(digest: &ContentDigest) -> BTreeSet<u64> {
    (0..).step_by(PIECE_BYTES as usize).take_while(|&at| digest.piece(at).is_some()).collect()
}

#[cfg(test)]
mod tests;
