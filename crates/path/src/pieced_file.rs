//! A file that lies in pieces.

use std::io;

/// A file that lies in pieces, in memory or on a disk. Only the pieces that are looked at need memory.
pub trait PiecedFile {
    /// The memory of a piece.
    type Piece: AsRef<[u8]>;

    /// Length of the file in bytes.
    fn length(&self) -> usize;

    /// The bytes of one piece from the byte `place` of the file on: none behind the end of the file, and otherwise at least one.
    ///
    /// # Errors
    /// When the disk fails.
    fn piece_from(&self, place: usize) -> io::Result<Self::Piece>;
}

/// A file in memory, in pieces of some bytes.
#[cfg(test)]
pub(crate) struct Cut<'a>(pub(crate) &'a [u8], pub(crate) usize);

#[cfg(test)]
impl<'a> PiecedFile for Cut<'a> {
    type Piece = &'a [u8];

    fn length(&self) -> usize {
        self.0.len()
    }

    fn piece_from(&self, place: usize) -> io::Result<&'a [u8]> {
        let end = (place / self.1).saturating_add(1).saturating_mul(self.1).min(self.0.len());
        Ok(self.0.get(place..end).unwrap_or_default())
    }
}
