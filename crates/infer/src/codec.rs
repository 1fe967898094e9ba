//! Text and token ids, as the engine needs them.

use crate::BoxError;

/// What clients ask of a tokenizer beside encoding and decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerInfo {
    /// The class that loads the tokenizer's file in the transformers library.
    pub class: String,
    /// The text of the end-of-text token.
    pub end_of_text: String,
}

/// A tokenizer: text to token ids and back.
pub trait TextCodec: Send + Sync {
    /// The token ids of a text, without any token added before or after. Text that looks like a special token is
    /// encoded as text.
    ///
    /// # Errors
    /// When the tokenizer refuses the text.
    fn encode(&self, text: &str) -> Result<Vec<u32>, BoxError>;

    /// The text of token ids. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// When a token is not in the vocabulary.
    fn decode(&self, tokens: &[u32]) -> Result<String, BoxError>;

    /// The text of one token by itself, special tokens included; bytes that are no UTF-8 become U+FFFD, and an unknown
    /// token the empty string.
    fn token_text(&self, token: u32) -> String;

    /// A decoder that gives text as soon as it is complete, for the tokens that follow `after`; the text of `after`
    /// itself is not given.
    fn stream(&self, after: &[u32]) -> Box<dyn TextStream>;

    /// The token that ends a document.
    fn end_of_text(&self) -> u32;

    /// V, the number of tokens.
    fn vocab_size(&self) -> usize;

    /// What clients ask of the tokenizer itself.
    fn info(&self) -> TokenizerInfo;
}

/// Turns tokens into text one at a time without ever cutting a character.
pub trait TextStream: Send {
    /// Takes the next token and gives the text that it completes, which may be empty.
    ///
    /// # Errors
    /// When the token is not in the vocabulary.
    fn push(&mut self, token: u32) -> Result<String, BoxError>;

    /// The text of what is left when no more tokens come, with U+FFFD for a character that was never completed.
    fn finish(&mut self) -> String;
}
