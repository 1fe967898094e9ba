//! What has arrived of a result: in memory while there is room, and in a file without a name otherwise.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path as FilePath;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use crate::TrainError;
use dipaco_protocol::{ContentDigest, PIECE_BYTES};

/// The pieces of a result that have arrived.
#[derive(Default)]
pub(super) struct ReceivedPieces {
    /// Those in memory, by their offsets: all, or none when there is a file.
    pieces: BTreeMap<u64, Piece>,
    /// Of those in memory, as far as there is no gap: they are hashed while the processor has them at hand.
    hasher: blake3::Hasher,
    /// Each piece at its offset. It is gone with the lease, or with the process.
    file: Option<File>,
}

/// A piece in memory, and the room that it takes.
#[derive(Clone)]
pub(super) struct Piece {
    bytes: Bytes,
    _room: Arc<OwnedSemaphorePermit>,
}

/// A whole result in memory. It stays in the pieces that it came in: one memory for all of it would cost more than its hash,
/// because the system clears fresh memory, while that of pieces goes from one to the next.
#[derive(Clone)]
pub struct ReceivedContent {
    pieces: Vec<Piece>,
    /// What was found that it is.
    pub whole: ContentDigest,
}

impl Piece {
    pub(super) fn new(bytes: Bytes, room: OwnedSemaphorePermit) -> Self {
        Self { bytes, _room: Arc::new(room) }
    }
}

impl ReceivedContent {
    /// A result that came in one piece.
    pub(super) fn alone(piece: Piece) -> Self {
        Self { whole: ContentDigest::of(&piece.bytes), pieces: vec![piece] }
    }

    /// Its bytes, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> + Clone {
        self.pieces.iter().map(|piece| &piece.bytes)
    }

    /// Its bytes in one memory.
    ///
    /// # Errors
    /// When the machine does not have that much.
    pub fn in_one(&self) -> Result<Vec<u8>, TrainError> {
        let mut bytes = memory(self.pieces().map(|piece| piece.len() as u64).sum())?;
        self.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        Ok(bytes)
    }
}

impl ReceivedPieces {
    pub(super) fn is_in_file(&self) -> bool {
        self.file.is_some()
    }

    /// Whether moving it to a file would give room back.
    pub(super) fn takes_room(&self) -> bool {
        !self.pieces.is_empty()
    }

    pub(super) fn put_in_memory(&mut self, offset: u64, piece: Piece) {
        self.pieces.insert(offset, piece);
        while let Some(next) = self.pieces.get(&self.hasher.count()) {
            self.hasher.update(&next.bytes);
        }
    }

    /// Puts a piece into the file.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn put_in_file(
        &mut self,
        folder: &FilePath,
        offset: u64,
        piece: &[u8],
    ) -> Result<(), TrainError> {
        write(self.file(folder)?, offset, piece).map_err(failed("write", folder))
    }

    /// The file, on the disk of `folder`. What is in memory is moved to it, and its room given back.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn file(&mut self, folder: &FilePath) -> Result<&mut File, TrainError> {
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

    /// Reads a result of so many bytes from its file on the disk of `folder`.
    ///
    /// # Errors
    /// When the disk fails, or there is no memory for it.
    pub(super) fn read(
        &mut self,
        folder: &FilePath,
        bytes: u64,
        room: OwnedSemaphorePermit,
    ) -> Result<ReceivedContent, TrainError> {
        let failed = failed("read", folder);
        let (file, room) = (self.file(folder)?, Arc::new(room));
        file.seek(SeekFrom::Start(0)).map_err(&failed)?;
        let (mut pieces, mut hasher) = (Vec::new(), blake3::Hasher::new());
        for begin in (0..bytes).step_by(PIECE_BYTES as usize) {
            let length = PIECE_BYTES.min(bytes - begin);
            let mut piece = memory(length)?;
            file.take(length).read_to_end(&mut piece).map_err(&failed)?;
            hasher.update(&piece);
            pieces.push(Piece { bytes: piece.into(), _room: room.clone() });
        }
        Ok(ReceivedContent { pieces, whole: found(&hasher) })
    }

    /// The result of which every piece has been put, unless it has to be read.
    pub(super) fn content(&self) -> Option<ReceivedContent> {
        let content = || ReceivedContent {
            pieces: self.pieces.values().cloned().collect(),
            whole: found(&self.hasher),
        };
        self.file.is_none().then(content)
    }
}

fn found(hasher: &blake3::Hasher) -> ContentDigest {
    ContentDigest { hash: hasher.finalize().to_hex().to_string(), bytes: hasher.count() }
}

fn write(file: &mut File, offset: u64, piece: &[u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(piece)
}

fn memory(bytes: u64) -> Result<Vec<u8>, TrainError> {
    let length = usize::try_from(bytes).map_err(|_| TrainError::Memory { bytes })?;
    let mut memory = Vec::new();
    memory.try_reserve_exact(length).map_err(|_| TrainError::Memory { bytes })?;
    Ok(memory)
}

/// Says on which disk something failed: the file has no name.
fn failed(action: &'static str, folder: &FilePath) -> impl Fn(std::io::Error) -> TrainError {
    move |source| TrainError::Io { action, file: folder.join("a result"), source }
}
