//! The received pieces of a result: in memory while there is room, and in a file otherwise.

use std::collections::BTreeMap;
use std::io;
use std::path::Path as FilePath;
use std::sync::Arc;

use bytes::Bytes;
use dipaco_path::PiecedFile;
use dipaco_store::{ObjectRef, RunStore, StoreError, UnfinishedObject};
use tokio::sync::OwnedSemaphorePermit;

use super::disk_room::DiskShare;
use crate::host::error::CollectError;
use crate::host::gradient_check::GradientCheck;
use dipaco_protocol::{ContentDigest, PIECE_BYTES, PIECES_AT_ONCE};

/// The received pieces of a result.
#[derive(Default)]
pub(super) struct ReceivedPieces {
    /// Pieces in memory by offset; empty when there is a file.
    pieces: BTreeMap<u64, ReceivedPiece>,
    /// Hash of the pieces in memory up to the first gap. Pieces are hashed while the processor's cache holds them.
    hasher: blake3::Hasher,
    file: Option<ResultFile>,
    /// The check of the file's content, until there is a file.
    check: Option<GradientCheck>,
}

/// A file with each piece at its offset. It disappears with the upload unless it becomes the object in the store.
pub(super) struct ResultFile {
    object: Arc<UnfinishedObject>,
    share: Arc<Option<DiskShare>>,
    /// Hash of the content up to the first gap.
    hasher: blake3::Hasher,
    /// Reads the content up to the first gap.
    check: Option<GradientCheck>,
    /// The pieces behind the first gap by offset. Some of a result with a check are also in memory.
    ahead: BTreeMap<u64, Option<Bytes>>,
}

/// A piece in memory with the permit for its room.
#[derive(Clone)]
pub(super) struct ReceivedPiece {
    bytes: Bytes,
    _permit: Arc<OwnedSemaphorePermit>,
}

/// A complete result. It stays in its pieces: one buffer for all of it would cost more than its hash, because the system
/// clears fresh memory, while the memory of pieces is used again.
#[derive(Clone)]
pub struct ReceivedContent {
    place: ContentPlace,
    /// Digest of the received content.
    pub digest: ContentDigest,
}

/// The place of a complete result.
#[derive(Clone)]
enum ContentPlace {
    Memory(Vec<ReceivedPiece>),
    File {
        object: Arc<UnfinishedObject>,
        _share: Arc<Option<DiskShare>>,
        _permit: Option<Arc<OwnedSemaphorePermit>>,
    },
}

impl ReceivedPiece {
    pub(super) fn new(bytes: Bytes, permit: OwnedSemaphorePermit) -> Self {
        Self { bytes, _permit: Arc::new(permit) }
    }
}

impl ReceivedPieces {
    /// No pieces yet. If they move to a file, `check` reads what arrives there.
    pub(super) fn checked_in_a_file(check: Option<GradientCheck>) -> Self {
        Self { check, ..Self::default() }
    }

    /// Takes the check that has read all of the file's content.
    pub(super) fn take_check(&mut self) -> Option<GradientCheck> {
        self.file.as_mut()?.check.take()
    }

    pub(super) fn is_in_file(&self) -> bool {
        self.file.is_some()
    }

    /// True if moving the pieces to a file would free memory.
    pub(super) fn is_in_memory(&self) -> bool {
        !self.pieces.is_empty()
    }

    pub(super) fn store_in_memory(&mut self, offset: u64, piece: ReceivedPiece) {
        self.pieces.insert(offset, piece);
        while let Some(next) = self.pieces.get(&self.hasher.count()) {
            self.hasher.update(&next.bytes);
        }
    }

    /// The file. If there is none yet, the pieces move to the one that `begin` makes, which frees their memory.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn file(
        &mut self,
        begin: impl FnOnce() -> Result<ResultFile, CollectError>,
    ) -> Result<&mut ResultFile, CollectError> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => {
                let mut file = begin()?;
                file.check = self.check.take();
                self.pieces.iter().try_for_each(|(&offset, piece)| file.store(offset, &piece.bytes))?;
                self.pieces.clear();
                Ok(none.insert(file))
            }
        }
    }

    /// The content of a complete result. `permit` is for the memory of a result that is in a file.
    pub(super) fn content(&self, permit: Option<OwnedSemaphorePermit>) -> ReceivedContent {
        match &self.file {
            None => ReceivedContent {
                place: ContentPlace::Memory(self.pieces.values().cloned().collect()),
                digest: ContentDigest::of_hasher(&self.hasher),
            },
            Some(ResultFile { object, share, hasher, .. }) => {
                let (object, _share, _permit) = (object.clone(), share.clone(), permit.map(Arc::new));
                let place = ContentPlace::File { object, _share, _permit };
                ReceivedContent { place, digest: ContentDigest::of_hasher(hasher) }
            }
        }
    }
}

impl ResultFile {
    /// Begins the file of a result, which is `object` in the store.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn begin(
        store: &RunStore,
        object: ObjectRef,
        scratch: &FilePath,
        share: Option<DiskShare>,
    ) -> Result<Self, CollectError> {
        let (object, share) = (Arc::new(store.begin(object, scratch)?), Arc::new(share));
        Ok(Self { object, share, hasher: blake3::Hasher::new(), check: None, ahead: BTreeMap::new() })
    }

    /// Stores a piece, and hashes and checks what is contiguous with the pieces before it.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn store(&mut self, offset: u64, piece: &Bytes) -> Result<(), CollectError> {
        if offset < self.hasher.count() || self.ahead.contains_key(&offset) {
            // A repetition could differ from the bytes that are hashed.
            return Ok(());
        }
        self.object.write(offset, piece)?;
        if offset == self.hasher.count() {
            self.read(piece);
        } else {
            // Pieces that travel together arrive in any order. One result at a time has a check, so these take little memory.
            let near = self.check.is_some() && self.ahead.len() < PIECES_AT_ONCE;
            self.ahead.insert(offset, near.then(|| piece.clone()));
        }
        while let Some(piece) = self.ahead.remove(&self.hasher.count()) {
            let begin = self.hasher.count();
            let of_file = || self.object.read(begin..begin.saturating_add(PIECE_BYTES));
            let piece = piece.map_or_else(of_file, Ok)?;
            self.read(&piece);
        }
        Ok(())
    }

    /// Reads the next piece of the content, while the processor's cache holds it.
    fn read(&mut self, piece: &[u8]) {
        self.hasher.update(piece);
        if let Some(check) = &mut self.check {
            check.read(piece);
        }
    }
}

impl ReceivedContent {
    /// A result of one piece.
    pub(super) fn of_one_piece(piece: ReceivedPiece) -> Self {
        Self { digest: ContentDigest::of(&piece.bytes), place: ContentPlace::Memory(vec![piece]) }
    }

    /// The content, piece by piece. Reading a piece of a file blocks.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn pieces(&self) -> impl Iterator<Item = io::Result<Bytes>> {
        let starts = (0..self.length()).step_by(PIECE_BYTES as usize);
        starts.map(|start| self.piece_from(start))
    }

    /// Publishes the content in a store under its reference. A result in a file of a store in a directory is there already.
    ///
    /// # Errors
    /// Those of the store, and within them those of the file.
    pub(crate) async fn publish(
        &self,
        store: &RunStore,
        object: &ObjectRef,
    ) -> Result<Result<(), CollectError>, StoreError> {
        match &self.place {
            ContentPlace::Memory(pieces) => {
                let pieces = pieces.iter().map(|piece| piece.bytes.clone());
                store.put_referenced(object, pieces).await.map(Ok)
            }
            ContentPlace::File { object, .. } => Ok(object.publish().await?.map_err(CollectError::Disk)),
        }
    }
}

impl PiecedFile for ReceivedContent {
    type Piece = Bytes;

    fn length(&self) -> usize {
        usize::try_from(self.digest.bytes).unwrap_or(usize::MAX)
    }

    fn piece_from(&self, place: usize) -> io::Result<Bytes> {
        let (number, within) = (place / PIECE_BYTES as usize, place % PIECE_BYTES as usize);
        match &self.place {
            ContentPlace::Memory(pieces) => {
                let piece = pieces.get(number).map(|piece| &piece.bytes).filter(|piece| within < piece.len());
                Ok(piece.map(|piece| piece.slice(within..)).unwrap_or_default())
            }
            ContentPlace::File { object, .. } => {
                let end = (number as u64).saturating_add(1).saturating_mul(PIECE_BYTES);
                Ok(object.read(place as u64..end)?)
            }
        }
    }
}
