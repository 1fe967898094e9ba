//! Token files: documents as token ids in HDF5, read through a memory map.
//!
//! A file is ordinary HDF5 (h5py and h5dump open it) with two contiguous, uncompressed, little-endian data sets:
//! `tokens` (u16 when the vocabulary fits, else u32) and `documents` (u64 offsets into `tokens`, one more than there
//! are documents; a document ends with its end-of-text token). Attributes of the root group say what it is. The first
//! 512 bytes, which HDF5 leaves to the application ("user block"), hold a [`Header`]: where the data sets are and a
//! checksum of HDF5's own structures, so that the HDF5 library, which trusts its input, never sees a damaged file.

mod assembly;
mod concatenate;
mod header;
mod tokens;
mod writer;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde::{Deserialize, Serialize};

use crate::{ShardsError, Tokenizer};
use header::Header;

pub use concatenate::concatenate;
pub use tokens::Tokens;
pub use writer::{TokenFileSummary, TokenFileWriter};

#[cfg(not(target_endian = "little"))]
compile_error!("token files are little-endian and are mapped as they are");

/// Version of the token file format that this program writes and reads.
pub const FORMAT_VERSION: u64 = 1;

/// Bytes that [`TokenFile::verify`] holds in memory.
const VERIFY_BYTES: u64 = 16 << 20;

/// The system maps up to so many bytes around one that is read, among them what was released before.
#[cfg(unix)]
const FAULT_AROUND: u64 = 128 << 10;

/// Attribute `format` of a token file.
const FORMAT: &str = "dipaco-tokens";

/// What the writer of a token file says about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenFileInfo {
    /// Hash of the tokenizer ([`Tokenizer::hash`]).
    pub tokenizer_hash: String,
    /// The end-of-text token, with which every document ends.
    pub end_of_text: u32,
    /// Number of token ids; every token is below it.
    pub vocab_size: u32,
    /// Where the text comes from: a JSON text with file names, sizes and hashes.
    pub source: String,
    /// For the shard of a path: a JSON text with its run, path and router. Empty for a whole corpus.
    pub origin: String,
}

/// All attributes of a token file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenFileMetadata {
    /// What its writer said.
    pub info: TokenFileInfo,
    /// Number of documents.
    pub documents: u64,
    /// Number of tokens, end-of-text tokens included.
    pub tokens: u64,
    /// Hash of the content: BLAKE3 of the BLAKE3 of the bytes of `tokens` followed by that of `documents`, in
    /// hexadecimal.
    pub content_hash: String,
}

/// A token file, opened for reading. Reading takes no lock and copies nothing.
pub struct TokenFile {
    path: PathBuf,
    map: Mmap,
    header: Header,
    metadata: TokenFileMetadata,
}

impl std::fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenFile").field("path", &self.path).field("metadata", &self.metadata).finish()
    }
}

impl TokenFile {
    /// Opens a token file and checks its structure: version, lengths, the checksum of its metadata, and that the
    /// document offsets are ascending and end at the last token. The tokens themselves are read by [`Self::verify`].
    ///
    /// # Errors
    /// The file cannot be read, is no token file, is of another version, or is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ShardsError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(ShardsError::io("open", path))?;
        // SAFETY: token files are written under a temporary name and never changed after their renaming, so the bytes
        // do not change while they are mapped.
        let map = unsafe { Mmap::map(&file) }.map_err(ShardsError::io("map", path))?;
        let header = Header::read(&map, path)?;
        let metadata = read_attributes(path, &header)?;
        let file = Self { path: path.to_owned(), map, header, metadata };
        file.check_structure()?;
        Ok(file)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The attributes.
    pub fn metadata(&self) -> &TokenFileMetadata {
        &self.metadata
    }

    /// Number of documents.
    pub fn documents(&self) -> u64 {
        self.header.documents
    }

    /// Number of tokens, end-of-text tokens included.
    pub fn tokens(&self) -> u64 {
        self.header.tokens
    }

    /// Hash of the tokenizer that made the file.
    pub fn tokenizer_hash(&self) -> &str {
        &self.metadata.info.tokenizer_hash
    }

    /// Hash of the content (see [`TokenFileMetadata::content_hash`]).
    pub fn content_hash(&self) -> &str {
        &self.metadata.content_hash
    }

    /// Number of token ids.
    pub fn vocab_size(&self) -> u32 {
        self.metadata.info.vocab_size
    }

    /// The end-of-text token.
    pub fn end_of_text(&self) -> u32 {
        self.metadata.info.end_of_text
    }

    /// The tokens of a document, its end-of-text token included. Empty when there is no such document.
    pub fn document(&self, document: u64) -> Tokens<'_> {
        let range = self.document_range(document);
        self.slice(range)
    }

    /// Where a document lies among all tokens. Empty when there is no such document.
    pub fn document_range(&self, document: u64) -> Range<u64> {
        let offsets = self.offsets();
        let at = usize::try_from(document).unwrap_or(usize::MAX);
        match (offsets.get(at), offsets.get(at.saturating_add(1))) {
            (Some(&start), Some(&end)) => start..end,
            _ => 0..0,
        }
    }

    /// A range of all tokens, cut to those that exist.
    pub fn slice(&self, range: Range<u64>) -> Tokens<'_> {
        self.all_tokens().slice(range)
    }

    /// Checks that the file was made with a tokenizer.
    ///
    /// # Errors
    /// It was made with another one.
    pub fn check_tokenizer(&self, tokenizer: &Tokenizer) -> Result<(), ShardsError> {
        if self.tokenizer_hash() == tokenizer.hash() {
            return Ok(());
        }
        Err(ShardsError::TokenizerMismatch {
            path: self.path.clone(),
            found: self.tokenizer_hash().to_owned(),
            expected: tokenizer.hash().to_owned(),
        })
    }

    /// Reads the whole file: the content hash, and that every token is in the vocabulary.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn verify(&self) -> Result<(), ShardsError> {
        let hash = |range: Range<u64>, see: &dyn Fn(Range<u64>)| {
            let mut hasher = blake3::Hasher::new();
            for start in range.clone().step_by(VERIFY_BYTES as usize) {
                let block = start..range.end.min(start + VERIFY_BYTES);
                hasher.update_rayon(self.region(block.clone()));
                see(block.clone());
                self.release_bytes(block);
            }
            hasher.finalize()
        };
        let tokens_range = self.header.tokens_range();
        let (first, bytes) = (tokens_range.start, self.header.token_bytes);
        // A token that the vocabulary lacks is told only of a file that is otherwise what was written.
        let outside = std::cell::Cell::new(None);
        let tokens = hash(tokens_range, &|block| {
            let start = (block.start - first) / bytes;
            let tokens = self.slice(start..(block.end - first) / bytes);
            if let Err(error) = tokens.check_vocabulary(self.vocab_size(), &self.path, start) {
                outside.set(outside.take().or(Some(error)));
            }
        });
        let documents = hash(self.header.documents_range(), &|_| ());
        if content_hash(&tokens, &documents) != self.metadata.content_hash {
            return Err(self.damaged("its content does not have the hash that it was written with"));
        }
        outside.take().map_or(Ok(()), Err)
    }

    /// Gives the memory back that reading some documents took; they are read from the file again when they are needed.
    /// For whoever reads a large file through once.
    pub fn release(&self, documents: Range<u64>) {
        let end =
            |document: u64| self.offsets().get(usize::try_from(document).unwrap_or(usize::MAX)).copied();
        if let (Some(start), Some(end)) = (end(documents.start), end(documents.end)) {
            let (first, bytes) = (self.header.tokens_offset, self.header.token_bytes);
            self.release_bytes(first + start * bytes..first + end * bytes);
        }
        let first = self.header.documents_offset;
        self.release_bytes(
            first + documents.start.saturating_mul(8)..first.saturating_add(documents.end.saturating_mul(8)),
        );
    }

    fn check_structure(&self) -> Result<(), ShardsError> {
        let offsets = self.offsets();
        let ends = (offsets.first().copied(), offsets.last().copied());
        if ends != (Some(0), Some(self.header.tokens)) {
            return Err(self.damaged("the document offsets do not start at 0 and end at the last token"));
        }
        if !offsets.is_sorted() {
            return Err(self.damaged("the document offsets are not ascending"));
        }
        self.release_bytes(self.header.documents_range());
        Ok(())
    }

    fn offsets(&self) -> &[u64] {
        // SAFETY: every bit pattern is a u64; `align_to` only gives aligned elements.
        let (before, offsets, after) =
            unsafe { self.region(self.header.documents_range()).align_to::<u64>() };
        debug_assert!(before.is_empty() && after.is_empty(), "Header::read checks the alignment");
        offsets
    }

    fn all_tokens(&self) -> Tokens<'_> {
        let bytes = self.region(self.header.tokens_range());
        // SAFETY: every bit pattern is a u16 and a u32; `align_to` only gives aligned elements, and `Header::read` has
        // checked the alignment, so nothing is left over at the ends.
        unsafe {
            if self.header.token_bytes == 2 {
                Tokens::U16(bytes.align_to::<u16>().1)
            } else {
                Tokens::U32(bytes.align_to::<u32>().1)
            }
        }
    }

    fn region(&self, range: Range<u64>) -> &[u8] {
        let bounds = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        bounds.and_then(|(start, end)| self.map.get(start..end)).unwrap_or_default()
    }

    /// Takes bytes of the file out of this process's memory.
    #[allow(clippy::unused_self, reason = "where there is no such advice")]
    fn release_bytes(&self, range: Range<u64>) {
        #[cfg(unix)]
        {
            let length = self.map.len() as u64;
            let (start, end) = (range.start.saturating_sub(FAULT_AROUND).min(length), range.end.min(length));
            // SAFETY: the map is of a file and is never written, so that its pages come back from the file as they
            // were.
            let advised = unsafe {
                self.map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    start as usize,
                    end.saturating_sub(start) as usize,
                )
            };
            if let Err(error) = advised {
                tracing::debug!(path = %self.path.display(), %error, "the system keeps the pages of a token file");
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    fn damaged(&self, reason: &str) -> ShardsError {
        ShardsError::Damaged { path: self.path.clone(), reason: reason.to_owned() }
    }
}

/// Whether tokens take 4 bytes, not 2.
fn is_wide(vocab_size: u32) -> bool {
    vocab_size > 1 << 16
}

fn content_hash(tokens: &blake3::Hash, documents: &blake3::Hash) -> String {
    let mut both = blake3::Hasher::new();
    both.update(tokens.as_bytes());
    both.update(documents.as_bytes());
    both.finalize().to_hex().to_string()
}

/// Reads the attributes with the HDF5 library and checks that they and the data sets are as the header says.
fn read_attributes(path: &Path, header: &Header) -> Result<TokenFileMetadata, ShardsError> {
    let wrap = |error| ShardsError::hdf5("open", path)(error);
    let file = hdf5::File::with_options()
        // Nobody writes to a finished file, and some network file systems have no locks.
        .with_fapl(|access| access.file_locking(false))
        .open(path)
        .map_err(wrap)?;
    let text = |name: &str| -> Result<String, ShardsError> {
        let value: hdf5::types::VarLenUnicode =
            file.attr(name).and_then(|a| a.read_scalar()).map_err(wrap)?;
        Ok(value.as_str().to_owned())
    };
    let number =
        |name: &str| file.attr(name).and_then(|attribute| attribute.read_scalar::<u64>()).map_err(wrap);
    let damaged = |reason: String| ShardsError::Damaged { path: path.to_owned(), reason };
    let id = |name: &str| -> Result<u32, ShardsError> {
        let value = number(name)?;
        u32::try_from(value).map_err(|_| damaged(format!("attribute {name} is {value}")))
    };

    let format = text("format")?;
    if format != FORMAT {
        return Err(ShardsError::NotATokenFile {
            path: path.to_owned(),
            reason: format!("its format is {format:?}"),
        });
    }
    let metadata = TokenFileMetadata {
        info: TokenFileInfo {
            tokenizer_hash: text("tokenizer_hash")?,
            end_of_text: id("end_of_text")?,
            vocab_size: id("vocab_size")?,
            source: text("source")?,
            origin: text("origin")?,
        },
        documents: number("documents")?,
        tokens: number("tokens")?,
        content_hash: text("content_hash")?,
    };
    for (name, range, elements, bytes) in [
        ("tokens", header.tokens_range(), header.tokens, header.token_bytes),
        ("documents", header.documents_range(), header.documents + 1, 8),
    ] {
        let set = file.dataset(name).map_err(wrap)?;
        let right_place = elements == 0 || set.offset() == Some(range.start);
        let right_type = set.dtype().is_ok_and(|dtype| dtype.size() as u64 == bytes);
        if !right_place || !right_type || set.size() as u64 != elements {
            return Err(damaged(format!("data set {name} is not where and what the header says")));
        }
    }
    if (metadata.tokens, metadata.documents) != (header.tokens, header.documents) {
        return Err(damaged("the counts in the attributes and in the header differ".to_owned()));
    }
    Ok(metadata)
}

#[cfg(test)]
mod tests;
