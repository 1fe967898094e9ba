//! Uploads of lease results, collected piece by piece.
//!
//! Received pieces lie in memory while there is room, and in a file otherwise. A worker that stops in the middle of an
//! upload does not block the memory for others: the upload that has waited longest for its next piece moves to a file.
//! In a store in a directory the file becomes the object, so a long result is written once.

mod disk_room;
mod lease_uploads;
mod received_pieces;
mod upload;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use dipaco_net::RareWarning;
use dipaco_store::RunStore;
use dipaco_sync::{Fence, LeaseClaim, ProcessId};
use dipaco_topology::PathId;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::TrainError;
use crate::blocking::blocking;
use crate::host::HostError;
use crate::host::error::CollectError;
use crate::host::gradient_check::GradientCheck;
use dipaco_protocol::{ContentDigest, PIECE_BYTES, Response};
use disk_room::{DiskRoom, DiskShare};
pub use lease_uploads::UploadKey;
use lease_uploads::{HeldLease, LeaseUploads};
pub use received_pieces::ReceivedContent;
use received_pieces::{ReceivedPiece, ReceivedPieces, ResultFile};
pub use upload::{AdmittedUpload, Upload, UploadedPiece};

/// Number of pieces that are collected in memory: 128 MiB.
const COLLECTED_PIECES: usize = 64;
/// Number of complete results of one piece, until they are stored: 128 MiB.
const SHORT_RESULTS: usize = 64;
/// Number of complete results in files that are checked and stored at a time. The check of each holds two pieces.
const FILES: usize = 4;

/// All uploads in progress: at most one for each result that a lease asks for.
pub struct Uploads {
    store: RunStore,
    /// Folder for the files of a store that is no directory.
    scratch: PathBuf,
    uploads: Mutex<LeaseUploads>,
    /// Room on the disk of the files.
    room: Arc<DiskRoom>,
    /// Permits for [`COLLECTED_PIECES`].
    collected: Arc<Semaphore>,
    /// Longest result that is collected in memory, in bytes.
    longest: u64,
    /// Permits for [`SHORT_RESULTS`].
    short: Arc<Semaphore>,
    /// Permits for [`FILES`].
    files: Arc<Semaphore>,
    /// Number of pieces that have been added to uploads.
    pieces: AtomicU64,
    warnings: RareWarning,
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
    /// Collects results for `store`: in memory, and when the memory is full in files. Those lie in the store if it is a directory,
    /// and otherwise without names on the disk of `scratch`.
    pub fn new(store: RunStore, scratch: PathBuf) -> Self {
        Self::with_room(store, scratch, COLLECTED_PIECES, [SHORT_RESULTS, FILES])
    }

    pub(super) fn with_room(
        store: RunStore,
        scratch: PathBuf,
        collected: usize,
        [short, files]: [usize; 2],
    ) -> Self {
        let permits = |permits| Arc::new(Semaphore::new(permits));
        Self {
            store,
            scratch,
            uploads: Mutex::default(),
            room: Arc::default(),
            longest: collected as u64 * PIECE_BYTES,
            collected: permits(collected),
            short: permits(short),
            files: permits(files),
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
        self.begin_checked(key, piece, admitted, || None)
    }

    /// [`Self::begin`]. If the upload begins here and is too long for the memory of pieces, it is read by `check` while it
    /// arrives.
    pub(super) fn begin_checked(
        &self,
        key: UploadKey,
        piece: &UploadedPiece,
        admitted: AdmittedUpload,
        check: impl FnOnce() -> Option<GradientCheck>,
    ) -> Arc<Upload> {
        let mut uploads = self.uploads();
        if let Some(upload) = uploads.get(&key).filter(|upload| upload.has(piece)) {
            return upload.clone();
        }
        let check = if piece.digest.bytes > self.longest { check() } else { None };
        let upload = Arc::new(Upload::new(piece, admitted, check));
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
            return Ok(PieceOutcome::Answer(upload.no_room()));
        }
        if digest.bytes == found {
            let content = ReceivedPiece::new(content, permit(&self.short).await?);
            let content = blocking(move || ReceivedContent::of_one_piece(content)).await?;
            return Ok(PieceOutcome::Complete(CompleteUpload { progress, content }));
        }
        if progress.missing.contains(&offset) {
            let stored;
            (progress, stored) = self.store_piece(progress, upload, offset, content).await?;
            if !stored {
                return Ok(PieceOutcome::Answer(upload.no_room()));
            }
            progress.missing.remove(&offset);
        }
        if !progress.missing.is_empty() {
            return Ok(PieceOutcome::Answer(Response::PieceStored));
        }
        let permit = if progress.received.is_in_file() { Some(permit(&self.files).await?) } else { None };
        let content = progress.received.content(permit);
        Ok(PieceOutcome::Complete(CompleteUpload { progress, content }))
    }

    /// Stores a piece in memory or in the file. Like every future here it may be dropped at any point, because the
    /// connection may break: a piece leaves `missing` only when it is stored.
    async fn store_piece(
        &self,
        mut progress: OwnedMutexGuard<UploadProgress>,
        upload: &Upload,
        offset: u64,
        content: Bytes,
    ) -> Result<(OwnedMutexGuard<UploadProgress>, bool), HostError> {
        progress.last = self.pieces.fetch_add(1, Ordering::Relaxed);
        if upload.digest.bytes <= self.longest
            && !progress.received.is_in_file()
            && let Some(permit) = self.memory_permit().await?
        {
            // Hashed on this thread: a hash takes less time than the transfer of the piece, and the processor's cache
            // still holds the bytes.
            progress.received.store_in_memory(offset, ReceivedPiece::new(content, permit));
            return Ok((progress, true));
        }
        self.in_file(progress, upload, move |file| file.store(offset, &content)).await
    }

    /// A permit for a piece in memory. Moves idle uploads to files until there is one; `None` if no upload is idle.
    async fn memory_permit(&self) -> Result<Option<OwnedSemaphorePermit>, HostError> {
        loop {
            if let Ok(permit) = self.collected.clone().try_acquire_owned() {
                return Ok(Some(permit));
            }
            let Some((upload, idle)) = self.longest_idle() else { return Ok(None) };
            let (mut idle, moved) = self.in_file(idle, &upload, |_| Ok(())).await?;
            idle.lost = !moved;
        }
    }

    /// Works on the file of an upload, to which its pieces move first. Returns false if that fails: then this upload, and no
    /// other, has lost its pieces.
    async fn in_file(
        &self,
        mut progress: OwnedMutexGuard<UploadProgress>,
        upload: &Upload,
        work: impl FnOnce(&mut ResultFile) -> Result<(), CollectError> + Send + 'static,
    ) -> Result<(OwnedMutexGuard<UploadProgress>, bool), HostError> {
        let share = (!progress.received.is_in_file()).then(|| self.disk_share(upload)).transpose();
        let (store, scratch, object) = (self.store.clone(), self.scratch.clone(), upload.object());
        let digest = upload.digest.clone();
        let (progress, done) = blocking(move || {
            let begin = |share| move || ResultFile::begin(&store, object, &scratch, share);
            let done = share.and_then(|share| work(progress.received.file(begin(share))?));
            if done.is_err() {
                progress.lose_pieces(&digest);
            }
            (progress, done)
        })
        .await?;
        let done = done.map_err(|error| self.warn(upload, &error));
        Ok((progress, done.is_ok()))
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

    /// Drops the pieces of a complete upload whose file has failed, and returns the answer to its worker, which sends them again.
    pub(crate) fn lose(
        &self,
        upload: &Upload,
        mut complete: CompleteUpload,
        error: &CollectError,
    ) -> Response {
        self.warn(upload, error);
        complete.progress.lose_pieces(&upload.digest);
        upload.no_room()
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

    /// Drops the uploads of a lease, which has ended, and of the earlier leases of its worker on the path. A lease that follows
    /// another one may end before that one is complete, and then both have ended.
    pub fn drop_lease(&self, worker: &ProcessId, path: PathId, fence: Fence) {
        let lease = HeldLease { worker: worker.clone(), path, fence };
        // The files are closed while nobody waits for the lock.
        let ended = self.uploads().remove_up_to(lease);
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

impl UploadProgress {
    fn lose_pieces(&mut self, digest: &ContentDigest) {
        self.received = ReceivedPieces::default();
        self.missing = offsets(digest);
    }
}

impl CompleteUpload {
    /// The content of the result.
    pub fn content(&self) -> ReceivedContent {
        self.content.clone()
    }

    /// The check that has read the result while it arrived. A second call returns `None`.
    pub(super) fn take_check(&mut self) -> Option<GradientCheck> {
        self.progress.received.take_check()
    }

    /// Sets the answer to every later piece of this upload, and drops the received pieces.
    pub fn finish(&mut self, answer: Response) {
        self.progress.answer = Some(answer);
        self.progress.received = ReceivedPieces::default();
    }
}

async fn permit(semaphore: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, HostError> {
    let permit = semaphore.clone().acquire_owned().await;
    permit.map_err(|_| TrainError::Internal { what: "a semaphore of uploads is closed".to_owned() }.into())
}

/// Offsets of the pieces of a result. The caller of [`Uploads::begin`] has bounded the announced length, so this set is as
/// long as the model's files have pieces.
fn offsets(digest: &ContentDigest) -> BTreeSet<u64> {
    (0..).step_by(PIECE_BYTES as usize).take_while(|&at| digest.piece(at).is_some()).collect()
}

#[cfg(test)]
mod tests;
