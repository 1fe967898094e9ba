//! Reading values at any place of a file that lies in pieces.

use dipaco_model::{Dtype, append_file_values};

/// A place in a file that lies in pieces. Moving forward passes each piece once; moving back begins at the first piece.
pub(crate) struct PieceCursor<'a, I> {
    /// All pieces.
    pieces: I,
    /// The pieces after the current one.
    rest: I,
    /// The bytes of the current piece from the place on.
    piece: &'a [u8],
    /// Bytes of the file before the place.
    place: usize,
}

impl<'a, I: Iterator<Item = &'a [u8]> + Clone> PieceCursor<'a, I> {
    /// The begin of the file.
    pub(crate) fn new(pieces: I) -> Self {
        Self { rest: pieces.clone(), pieces, piece: &[], place: 0 }
    }

    /// Reads `count` values from the byte `place` of the file on into `values`, which it replaces. Returns whether the file
    /// has them.
    pub(crate) fn read(&mut self, place: usize, count: usize, dtype: Dtype, values: &mut Vec<f32>) -> bool {
        let length = dtype.bytes();
        values.clear();
        if place < self.place {
            (self.rest, self.piece, self.place) = (self.pieces.clone(), &[], 0);
        }
        while self.place < place {
            if self.pass(place - self.place) == 0 {
                return false;
            }
        }
        let mut cut = Vec::with_capacity(length);
        while values.len() < count {
            if cut.is_empty() {
                let whole = (self.piece.len() / length).min(count - values.len()) * length;
                append_file_values(values, self.piece.get(..whole).unwrap_or_default(), dtype);
                self.pass(whole);
                if values.len() == count {
                    break;
                }
            }
            // A value that lies in two or more pieces.
            let Some(&byte) = self.next_piece().first() else { return false };
            cut.push(byte);
            self.pass(1);
            if cut.len() == length {
                append_file_values(values, &cut, dtype);
                cut.clear();
            }
        }
        true
    }

    /// Moves on by at most `bytes`, within a piece. Returns the number of bytes; 0 at the end of the file.
    fn pass(&mut self, bytes: usize) -> usize {
        if bytes == 0 {
            return 0;
        }
        let (passed, rest) = self.next_piece().split_at(bytes.min(self.piece.len()));
        (self.piece, self.place) = (rest, self.place + passed.len());
        passed.len()
    }

    /// The bytes of the current piece, or of the next one that has any; none at the end of the file.
    fn next_piece(&mut self) -> &'a [u8] {
        while self.piece.is_empty()
            && let Some(piece) = self.rest.next()
        {
            self.piece = piece;
        }
        self.piece
    }
}

#[cfg(test)]
mod tests {
    use dipaco_model::file_bytes;

    use super::*;

    #[test]
    fn values_are_read_at_any_place_and_across_pieces() {
        let numbers: Vec<f32> = (0..50).map(|number| number as f32).collect();
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let (bytes, length) = ([&[7; 3][..], &file_bytes(&numbers, dtype)].concat(), dtype.bytes());
            for size in [1, 2, 3, 4, 5, 11, 1000] {
                let mut cursor = PieceCursor::new(bytes.chunks(size));
                let mut values = Vec::new();
                for (first, count) in [(0, 50), (0, 1), (1, 7), (8, 20), (49, 1), (3, 0), (20, 30), (50, 0)] {
                    assert!(cursor.read(3 + first * length, count, dtype, &mut values));
                    assert_eq!(values, numbers[first..first + count], "pieces of {size} bytes");
                }
                assert!(!cursor.read(3 + 49 * length, 2, dtype, &mut values));
                assert!(!cursor.read(usize::MAX, 1, dtype, &mut values));
                assert!(cursor.read(3, 2, dtype, &mut values));
            }
        }
    }

    #[test]
    fn pieces_without_bytes_are_passed() {
        let two = [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat();
        let pieces = [&[][..], &two[..3], &[], &two[3..], &[]];
        let mut cursor = PieceCursor::new(pieces.into_iter());
        let mut values = Vec::new();
        assert!(cursor.read(0, 2, Dtype::F32, &mut values) && values == [1.0, 2.0]);
        assert!(!cursor.read(8, 1, Dtype::F32, &mut values));
    }
}
