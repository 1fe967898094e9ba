//! The error of this package.

use thiserror::Error;

/// Token ids that are not a batch of a vocabulary.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenError {
    /// The ids are not whole rows.
    #[error("{ids} token ids are not {rows} rows of one length: give at least one row and one token")]
    Rows {
        /// Number of ids.
        ids: usize,
        /// Number of rows.
        rows: usize,
    },
    /// The number of targets is not the number of tokens.
    #[error("{targets} targets were given for {tokens} tokens: give one for each position")]
    Targets {
        /// Number of tokens.
        tokens: usize,
        /// Number of targets.
        targets: usize,
    },
    /// An id is outside of the vocabulary.
    #[error(
        "token id {id} is not in the vocabulary of {vocabulary} entries: was the text encoded by another tokenizer?"
    )]
    Outside {
        /// The id.
        id: u32,
        /// Its place among the ids of the batch.
        at: usize,
        /// V, or the number of outputs for a target.
        vocabulary: usize,
    },
}
