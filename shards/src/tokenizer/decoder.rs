//! Decoding tokens as they arrive.

use super::Tokenizer;
use crate::ShardsError;

/// Largest number of tokens that wait for the rest of a character. A character has at most 4 bytes, and a token
/// at least one.
const MOST_PENDING: usize = 8;

/// Largest number of tokens with text that a decoder reads to continue a text. Only bytes that are no UTF-8 need as many.
const MOST_CONTEXT: usize = 4 * MOST_PENDING;

impl Tokenizer {
    /// The last of the tokens `before`, as many as an [`IncrementalDecoder`] must read to continue their text as if it had read
    /// them all: some tokens with text, from the beginning of a character on.
    #[must_use]
    pub fn decoder_context<'a>(&self, before: &'a [u32]) -> &'a [u32] {
        let has_text = |id| self.table().map_or_else(|| self.has_text(id), |table| !table.of(id).is_empty());
        // A byte of a character other than the first has the bits 10 at its front.
        let begins = |bytes: Vec<u8>| bytes.first().is_none_or(|byte| byte & 0xC0 != 0x80);
        let mut texts = 0;
        for (start, &id) in before.iter().enumerate().rev().filter(|&(_, &id)| has_text(id)) {
            texts += 1;
            // The decoder of a text in the middle of a character would take whole characters behind it for broken ones.
            let enough = texts >= MOST_PENDING && self.token_bytes(id).is_ok_and(begins);
            if enough || texts == MOST_CONTEXT {
                return &before[start..];
            }
        }
        before
    }
}

/// Turns tokens that arrive one at a time into text of whole characters.
///
/// [`Self::push`] returns the text that the token completes, often empty after part of a character. [`Self::flush`]
/// returns U+FFFD for a pending part of a character. All returned texts together equal [`Tokenizer::decode`] of all
/// tokens. Only of bytes that are no UTF-8 a tokenizer with byte fallback may make another number of U+FFFD.
pub struct IncrementalDecoder {
    tokenizer: Tokenizer,
    /// Bytes of an unfinished character (byte-level tokenizers).
    partial: Vec<u8>,
    /// Tokens that later tokens need as context (other tokenizers).
    window: Vec<u32>,
    /// Number of tokens of the window whose text has been returned.
    emitted: usize,
}

impl IncrementalDecoder {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, partial: Vec::new(), window: Vec::new(), emitted: 0 }
    }

    /// Takes the next token; returns the text that it completes.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, id: u32) -> Result<String, ShardsError> {
        match self.tokenizer.table() {
            Some(table) => {
                self.partial.extend_from_slice(table.of(id));
                Ok(take_complete(&mut self.partial))
            }
            None => self.push_by_window(id),
        }
    }

    /// Ends the stream and returns U+FFFD for an unfinished character, else nothing. The decoder starts anew.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn flush(&mut self) -> Result<String, ShardsError> {
        let tail = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        let pending = self.pending_text()?;
        self.window.clear();
        self.emitted = 0;
        Ok(tail + &pending)
    }

    /// For decoders that read neighbouring tokens (spaces at the start, byte fallback): decodes a short window again and
    /// returns the new text.
    fn push_by_window(&mut self, id: u32) -> Result<String, ShardsError> {
        // Without text a token is no context for the next one either: a window of such tokens would look like a beginning.
        if !self.tokenizer.has_text(id) {
            return Ok(String::new());
        }
        self.window.push(id);
        let text = self.pending_text()?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && self.window.len() - self.emitted < MOST_PENDING {
            return Ok(String::new());
        }
        self.window.drain(..self.emitted);
        self.emitted = self.window.len();
        Ok(text)
    }

    fn pending_text(&self) -> Result<String, ShardsError> {
        let before = self.tokenizer.decode(&self.window[..self.emitted])?;
        let all = self.tokenizer.decode(&self.window)?;
        Ok(all.strip_prefix(&before).unwrap_or(&all).to_owned())
    }
}

/// Takes the complete characters from the front of `bytes`, with U+FFFD for bytes that can never become UTF-8.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut done = 0;
    loop {
        match std::str::from_utf8(&bytes[done..]) {
            Ok(rest) => {
                text.push_str(rest);
                done = bytes.len();
                break;
            }
            Err(error) => {
                let valid = done + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[done..valid]));
                match error.error_len() {
                    Some(broken) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        done = valid + broken;
                    }
                    None => {
                        done = valid;
                        break;
                    }
                }
            }
        }
    }
    bytes.drain(..done);
    text
}
