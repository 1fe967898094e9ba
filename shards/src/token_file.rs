//! Token files: documents as token ids in HDF5, read through a memory map.
//!
//! A file is ordinary HDF5 (h5py and h5dump open it) with two contiguous, uncompressed, little-endian data sets:
//! `tokens` (u16 when the vocabulary fits, else u32) and `documents` (u64 offsets into `tokens`, one more than there
//! are documents; each document ends with its end-of-text token). Attributes of the root group describe the content.
//! The first 512 bytes, which HDF5 leaves to the application ("user block"), hold a [`Header`]: the places of the data
//! sets and a checksum of HDF5's own structures. The HDF5 library trusts its input, so the checksum keeps damaged files
//! away from it.
//!
//! # The vocabulary check
//!
//! Training data enters the program from a token file, as batches that are built with [`TokenFile::batch`] or
//! [`TokenFile::rows`]. They check each id against the vocabulary of the file, and the type of the batch carries this fact.
//! Code behind it indexes tables by token without another check. [`TokenFile::slice`] and [`TokenFile::document`] give
//! plain ids without a check.

mod assembly;
mod attributes;
mod concatenate;
mod header;
mod map;
mod tokens;
mod writer;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{IGNORE, ShardsError, TokenBatch, TokenError, TokenRows, Tokenizer};
use header::Header;
use map::FileMap;

pub(crate) use concatenate::concatenate;
pub use tokens::Tokens;
pub use writer::{TokenFileSummary, TokenFileWriter};

#[cfg(not(target_endian = "little"))]
compile_error!("token files are little-endian, and reading maps them without conversion");

/// Version of the token file format that this program writes and reads.
pub const TOKEN_FILE_FORMAT_VERSION: u64 = 1;

/// Bytes that [`TokenFile::verify`] holds in memory.
const VERIFY_BYTES: u64 = 16 << 20;

/// Attribute `format` of a token file.
const FORMAT: &str = "dipaco-tokens";

/// Description of a token file that its writer gives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenFileInfo {
    /// Hash of the tokenizer ([`Tokenizer::hash`]).
    pub tokenizer_hash: String,
    /// The end-of-text token, the last token of every document.
    pub end_of_text: u32,
    /// Number of token ids; every token is smaller.
    pub vocab_size: u32,
    /// Origin of the text: a JSON text with file names, sizes and hashes.
    pub source: String,
    /// For the shard of a path: a JSON text with its run, path and router. Empty for a whole corpus.
    pub origin: String,
}

/// All attributes of a token file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenFileMetadata {
    /// Description by the writer.
    pub info: TokenFileInfo,
    /// Number of documents.
    pub documents: u64,
    /// Number of tokens, end-of-text tokens included.
    pub tokens: u64,
    /// Hash of the content: BLAKE3 of the BLAKE3 of the bytes of `tokens` followed by that of `documents`, in
    /// hexadecimal.
    pub content_hash: String,
}

/// Places of the data sets in a token file, for readers that map the file themselves. They lie in one piece each, without
/// compression, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSets {
    /// Bytes before the first token.
    pub tokens_offset: u64,
    /// Number of tokens.
    pub tokens: u64,
    /// Bytes of a token: 2 or 4.
    pub token_bytes: u64,
    /// Bytes before the first document offset. The offsets are 64-bit numbers, one more than there are documents.
    pub documents_offset: u64,
    /// Number of documents.
    pub documents: u64,
}

/// A token file, opened for reading. Reading takes no lock and copies nothing.
pub struct TokenFile {
    path: PathBuf,
    map: FileMap,
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
    /// document offsets ascend and end at the last token. The tokens stay unread; [`Self::verify`] checks them all.
    ///
    /// # Errors
    /// The file cannot be read, is no token file, has another version, or is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ShardsError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(ShardsError::io("open", path))?;
        let map = FileMap::new(&file, path)?;
        // The header comes first: HDF5 opens the file only after its structures have passed the checksum.
        let header = Header::read(map.bytes(), path)?;
        let metadata = attributes::read(path, &header)?;
        let file = Self { path: path.to_owned(), map, header, metadata };
        let offsets = file.offsets();
        if (offsets.first().copied(), offsets.last().copied()) != (Some(0), Some(file.header.tokens)) {
            return Err(file.damaged("the document offsets do not start at 0 and end at the last token"));
        }
        if !offsets.is_sorted() {
            return Err(file.damaged("the document offsets are not ascending"));
        }
        file.map.release(file.header.documents_range());
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

    /// Places of the data sets.
    pub fn data_sets(&self) -> DataSets {
        let Header { tokens_offset, tokens, token_bytes, documents_offset, documents, .. } = self.header;
        DataSets { tokens_offset, tokens, token_bytes, documents_offset, documents }
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

    /// Tokens of a document, its end-of-text token included, without a check against the vocabulary. Empty when there is
    /// no such document.
    pub fn document(&self, document: u64) -> Tokens<'_> {
        let range = self.document_range(document);
        self.slice(range)
    }

    /// Places of a document's tokens among all tokens. Empty when there is no such document.
    pub fn document_range(&self, document: u64) -> Range<u64> {
        let offsets = self.offsets();
        let at = usize::try_from(document).unwrap_or(usize::MAX);
        match (offsets.get(at), offsets.get(at.saturating_add(1))) {
            (Some(&start), Some(&end)) => start..end,
            _ => 0..0,
        }
    }

    /// A range of all tokens, cut to the file's tokens, without a check against the vocabulary.
    pub fn slice(&self, range: Range<u64>) -> Tokens<'_> {
        let Header { tokens, tokens_offset: first, token_bytes: bytes, .. } = self.header;
        let end = range.end.min(tokens);
        let start = range.start.min(end);
        self.map.tokens(first + start * bytes..first + end * bytes, bytes)
    }

    /// A batch of rows of T = `length` tokens (B, T) with their targets (B, T), after the check that each id is in the
    /// vocabulary. A row is given as the places of its tokens in the file, T + 1 at most. The target of a token is the
    /// token that follows it in its row. Behind the last target of a row stand end-of-text tokens with [`IGNORE`] as
    /// target.
    ///
    /// # Errors
    /// A token is not in the vocabulary, there is no row, or a row has more than T + 1 tokens.
    pub fn batch(&self, rows: &[Vec<Range<u64>>], length: usize) -> Result<TokenBatch, ShardsError> {
        let mut tokens = Vec::with_capacity(rows.len() * length);
        let mut targets = Vec::with_capacity(rows.len() * length);
        let mut counted = 0;
        for places in rows {
            let own: Vec<u32> = places.iter().flat_map(|range| self.slice(range.clone()).iter()).collect();
            let with_target = own.len().saturating_sub(1);
            counted += with_target;
            tokens.extend(own.iter().take(with_target));
            targets.extend(own.iter().skip(1));
            let padding = length.saturating_sub(with_target);
            tokens.extend(std::iter::repeat_n(self.end_of_text(), padding));
            targets.extend(std::iter::repeat_n(IGNORE, padding));
        }
        self.batch_of(tokens, targets, rows.len(), counted)
    }

    /// A batch of B = `batch` rows of ids (B, T) with their targets (B, T), after the check that each id is in the
    /// vocabulary, for a caller that chooses its own targets. `counted` targets are tokens, and the others are [`IGNORE`].
    ///
    /// # Errors
    /// A token is not in the vocabulary, or the ids are not rows of one length.
    pub fn batch_of(
        &self,
        tokens: Vec<u32>,
        targets: Vec<u32>,
        batch: usize,
        counted: usize,
    ) -> Result<TokenBatch, ShardsError> {
        let vocabulary = self.vocab_size() as usize;
        let joined = TokenRows::new(tokens, batch, vocabulary)
            .and_then(|tokens| TokenBatch::new(tokens, targets, vocabulary));
        // A damaged file with tokens of four bytes can hold the number of `IGNORE` as a token.
        let outside = TokenError::Outside { id: IGNORE, at: 0, vocabulary };
        let joined =
            joined.and_then(|joined| if joined.counted() == counted { Ok(joined) } else { Err(outside) });
        joined.map_err(|error| self.refused(error))
    }

    /// B = `batch` rows of this file's tokens (B, T), after the check that each id is in the vocabulary.
    ///
    /// # Errors
    /// A token is not in the vocabulary, or the ids are not rows of one length.
    pub fn rows(&self, tokens: Vec<u32>, batch: usize) -> Result<TokenRows, ShardsError> {
        TokenRows::new(tokens, batch, self.vocab_size() as usize).map_err(|error| self.refused(error))
    }

    /// The error of ids of this file that are no batch. For an id outside the vocabulary, reads the file through to name
    /// the place of the first such id.
    fn refused(&self, error: TokenError) -> ShardsError {
        let TokenError::Outside { .. } = error else {
            return ShardsError::Batch { path: self.path.clone(), source: error };
        };
        let check = self.slice(0..self.tokens()).check_vocabulary(self.vocab_size(), &self.path, 0);
        check.err().unwrap_or_else(|| ShardsError::Batch { path: self.path.clone(), source: error })
    }

    /// Checks that the file was made with a tokenizer.
    ///
    /// # Errors
    /// It was made with another tokenizer.
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

    /// Reads the whole file and checks the content hash and that every token is in the vocabulary.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn verify(&self) -> Result<(), ShardsError> {
        let hash = |range: Range<u64>, see: &dyn Fn(Range<u64>)| {
            let mut hasher = blake3::Hasher::new();
            for start in range.clone().step_by(VERIFY_BYTES as usize) {
                let block = start..range.end.min(start + VERIFY_BYTES);
                hasher.update_rayon(self.map.region(block.clone()));
                see(block.clone());
                self.map.release(block);
            }
            hasher.finalize()
        };
        let tokens_range = self.header.tokens_range();
        let (first, bytes) = (tokens_range.start, self.header.token_bytes);
        // A wrong hash explains a wrong token, so it is reported first: the token is kept until the hash is known.
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

    /// Gives back the memory of documents that have been read; a later access reads them from the file again. For callers
    /// that read a large file through once.
    pub fn release(&self, documents: Range<u64>) {
        let end =
            |document: u64| self.offsets().get(usize::try_from(document).unwrap_or(usize::MAX)).copied();
        if let (Some(start), Some(end)) = (end(documents.start), end(documents.end)) {
            let (first, bytes) = (self.header.tokens_offset, self.header.token_bytes);
            self.map.release(first + start * bytes..first + end * bytes);
        }
        let first = self.header.documents_offset;
        self.map.release(
            first + documents.start.saturating_mul(8)..first.saturating_add(documents.end.saturating_mul(8)),
        );
    }

    fn offsets(&self) -> &[u64] {
        self.map.numbers(self.header.documents_range())
    }

    fn damaged(&self, reason: &str) -> ShardsError {
        ShardsError::Damaged { path: self.path.clone(), reason: reason.to_owned() }
    }
}

/// True if tokens take 4 bytes, false if they take 2.
fn is_wide(vocab_size: u32) -> bool {
    vocab_size > 1 << 16
}

fn content_hash(tokens: &blake3::Hash, documents: &blake3::Hash) -> String {
    let mut both = [0; 2 * blake3::OUT_LEN];
    both[..blake3::OUT_LEN].copy_from_slice(tokens.as_bytes());
    both[blake3::OUT_LEN..].copy_from_slice(documents.as_bytes());
    dipaco_files::content_hash(&both)
}

#[cfg(test)]
mod tests;
