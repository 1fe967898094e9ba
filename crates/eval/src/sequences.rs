//! Cutting documents into sequences, and dividing sequences among paths.

use std::collections::BTreeMap;

use dipaco_topology::PathId;

use crate::EvalError;
use crate::texts::Text;

/// A part of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    /// Index of its text in [`Plan::texts`].
    pub(crate) text: u32,
    pub(crate) document: u64,
    /// Index of its first token in the document.
    pub(crate) start: u64,
    /// Number of tokens, more than the prefix and at least 2.
    pub(crate) length: usize,
    /// Index of its first chunk in [`Plan::paths`].
    pub(crate) chunk: usize,
}

/// The part of a sequence that a path reads: from the beginning to the end of the last chunk of that path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Index in [`Plan::sequences`].
    pub(crate) sequence: usize,
    /// Number of tokens.
    pub(crate) length: usize,
}

/// All sequences and the path of each of their chunks. Takes about 40 bytes of memory a sequence, far less than the token
/// file.
pub(crate) struct Plan<'a> {
    pub(crate) texts: &'a [Text<'a>],
    pub(crate) sequences: Vec<Sequence>,
    /// The paths of all chunks, one sequence after the other.
    pub(crate) paths: Vec<PathId>,
    /// Tokens of a chunk; the last chunk of a sequence may have fewer.
    pub(crate) chunk_tokens: usize,
    /// Number of tokens at the start of each sequence that are read and not counted.
    pub(crate) prefix: usize,
}

impl<'a> Plan<'a> {
    /// Cuts all documents into sequences. Every chunk goes to the path of its document. Opens each text in turn, so a text that
    /// can't be read is found before anything is scored.
    pub(crate) fn new(
        texts: &'a [Text<'a>],
        sequence_tokens: usize,
        prefix: usize,
        chunk_tokens: usize,
    ) -> Result<Self, EvalError> {
        let mut plan = Self { texts, sequences: Vec::new(), paths: Vec::new(), chunk_tokens, prefix };
        for (text, place) in texts.iter().zip(0u32..) {
            let file = text.open()?;
            for document in 0..text.documents {
                let range = file.document_range(document);
                for (start, length) in cut(range.end - range.start, sequence_tokens, prefix) {
                    let chunk = plan.paths.len();
                    plan.sequences.push(Sequence { text: place, document, start, length, chunk });
                    plan.paths.resize(chunk + length.div_ceil(chunk_tokens), text.path);
                }
            }
        }
        Ok(plan)
    }

    /// The text of a sequence.
    pub(crate) fn text(&self, sequence: &Sequence) -> &Text<'a> {
        &self.texts[sequence.text as usize]
    }

    /// The first `length` tokens of a sequence.
    pub(crate) fn tokens(&self, sequence: &Sequence, length: usize) -> Result<Vec<u32>, EvalError> {
        let file = self.text(sequence).open()?;
        let range = sequence.start..sequence.start + length as u64;
        Ok(file.document(sequence.document).slice(range).to_vec())
    }

    /// The paths of a sequence's chunks.
    pub(crate) fn chunks(&self, sequence: &Sequence) -> &[PathId] {
        &self.paths[sequence.chunk..][..sequence.length.div_ceil(self.chunk_tokens)]
    }

    /// Returns whether `path` scores the token at index `place` of a sequence.
    pub(crate) fn counts(&self, sequence: &Sequence, path: PathId, place: usize) -> bool {
        place >= self.prefix.max(1) && self.paths[sequence.chunk + place / self.chunk_tokens] == path
    }

    /// The pieces that each path reads, in the order of the sequences. Pieces without counted tokens are left out.
    pub(crate) fn pieces(&self) -> BTreeMap<PathId, Vec<Piece>> {
        let mut pieces: BTreeMap<PathId, Vec<Piece>> = BTreeMap::new();
        let mut ends: Vec<(PathId, usize)> = Vec::new();
        for (sequence, place) in self.sequences.iter().zip(0..) {
            ends.clear();
            for (&path, chunk) in self.chunks(sequence).iter().zip(1..) {
                let end = sequence.length.min(chunk * self.chunk_tokens);
                if end > self.prefix.max(1) {
                    match ends.iter_mut().find(|(known, _)| *known == path) {
                        Some((_, known)) => *known = end,
                        None => ends.push((path, end)),
                    }
                }
            }
            for &(path, length) in &ends {
                pieces.entry(path).or_default().push(Piece { sequence: place, length });
            }
        }
        pieces
    }
}

/// The sequences of a document of `tokens` tokens that count at least one token: index of the first token, and length.
fn cut(tokens: u64, sequence: usize, prefix: usize) -> impl Iterator<Item = (u64, usize)> + use<> {
    let whole = sequence as u64;
    (0..tokens)
        .step_by(sequence)
        .map(move |start| (start, (tokens - start).min(whole) as usize))
        .filter(move |&(_, length)| length > prefix.max(1))
}

/// Indices of the items in batch order: longest first, so that the rows of a batch need little padding. Items of equal
/// length keep their order, so the result depends only on the lengths.
pub(crate) fn longest_first<T>(items: &[T], length: impl Fn(&T) -> usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&place| std::cmp::Reverse(length(&items[place])));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_cut_and_what_counts_nothing_is_left_out() {
        let lengths =
            |tokens, sequence, prefix| -> Vec<(u64, usize)> { cut(tokens, sequence, prefix).collect() };
        assert_eq!(lengths(100, 40, 32), [(0, 40), (40, 40)]);
        assert_eq!(lengths(113, 40, 32), [(0, 40), (40, 40), (80, 33)]);
        assert_eq!(lengths(32, 40, 32), []);
        assert_eq!(lengths(33, 40, 32), [(0, 33)]);
        assert_eq!(lengths(3, 2, 0), [(0, 2)]);
        assert_eq!(lengths(0, 40, 32), []);
    }

    #[test]
    fn a_path_reads_up_to_its_last_chunk_and_counts_its_own() {
        let [a, b] = [PathId(0), PathId(1)];
        let sequence = Sequence { text: 0, document: 0, start: 0, length: 45, chunk: 0 };
        let plan = Plan {
            texts: &[],
            sequences: vec![sequence],
            paths: vec![a, b, a, b, b],
            chunk_tokens: 10,
            prefix: 12,
        };
        let pieces = plan.pieces();
        assert_eq!(pieces[&a], [Piece { sequence: 0, length: 30 }]);
        assert_eq!(pieces[&b], [Piece { sequence: 0, length: 45 }]);
        let counted =
            |path| -> Vec<usize> { (0..45).filter(|&at| plan.counts(&sequence, path, at)).collect() };
        assert_eq!(counted(a), (20..30).collect::<Vec<_>>());
        assert_eq!(counted(b), (12..20).chain(30..45).collect::<Vec<_>>());
        // The first chunk of path a alone would count nothing.
        let plan = Plan { paths: vec![a, b, b, b, b], ..plan };
        assert_eq!(plan.pieces().keys().copied().collect::<Vec<_>>(), [b]);
    }
}
