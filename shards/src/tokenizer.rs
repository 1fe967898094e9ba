//! The tokenizer: text to token ids and back.

mod added_texts;
mod bytes;
mod decoder;
mod library;
mod pieces;
mod train;

use std::path::Path;
use std::sync::Arc;

use tokenizers::AddedToken;

use crate::ShardsError;
use added_texts::AddedTexts;
use bytes::TokenBytes;
use library::library;

pub use decoder::IncrementalDecoder;
pub use train::TokenizerTrainer;

/// The end-of-text token of a tokenizer that this program trains.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// Usual names of the end-of-text token, in the order of trying.
const END_OF_TEXT_NAMES: [&str; 4] = [END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>"];

/// Ids below this number may have gaps of any size between them. A model has a row for each id, so larger ids need a token for
/// every second row.
const SPARSE_IDS: usize = 1 << 20;

/// Most bytes in the text of an added token. They are looked for at every place of a chat, so the time grows with this length.
const ADDED_TOKEN_BYTES: usize = 1024;

/// A tokenizer in Hugging Face's `tokenizer.json` format, with the guarantees that training needs.
///
/// - Text never yields special tokens: a literal `<|endoftext|>` in a document is encoded as its characters.
/// - A text of any length takes linear time, because it is encoded in pieces of at most 64 KiB. The pieces start before
///   a space and a letter, where byte-level tokenizers (GPT-2, Llama 3 …) split anyway, so the ids equal the ids of the
///   whole text. Only a run of 32 KiB without such a place is cut inside a word.
/// - Nothing is truncated or padded, even if the file demands it.
///
/// Cloning is cheap.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    bytes: Option<Arc<TokenBytes>>,
    /// A token of letters, for tokenizers that write a token otherwise at the beginning of a text.
    anchor: Option<u32>,
    json: Arc<[u8]>,
    hash: String,
    end_of_text: u32,
    vocab_size: u32,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("hash", &self.hash).field("vocab_size", &self.vocab_size).finish()
    }
}

impl Tokenizer {
    /// The largest length of a `tokenizer.json` in bytes. Known tokenizers have up to 35 MB.
    pub const LARGEST_FILE: u64 = 128 << 20;

    /// Bytes of memory that a byte of a `tokenizer.json` can take: a value of JSON can take forty times its text.
    pub const MEMORY_OF_A_BYTE: u64 = 40;

    /// Reads a `tokenizer.json`. `end_of_text` names its end-of-text token; `None` tries the usual names.
    ///
    /// # Errors
    /// The file cannot be read, is longer than any tokenizer, is not a tokenizer, or has no end-of-text token.
    pub fn from_file(path: &Path, end_of_text: Option<&str>) -> Result<Self, ShardsError> {
        let read = dipaco_files::read_regular(path, Self::LARGEST_FILE);
        let json = read
            .map_err(ShardsError::io("read", path))?
            .ok_or_else(|| ShardsError::TooLarge { path: path.to_owned(), largest: Self::LARGEST_FILE })?;
        Self::from_bytes(&json, end_of_text, &path.display().to_string())
    }

    /// Reads the bytes of a `tokenizer.json`. Errors mention `name`.
    ///
    /// # Errors
    /// The bytes are not a tokenizer, an added token is longer than any real one, or there is no end-of-text token.
    pub fn from_bytes(json: &[u8], end_of_text: Option<&str>, name: &str) -> Result<Self, ShardsError> {
        let refuse = |reason: String| ShardsError::Tokenizer { name: name.to_owned(), reason };
        let mut inner = library(name, "read it; give a tokenizer.json of the tokenizers library", || {
            let mut inner = tokenizers::Tokenizer::from_bytes(json)?;
            inner.with_truncation(None)?;
            inner.with_padding(None);
            Ok(inner)
        })?;
        let added = inner.get_added_tokens_decoder();
        if let Some((id, token)) = added.iter().find(|(_, token)| token.content.len() > ADDED_TOKEN_BYTES) {
            return Err(refuse(format!(
                "has an added token, {id}, of {} bytes: the limit is {ADDED_TOKEN_BYTES}; take the token out of added_tokens, or \
                 use another tokenizer",
                token.content.len()
            )));
        }
        let vocabulary = inner.get_vocab(true);
        let largest = vocabulary.values().copied().max().unwrap_or_default();
        if largest as usize >= SPARSE_IDS.max(2 * vocabulary.len()) {
            return Err(refuse(format!(
                "has the id {largest}, but only {} tokens: a model has a row for each id, so ids must be below {SPARSE_IDS} or \
                 below twice the number of tokens",
                vocabulary.len()
            )));
        }

        let end = match end_of_text {
            Some(name) => inner.token_to_id(name).map(|_| name).ok_or_else(|| {
                refuse(format!("has no token {name:?}: name its end-of-text token in prepare.end_of_text"))
            })?,
            None => END_OF_TEXT_NAMES.into_iter().find(|name| inner.token_to_id(name).is_some()).ok_or_else(
                || {
                    refuse(format!(
                        "has no end-of-text token (looked for {}): name it in prepare.end_of_text",
                        END_OF_TEXT_NAMES.join(", ")
                    ))
                },
            )?,
        };
        // The library keeps only special tokens from matching in text, and files do not always mark theirs.
        library(name, "mark the end-of-text token", || {
            inner.add_special_tokens([AddedToken::from(end, true)])
        })?;
        inner.set_encode_special_tokens(true);
        let id = inner.token_to_id(end).ok_or_else(|| refuse(format!("lost its token {end:?}")))?;
        let probe = library(name, "encode text with it", || inner.encode_fast(end, false))?;
        if probe.get_ids().contains(&id) {
            return Err(refuse(format!(
                "encodes the text {end:?} as the end-of-text token, so documents could forge their end: use a tokenizer where it is a special token outside of the model's merges"
            )));
        }
        let vocab_size = largest.saturating_add(1);
        let bytes = TokenBytes::new(&inner, vocab_size).map(Arc::new);
        let anchor = if bytes.is_none() { anchor(&inner, vocabulary.into_values().collect()) } else { None };
        Ok(Self {
            inner: Arc::new(inner),
            bytes,
            anchor,
            json: json.into(),
            hash: dipaco_files::content_hash(json),
            end_of_text: id,
            vocab_size,
        })
    }

    /// The token ids of a text, without an end-of-text token.
    ///
    /// # Errors
    /// The library fails. A byte-level tokenizer never does.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ShardsError> {
        encode_pieces(&self.inner, &AddedTexts::default(), text, &self.hash, "encode a text")
    }

    /// The text of token ids. Special tokens give no text; broken UTF-8 gives U+FFFD.
    ///
    /// # Errors
    /// The library's decoder fails. A byte-level decoder never does.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ShardsError> {
        match &self.bytes {
            Some(table) => {
                let mut bytes = Vec::with_capacity(ids.len() * 4);
                ids.iter().for_each(|&id| bytes.extend_from_slice(table.of(id)));
                Ok(String::from_utf8(bytes)
                    .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
            }
            None => library(&self.hash, "decode token ids", || self.inner.decode(ids, true)),
        }
    }

    /// An encoder for texts that a chat template made: in them the text of a special token stands for that token.
    pub fn template_encoder(&self) -> TemplateEncoder {
        let mut inner = self.inner.as_ref().clone();
        inner.set_encode_special_tokens(false);
        TemplateEncoder { added: AddedTexts::new(&inner), inner, hash: self.hash.clone() }
    }

    /// A decoder for tokens that arrive one at a time.
    pub fn incremental_decoder(&self) -> IncrementalDecoder {
        IncrementalDecoder::new(self.clone())
    }

    /// Bytes of a token within a text, empty for special tokens and unknown ids. A token may be part of a character. Some
    /// tokenizers leave out a space at the beginning of a text; here it is not left out.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn token_bytes(&self, id: u32) -> Result<Vec<u8>, ShardsError> {
        if let Some(table) = &self.bytes {
            return Ok(table.of(id).to_vec());
        }
        let alone = self.decode(&[id])?;
        if let Some(byte) = self.inner.id_to_token(id).and_then(|token| fallback_byte(&token))
            && alone.chars().count() == 1
        {
            return Ok(vec![byte]);
        }
        let Some(anchor) = self.anchor else { return Ok(alone.into_bytes()) };
        let (before, all) = (self.decode(&[anchor])?, self.decode(&[anchor, id])?);
        Ok(all.strip_prefix(&before).unwrap_or(&alone).as_bytes().to_vec())
    }

    /// The text of a special token, as a chat template writes it. `None` for all other ids.
    #[must_use]
    pub fn special_text(&self, id: u32) -> Option<String> {
        let token = self.inner.get_added_vocabulary().get_added_tokens_decoder().get(&id)?;
        token.special.then(|| token.content.clone())
    }

    /// False for special tokens and unknown ids, which [`Self::decode`] leaves out.
    fn has_text(&self, id: u32) -> bool {
        let special = |token: &str| self.inner.get_added_vocabulary().is_special_token(token);
        self.inner.id_to_token(id).is_some_and(|token| !special(&token))
    }

    /// The end-of-text token's id.
    pub fn end_of_text(&self) -> u32 {
        self.end_of_text
    }

    /// The token that the file's own rules write before a text. [`Self::encode`] does not write it.
    #[must_use]
    pub fn first_token(&self) -> Option<String> {
        let first = |with_special: bool| {
            let encoding =
                library(&self.hash, "encode a letter", || self.inner.encode_fast("a", with_special));
            encoding.ok()?.get_ids().first().copied()
        };
        let found = first(true).filter(|&id| first(false) != Some(id))?;
        self.inner.id_to_token(found)
    }

    /// The end-of-text token as the tokenizer writes it.
    #[must_use]
    pub fn end_of_text_text(&self) -> String {
        self.token_text(self.end_of_text)
    }

    /// A token as the tokenizer writes it, empty for unknown ids.
    pub(crate) fn token_text(&self, id: u32) -> String {
        self.inner.id_to_token(id).unwrap_or_default()
    }

    /// Number of ids: the largest id plus one.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// BLAKE3 of the `tokenizer.json` in hexadecimal. Token files and runs compare it.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The bytes of the `tokenizer.json`, exactly as read or trained.
    pub fn to_json(&self) -> &[u8] {
        &self.json
    }

    fn table(&self) -> Option<&TokenBytes> {
        self.bytes.as_deref()
    }
}

/// The first token of nothing but ASCII letters. `None` if there is none.
fn anchor(tokenizer: &tokenizers::Tokenizer, mut ids: Vec<u32>) -> Option<u32> {
    ids.sort_unstable();
    let is_word = |text: String| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic());
    ids.into_iter().find(|&id| library("", "", || tokenizer.decode(&[id], true)).is_ok_and(is_word))
}

/// The byte that a token `<0x0A>` of a tokenizer with byte fallback stands for.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The token ids of a text, which is encoded in pieces. No cut divides a text of `added`.
fn encode_pieces(
    tokenizer: &tokenizers::Tokenizer,
    added: &AddedTexts,
    text: &str,
    name: &str,
    action: &'static str,
) -> Result<Vec<u32>, ShardsError> {
    let mut ids = Vec::with_capacity(text.len() / 3);
    for piece in pieces::pieces(text, added) {
        let encoding = library(name, action, || tokenizer.encode_fast(piece, false))?;
        ids.extend_from_slice(encoding.get_ids());
    }
    Ok(ids)
}

/// Encodes texts in which the text of a special token stands for that token.
///
/// As with [`Tokenizer::encode`] a long text is encoded in pieces. No cut divides the text of an added token.
#[derive(Clone)]
pub struct TemplateEncoder {
    inner: tokenizers::Tokenizer,
    added: AddedTexts,
    hash: String,
}

impl TemplateEncoder {
    /// The token ids of a text.
    ///
    /// # Errors
    /// The library fails. A byte-level tokenizer never does.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ShardsError> {
        encode_pieces(&self.inner, &self.added, text, &self.hash, "encode a chat")
    }
}

#[cfg(test)]
mod tests;
