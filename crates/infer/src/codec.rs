//! The interface between the engine and a tokenizer.

use crate::BoxError;

/// Facts about a tokenizer, for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerInfo {
    /// Class of the transformers library that loads the tokenizer's file.
    pub class: String,
    /// Text of the end-of-text token.
    pub end_of_text: String,
}

/// A tokenizer: text to token ids and back.
pub trait TextCodec: Send + Sync {
    /// Returns the token ids of a text. No token is added before or after. Text that looks like a special token is encoded
    /// as text.
    ///
    /// # Errors
    /// When the tokenizer refuses the text.
    fn encode(&self, text: &str) -> Result<Vec<u32>, BoxError>;

    /// Returns the text of token ids. Invalid UTF-8 becomes U+FFFD. A token outside of the vocabulary may have no text instead
    /// of an error, so callers check ids of clients.
    ///
    /// # Errors
    /// When the tokenizer refuses the tokens.
    fn decode(&self, tokens: &[u32]) -> Result<String, BoxError>;

    /// Returns the text of a single token, which may be a special token. Invalid UTF-8 becomes U+FFFD, and an unknown token
    /// becomes the empty string.
    fn token_text(&self, token: u32) -> String;

    /// Returns the bytes of a single token, which may be a special token. A token that is a part of a character has the bytes
    /// of that part. By default they are those of [`token_text`](Self::token_text), for tokens that are whole characters.
    fn token_bytes(&self, token: u32) -> Vec<u8> {
        self.token_text(token).into_bytes()
    }

    /// Returns a decoder for the tokens that follow `after`. It returns text as soon as a character is complete, and never
    /// the text of `after` itself. A character that begins in `after` and does not end there belongs to what follows.
    ///
    /// `after` may be a long prompt, and each of its choices has a decoder: an implementation reads only the last tokens, as
    /// many as the text of the next ones depends on.
    fn stream(&self, after: &[u32]) -> Box<dyn TextStream>;

    /// Returns the token that ends a document.
    fn end_of_text(&self) -> u32;

    /// Returns the tokens that end a generated text. The end-of-text token is one of them.
    fn end_tokens(&self) -> Vec<u32> {
        vec![self.end_of_text()]
    }

    /// Returns V, the number of tokens.
    fn vocab_size(&self) -> usize;

    /// Returns facts about the tokenizer, for clients.
    fn info(&self) -> TokenizerInfo;
}

/// Decodes tokens one at a time into whole characters.
pub trait TextStream: Send {
    /// Takes the next token and returns the text that it completes, which may be empty.
    ///
    /// # Errors
    /// As [`TextCodec::decode`].
    fn push(&mut self, token: u32) -> Result<String, BoxError>;

    /// Ends the stream and returns the remaining text. An incomplete character becomes U+FFFD.
    fn finish(&mut self) -> String;
}
