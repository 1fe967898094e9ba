//! The received pieces of a result: in memory while there is room, and in an unnamed file otherwise.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path as FilePath;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use crate::TrainError;
use crate::host::HostError;
use dipaco_protocol::{ContentDigest, PIECE_BYTES};

/// The received pieces of a result.
#[derive(Default)]
pub(super) struct ReceivedPieces {
    /// Pieces in memory by offset; empty when there is a file.
    pieces: BTreeMap<u64, Piece>,
    /// Hash of the pieces in memory up to the first gap. Pieces are hashed while the processor's cache holds them.
    hasher: blake3::Hasher,
    /// File with each piece at its offset. It disappears with the upload or the process.
    file: Option<File>,
}

/// A piece in memory with the permit for its room.
#[derive(Clone)]
pub(super) struct Piece {
    bytes: Bytes,
    _permit: Arc<OwnedSemaphorePermit>,
}

/// A complete result in memory. It stays in its pieces: one buffer for all of it would cost more than its hash, because
/// the system clears fresh memory, while the memory of pieces is used again.
#[derive(Clone)]
pub struct ReceivedContent {
    pieces: Vec<Piece>,
    /// Digest of the received content.
    pub digest: ContentDigest,
}

impl Piece {
    pub(super) fn new(bytes: Bytes, permit: OwnedSemaphorePermit) -> Self {
        Self { bytes, _permit: Arc::new(permit) }
    }
}

impl ReceivedContent {
    /// A result of one piece.
    pub(super) fn of_one_piece(piece: Piece) -> Self {
        Self { digest: ContentDigest::of(&piece.bytes), pieces: vec![piece] }
    }

    /// The content, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> + Clone {
        self.pieces.iter().map(|piece| &piece.bytes)
    }

    /// The content in one buffer.
    ///
    /// # Errors
    /// When the machine has no memory for it.
    pub fn in_one(&self) -> Result<Vec<u8>, HostError> {
        let mut bytes = buffer(self.pieces().map(|piece| piece.len() as u64).sum())?;
        self.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        Ok(bytes)
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

    pub(super) fn store_in_memory(&mut self, offset: u64, piece: Piece) {
        self.pieces.insert(offset, piece);
        while let Some(next) = self.pieces.get(&self.hasher.count()) {
            self.hasher.update(&next.bytes);
        }
    }

    /// Writes a piece to the file.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn store_in_file(
        &mut self,
        folder: &FilePath,
        offset: u64,
        piece: &[u8],
    ) -> Result<(), HostError> {
        write(self.file(folder)?, offset, piece).map_err(failed("write", folder))
    }

    /// The file, on the disk of `folder`. Pieces in memory move to it, which frees their room.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn file(&mut self, folder: &FilePath) -> Result<&mut File, HostError> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => {
                let mut file = tempfile::tempfile_in(folder).map_err(failed("create", folder))?;
                let mut pieces = self.pieces.iter();
                pieces
                    .try_for_each(|(&offset, piece)| write(&mut file, offset, &piece.bytes))
                    .map_err(failed("write", folder))?;
                self.pieces.clear();
                Ok(none.insert(file))
            }
        }
    }

    /// Reads a result of `bytes` bytes from its file on the disk of `folder`.
    ///
    /// # Errors
    /// When the disk fails, or there is no memory for it.
    pub(super) fn read_file(
        &mut self,
        folder: &FilePath,
        bytes: u64,
        permit: OwnedSemaphorePermit,
    ) -> Result<ReceivedContent, HostError> {
        let failed = failed("read", folder);
        let (file, permit) = (self.file(folder)?, Arc::new(permit));
        file.seek(SeekFrom::Start(0)).map_err(&failed)?;
        let (mut pieces, mut hasher) = (Vec::new(), blake3::Hasher::new());
        for begin in (0..bytes).step_by(PIECE_BYTES as usize) {
            let length = PIECE_BYTES.min(bytes - begin);
            let mut piece = buffer(length)?;
            file.take(length).read_to_end(&mut piece).map_err(&failed)?;
            hasher.update(&piece);
            pieces.push(Piece { bytes: piece.into(), _permit: permit.clone() });
        }
        Ok(ReceivedContent { pieces, digest: digest(&hasher) })
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

fn digest(hasher: &blake3::Hasher) -> ContentDigest {
    ContentDigest { hash: hasher.finalize().to_hex().to_string(), bytes: hasher.count() }
}

fn write(file: &mut File, offset: u64, piece: &[u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(piece)
}

fn buffer(bytes: u64) -> Result<Vec<u8>, HostError> {
    let length = usize::try_from(bytes).map_err(|_| HostError::Memory { bytes })?;
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(length).map_err(|_| HostError::Memory { bytes })?;
    Ok(buffer)
}

/// An error that names the disk, because the file has no name.
fn failed(action: &'static str, folder: &FilePath) -> impl Fn(std::io::Error) -> HostError {
    move |source| TrainError::Io { action, file: folder.join("a result"), source }.into()
}
