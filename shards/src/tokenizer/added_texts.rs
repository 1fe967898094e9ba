//! The texts of a tokenizer's added tokens, which it finds in a text before anything else.

use std::ops::Range;

/// The texts of the added tokens.
#[derive(Clone, Default)]
pub(super) struct AddedTexts {
    /// In the order of their bytes.
    texts: Vec<Box<[u8]>>,
    /// True if what stands beside the text of a token matters: it takes the spaces there, or is a token only as a whole word.
    neighbours_matter: bool,
}

impl AddedTexts {
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer) -> Self {
        let added = tokenizer.get_added_tokens_decoder();
        let neighbours_matter = added.values().any(|token| token.lstrip || token.rstrip || token.single_word);
        let texts = added.values().map(|token| token.content.as_bytes());
        let mut texts: Vec<Box<[u8]>> = texts.filter(|text| !text.is_empty()).map(Box::from).collect();
        texts.sort_unstable();
        Self { texts, neighbours_matter }
    }

    pub(super) fn neighbours_matter(&self) -> bool {
        self.neighbours_matter
    }

    /// Bytes of the longest of these texts with which `text` begins; 0 if it begins with none.
    pub(super) fn at_front(&self, text: &[u8]) -> usize {
        // Those that agree with the bytes so far.
        let mut range = self.texts.as_slice();
        let mut longest = 0;
        for (index, byte) in text.iter().enumerate() {
            let from = range.partition_point(|text| text.get(index) < Some(byte));
            let to = range.partition_point(|text| text.get(index) <= Some(byte));
            range = &range[from..to];
            let Some(shortest) = range.first() else { break };
            if shortest.len() == index + 1 {
                longest = index + 1;
            }
        }
        longest
    }

    /// For each place: the largest end of one of these texts that begins before it, 0 without one.
    pub(super) fn reaches(&self, text: &[u8], places: Range<usize>) -> Vec<usize> {
        let Some(longest) = self.texts.iter().map(|text| text.len()).max() else {
            return vec![0; places.len()];
        };
        let mut reaches = Vec::with_capacity(places.len());
        let mut reach = 0;
        for at in places.start.saturating_sub(longest)..places.end {
            if at >= places.start {
                reaches.push(reach);
            }
            let length = self.at_front(&text[at..]);
            if length > 0 {
                reach = reach.max(at + length);
            }
        }
        reaches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_text_counts_and_reaches_over_places() {
        let texts = ["<a>", "<a>b", "x"].map(|text| Box::<[u8]>::from(text.as_bytes())).to_vec();
        let added = AddedTexts { texts, neighbours_matter: false };
        assert_eq!(
            [b"<a>bc".as_slice(), b"<a>c", b"<a", b"yx", b""].map(|text| added.at_front(text)),
            [4, 3, 0, 0, 0]
        );
        assert_eq!(added.reaches(b"y<a>bxy", 0..8), [0, 0, 5, 5, 5, 5, 6, 6]);
        assert_eq!(added.reaches(b"y<a>bxy", 4..6), [5, 5]);
        assert_eq!(AddedTexts::default().reaches(b"<a>", 1..3), [0, 0]);
    }
}
