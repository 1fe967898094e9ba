//! Reading bytes and values at any place of a file that lies in pieces.

use std::io;

use dipaco_model::{Dtype, append_file_values};

use crate::pieced_file::PiecedFile;

/// A place in a file that lies in pieces. It holds one piece, and reads another one only when the place is outside of it.
pub(crate) struct PieceCursor<'a, F: PiecedFile> {
    file: &'a F,
    /// The bytes of a piece, from the byte `begin` of the file on.
    piece: Option<F::Piece>,
    begin: usize,
    /// Bytes of the file before the place.
    place: usize,
}

impl<'a, F: PiecedFile> PieceCursor<'a, F> {
    /// The begin of the file.
    pub(crate) fn new(file: &'a F) -> Self {
        Self { file, piece: None, begin: 0, place: 0 }
    }

    /// Reads `count` values from the byte `place` of the file on into `values`, which it replaces. Returns whether the file
    /// has them.
    ///
    /// # Errors
    /// When the file can't be read.
    pub(crate) fn read(
        &mut self,
        place: usize,
        count: usize,
        dtype: Dtype,
        values: &mut Vec<f32>,
    ) -> io::Result<bool> {
        let length = dtype.bytes();
        values.clear();
        self.place = place;
        while values.len() < count {
            let bytes = self.bytes_here()?;
            let whole = (bytes.len() / length).min(count - values.len()) * length;
            append_file_values(values, bytes.get(..whole).unwrap_or_default(), dtype);
            self.place += whole;
            if whole == 0 {
                // A value that lies in two or more pieces.
                let cut = self.read_bytes(self.place, length)?;
                if cut.len() < length {
                    return Ok(false);
                }
                append_file_values(values, &cut, dtype);
            }
        }
        Ok(true)
    }

    /// Reads `count` bytes from the byte `place` of the file on, or those before its end.
    ///
    /// # Errors
    /// When the file can't be read.
    pub(crate) fn read_bytes(&mut self, place: usize, count: usize) -> io::Result<Vec<u8>> {
        let mut found = Vec::new();
        self.place = place;
        while found.len() < count {
            let bytes = self.bytes_here()?;
            let next = bytes.get(..bytes.len().min(count - found.len())).unwrap_or_default();
            if next.is_empty() {
                break;
            }
            found.extend_from_slice(next);
            self.place += next.len();
        }
        Ok(found)
    }

    /// The bytes of a piece from the place on; none at the end of the file.
    fn bytes_here(&mut self) -> io::Result<&[u8]> {
        let within = self.place.checked_sub(self.begin);
        let held = self.piece.as_ref().map_or(0, |piece| piece.as_ref().len());
        let within = match within.filter(|&within| within < held) {
            Some(within) => within,
            None => {
                self.piece = Some(self.file.piece_from(self.place)?);
                self.begin = self.place;
                0
            }
        };
        let piece = self.piece.as_ref().map(AsRef::as_ref).unwrap_or_default();
        Ok(piece.get(within..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use dipaco_model::file_bytes;

    use super::*;
    use crate::pieced_file::Cut;

    #[test]
    fn values_are_read_at_any_place_and_across_pieces() {
        let numbers: Vec<f32> = (0..50).map(|number| number as f32).collect();
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let (bytes, length) = ([&[7; 3][..], &file_bytes(&numbers, dtype)].concat(), dtype.bytes());
            for size in [1, 2, 3, 4, 5, 11, 1000] {
                let file = Cut(&bytes, size);
                let mut cursor = PieceCursor::new(&file);
                let mut values = Vec::new();
                for (first, count) in [(0, 50), (0, 1), (1, 7), (8, 20), (49, 1), (3, 0), (20, 30), (50, 0)] {
                    assert!(cursor.read(3 + first * length, count, dtype, &mut values).unwrap());
                    assert_eq!(values, numbers[first..first + count], "pieces of {size} bytes");
                }
                assert!(!cursor.read(3 + 49 * length, 2, dtype, &mut values).unwrap());
                assert!(!cursor.read(usize::MAX, 1, dtype, &mut values).unwrap());
                assert!(cursor.read(3, 2, dtype, &mut values).unwrap());
            }
        }
    }

    /// A file that counts the pieces that are read of it.
    struct Counted<'a>(Cut<'a>, Cell<usize>);

    impl<'a> PiecedFile for Counted<'a> {
        type Piece = &'a [u8];

        fn length(&self) -> usize {
            self.0.length()
        }

        fn piece_from(&self, place: usize) -> io::Result<&'a [u8]> {
            self.1.set(self.1.get() + 1);
            self.0.piece_from(place)
        }
    }

    #[test]
    fn values_far_from_each_other_cost_a_piece_each() {
        let bytes = vec![0; 1 << 16];
        let file = Counted(Cut(&bytes, 64), Cell::new(0));
        let mut cursor = PieceCursor::new(&file);
        let mut values = Vec::new();
        for place in [60_000, 60_004, 60_008, 4, 8, 30_000, 0] {
            assert!(cursor.read(place, 1, Dtype::F32, &mut values).unwrap());
        }
        assert_eq!(file.1.get(), 4);
    }
}
