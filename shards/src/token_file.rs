//! Token files: documents as token ids in HDF5, read through a memory map.
//!
//! A file is ordinary HDF5 (h5py and h5dump open it) with two contiguous, uncompressed, little-endian data sets:
//! `tokens` (u16 when the vocabulary fits, else u32) and `documents` (u64 offsets into `tokens`, one more than there
//! are documents; each document ends with its end-of-text token). Attributes of the root group describe the content.
//! The first 512 bytes, which HDF5 leaves to the application ("user block"), hold a [`Header`]: the places of the data
//! sets and a checksum of HDF5's own structures. The HDF5 library trusts its input, so the checksum keeps damaged files
//! away from it.

mod assembly;
mod attributes;
mod header;
mod map;
mod tokens;
mod writer;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ShardsError;
use header::Header;
use map::FileMap;

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
    /// Hash of the tokenizer ([`crate::Tokenizer::hash`]).
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
pub(crate) struct TokenFileMetadata {
    /// Description by the writer.
    pub(crate) info: TokenFileInfo,
    /// Number of documents.
    pub(crate) documents: u64,
    /// Number of tokens, end-of-text tokens included.
    pub(crate) tokens: u64,
    /// Hash of the content: BLAKE3 of the BLAKE3 of the bytes of `tokens` followed by that of `documents`, in
    /// hexadecimal.
    pub(crate) content_hash: String,
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
pub(crate) struct TokenFile {
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
    pub(crate) fn open(path: impl AsRef<Path>) -> Result<Self, ShardsError> {
        let file = Self::without_documents(path.as_ref())?;
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

    /// Opens a token file and checks its structure without the document offsets: what a file says of itself, in a time that
    /// does not grow with its documents.
    fn without_documents(path: &Path) -> Result<Self, ShardsError> {
        let file = File::open(path).map_err(ShardsError::io("open", path))?;
        let map = FileMap::new(&file, path)?;
        // The header comes first: HDF5 opens the file only after its structures have passed the checksum.
        let header = Header::read(map.bytes(), path)?;
        let metadata = attributes::read(path, &header)?;
        Ok(Self { path: path.to_owned(), map, header, metadata })
    }

    /// Summary of a finished token file, without reading its documents and tokens.
    ///
    /// # Errors
    /// The file cannot be read, is no token file, has another version, or its structure is damaged.
    pub(crate) fn summary(path: &Path) -> Result<TokenFileSummary, ShardsError> {
        let file = Self::without_documents(path)?;
        Ok(TokenFileSummary {
            path: file.path,
            documents: file.metadata.documents,
            tokens: file.metadata.tokens,
            bytes: file.header.file_bytes,
            content_hash: file.metadata.content_hash,
        })
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The attributes.
    pub(crate) fn metadata(&self) -> &TokenFileMetadata {
        &self.metadata
    }

    /// Places of the data sets.
    pub(crate) fn data_sets(&self) -> DataSets {
        let Header { tokens_offset, tokens, token_bytes, documents_offset, documents, .. } = self.header;
        DataSets { tokens_offset, tokens, token_bytes, documents_offset, documents }
    }

    /// Number of documents.
    pub(crate) fn documents(&self) -> u64 {
        self.header.documents
    }

    /// Number of tokens, end-of-text tokens included.
    pub(crate) fn tokens(&self) -> u64 {
        self.header.tokens
    }

    /// Tokens of a document, its end-of-text token included, without a check against the vocabulary. Empty when there is
    /// no such document.
    pub(crate) fn document(&self, document: u64) -> Tokens<'_> {
        let range = self.document_range(document);
        self.slice(range)
    }

    /// Places of a document's tokens among all tokens. Empty when there is no such document.
    pub(crate) fn document_range(&self, document: u64) -> Range<u64> {
        let offsets = self.offsets();
        let at = usize::try_from(document).unwrap_or(usize::MAX);
        match (offsets.get(at), offsets.get(at.saturating_add(1))) {
            (Some(&start), Some(&end)) => start..end,
            _ => 0..0,
        }
    }

    /// A range of all tokens, cut to the file's tokens, without a check against the vocabulary.
    pub(crate) fn slice(&self, range: Range<u64>) -> Tokens<'_> {
        let Header { tokens, tokens_offset: first, token_bytes: bytes, .. } = self.header;
        let end = range.end.min(tokens);
        let start = range.start.min(end);
        self.map.tokens(first + start * bytes..first + end * bytes, bytes)
    }

    /// Bytes that [`Self::verify`] reads.
    pub(crate) fn content_bytes(&self) -> u64 {
        let length = |range: Range<u64>| range.end - range.start;
        length(self.header.tokens_range()) + length(self.header.documents_range())
    }

    /// Reads the whole file and checks the content hash and that every token is in the vocabulary. `read` gets the bytes of
    /// each block that has been read, and its error ends the reading.
    ///
    /// # Errors
    /// The file is damaged, and the errors of `read`.
    pub(crate) fn verify(
        &self,
        read: &mut dyn FnMut(u64) -> Result<(), ShardsError>,
    ) -> Result<(), ShardsError> {
        let mut hash = |range: Range<u64>, see: &dyn Fn(Range<u64>)| {
            let mut hasher = blake3::Hasher::new();
            for start in range.clone().step_by(VERIFY_BYTES as usize) {
                let block = start..range.end.min(start + VERIFY_BYTES);
                hasher.update_rayon(self.map.region(block.clone()));
                see(block.clone());
                let length = block.end - block.start;
                self.map.release(block);
                read(length)?;
            }
            Ok::<_, ShardsError>(hasher.finalize())
        };
        let tokens_range = self.header.tokens_range();
        let (first, bytes) = (tokens_range.start, self.header.token_bytes);
        // A wrong hash explains a wrong token, so it is reported first: the token is kept until the hash is known.
        let outside = std::cell::Cell::new(None);
        let tokens = hash(tokens_range, &|block| {
            let start = (block.start - first) / bytes;
            let tokens = self.slice(start..(block.end - first) / bytes);
            if let Err(error) = tokens.check_vocabulary(self.metadata.info.vocab_size, &self.path, start) {
                outside.set(outside.take().or(Some(error)));
            }
        })?;
        let documents = hash(self.header.documents_range(), &|_| ())?;
        if content_hash(&tokens, &documents) != self.metadata.content_hash {
            return Err(self.damaged("its content does not have the hash that it was written with"));
        }
        outside.take().map_or(Ok(()), Err)
    }

    /// Gives back the memory of documents that have been read; a later access reads them from the file again. For callers
    /// that read a large file through once.
    pub(crate) fn release(&self, documents: Range<u64>) {
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

    /// Reads the whole file for a token that is not in the vocabulary.
    ///
    /// # Errors
    /// There is one; the error has the first such token.
    pub(crate) fn check_vocabulary(&self) -> Result<(), ShardsError> {
        self.slice(0..self.tokens()).check_vocabulary(self.metadata.info.vocab_size, &self.path, 0)
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
