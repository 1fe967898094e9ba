//! A view of tokens in a mapped file.

use std::ops::Range;
use std::path::Path;

use crate::ShardsError;

/// Tokens in a mapped token file, in the integer type of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens<'a> {
    /// Vocabularies of up to 65,536 ids.
    U16(&'a [u16]),
    /// Larger vocabularies.
    U32(&'a [u32]),
}

impl<'a> Tokens<'a> {
    /// Number of tokens.
    pub fn len(self) -> usize {
        match self {
            Self::U16(tokens) => tokens.len(),
            Self::U32(tokens) => tokens.len(),
        }
    }

    /// True if there are no tokens.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The token at a place.
    pub fn get(self, at: usize) -> Option<u32> {
        match self {
            Self::U16(tokens) => tokens.get(at).map(|&token| u32::from(token)),
            Self::U32(tokens) => tokens.get(at).copied(),
        }
    }

    /// A part of the tokens; a range beyond the end is cut.
    pub fn slice(self, range: Range<u64>) -> Self {
        let length = self.len() as u64;
        let end = range.end.min(length) as usize;
        let start = range.start.min(end as u64) as usize;
        match self {
            Self::U16(tokens) => Self::U16(&tokens[start..end]),
            Self::U32(tokens) => Self::U32(&tokens[start..end]),
        }
    }

    /// The tokens one by one.
    pub fn iter(self) -> impl ExactSizeIterator<Item = u32> + 'a {
        (0..self.len()).map(move |at| match self {
            Self::U16(tokens) => u32::from(tokens[at]),
            Self::U32(tokens) => tokens[at],
        })
    }

    /// A copy of the tokens.
    pub fn to_vec(self) -> Vec<u32> {
        match self {
            Self::U16(tokens) => tokens.iter().map(|&token| u32::from(token)).collect(),
            Self::U32(tokens) => tokens.to_vec(),
        }
    }

    /// Checks that every token is below `vocab_size`. `start` is the place of the first token in the file, for the message.
    ///
    /// # Errors
    /// A token is outside the vocabulary; the error has the first such token.
    pub(crate) fn check_vocabulary(
        self,
        vocab_size: u32,
        path: &Path,
        start: u64,
    ) -> Result<(), ShardsError> {
        // One maximum is a loop over vectors, cheaper than a comparison and a branch for each token; the search for the
        // place runs only in a damaged file.
        let largest = match self {
            Self::U16(tokens) => tokens.iter().max().map(|&token| u32::from(token)),
            Self::U32(tokens) => tokens.iter().max().copied(),
        };
        if largest.is_none_or(|largest| largest < vocab_size) {
            return Ok(());
        }
        let at = self.iter().position(|token| token >= vocab_size).unwrap_or_default();
        Err(ShardsError::TokenOutOfVocabulary {
            path: path.to_owned(),
            place: format!("place {}", start + at as u64),
            token: self.get(at).unwrap_or_default(),
            vocab_size,
        })
    }
}
