//! The received pieces of a result: in memory while there is room, and in an unnamed file otherwise.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::disk_room::DiskShare;
use crate::host::error::CollectError;
use dipaco_protocol::{ContentDigest, PIECE_BYTES};

/// The received pieces of a result.
#[derive(Default)]
pub(super) struct ReceivedPieces {
    /// Pieces in memory by offset; empty when there is a file.
    pieces: BTreeMap<u64, ReceivedPiece>,
    /// Hash of the pieces in memory up to the first gap. Pieces are hashed while the processor's cache holds them.
    hasher: blake3::Hasher,
    file: Option<ResultFile>,
}

/// A file with each piece at its offset. It has no name, so it disappears with the upload or the process.
pub(super) struct ResultFile {
    file: File,
    /// The folder on whose disk the file lies, for errors.
    folder: PathBuf,
    _share: Option<DiskShare>,
}

/// A piece in memory with the permit for its room.
#[derive(Clone)]
pub(super) struct ReceivedPiece {
    bytes: Bytes,
    _permit: Arc<OwnedSemaphorePermit>,
}

/// A complete result in memory. It stays in its pieces: one buffer for all of it would cost more than its hash, because
/// the system clears fresh memory, while the memory of pieces is used again.
#[derive(Clone)]
pub struct ReceivedContent {
    pieces: Vec<ReceivedPiece>,
    /// Digest of the received content.
    pub digest: ContentDigest,
}

impl ReceivedPiece {
    pub(super) fn new(bytes: Bytes, permit: OwnedSemaphorePermit) -> Self {
        Self { bytes, _permit: Arc::new(permit) }
    }
}

impl ReceivedContent {
    /// A result of one piece.
    pub(super) fn of_one_piece(piece: ReceivedPiece) -> Self {
        Self { digest: ContentDigest::of(&piece.bytes), pieces: vec![piece] }
    }

    /// The content, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> + Clone {
        self.pieces.iter().map(|piece| &piece.bytes)
    }
}

impl ReceivedPieces {
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

    /// The file. If there is none yet, the pieces move to a new one on the disk of `folder`, which frees their memory, and
    /// which keeps `share`.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn file(
        &mut self,
        folder: &FilePath,
        share: Option<DiskShare>,
    ) -> Result<&mut ResultFile, CollectError> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => {
                let file = tempfile::tempfile_in(folder).map_err(failed("create", folder))?;
                let mut file = ResultFile { file, folder: folder.to_owned(), _share: share };
                self.pieces.iter().try_for_each(|(&offset, piece)| file.write(offset, &piece.bytes))?;
                self.pieces.clear();
                Ok(none.insert(file))
            }
        }
    }

    /// The content of a complete result; `None` if it is in a file.
    pub(super) fn content_in_memory(&self) -> Option<ReceivedContent> {
        let content = || ReceivedContent {
            pieces: self.pieces.values().cloned().collect(),
            digest: digest(&self.hasher),
        };
        self.file.is_none().then(content)
    }
}

impl ResultFile {
    /// Writes a piece.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn write(&mut self, offset: u64, piece: &[u8]) -> Result<(), CollectError> {
        let written = self.file.seek(SeekFrom::Start(offset)).and_then(|_| self.file.write_all(piece));
        written.map_err(failed("write", &self.folder))
    }

    /// Reads a result of `bytes` bytes.
    ///
    /// # Errors
    /// When the disk fails, or there is no memory for the result.
    pub(super) fn read(
        &mut self,
        bytes: u64,
        permit: OwnedSemaphorePermit,
    ) -> Result<ReceivedContent, CollectError> {
        let (file, failed, permit) = (&mut self.file, failed("read", &self.folder), Arc::new(permit));
        file.seek(SeekFrom::Start(0)).map_err(&failed)?;
        let (mut pieces, mut hasher) = (Vec::new(), blake3::Hasher::new());
        for begin in (0..bytes).step_by(PIECE_BYTES as usize) {
            let length = PIECE_BYTES.min(bytes - begin);
            let mut piece = buffer(length)?;
            file.take(length).read_to_end(&mut piece).map_err(&failed)?;
            hasher.update(&piece);
            pieces.push(ReceivedPiece { bytes: piece.into(), _permit: permit.clone() });
        }
        Ok(ReceivedContent { pieces, digest: digest(&hasher) })
    }
}

fn digest(hasher: &blake3::Hasher) -> ContentDigest {
    ContentDigest { hash: hasher.finalize().to_hex().to_string(), bytes: hasher.count() }
}

fn buffer(bytes: u64) -> Result<Vec<u8>, CollectError> {
    let length = usize::try_from(bytes).map_err(|_| CollectError::Memory { bytes })?;
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(length).map_err(|_| CollectError::Memory { bytes })?;
    Ok(buffer)
}

/// An error that names the disk, because the file has no name.
fn failed(action: &'static str, folder: &FilePath) -> impl Fn(std::io::Error) -> CollectError {
    move |why| CollectError::Disk { action, folder: folder.to_owned(), why }
}
