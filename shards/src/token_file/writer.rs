//! Writing a token file.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use dipaco_files::PendingFile;
use serde::{Deserialize, Serialize};

use super::assembly::Assembly;
use super::{TokenFileInfo, content_hash, is_wide};
use crate::ShardsError;

/// A finished token file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenFileSummary {
    /// The file.
    pub path: PathBuf,
    /// Number of documents.
    pub documents: u64,
    /// Number of tokens, end-of-text tokens included.
    pub tokens: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Hash of the content: BLAKE3 of the BLAKE3 of the bytes of `tokens` followed by that of `documents`, in
    /// hexadecimal.
    pub content_hash: String,
}

/// Writes a token file in bounded memory.
///
/// Tokens go to temporary files beside the destination. [`Self::finish`] makes the HDF5 file from them under a temporary
/// name and renames it. Until then the destination is untouched, and a writer that fails or is dropped leaves nothing
/// behind.
pub struct TokenFileWriter {
    path: PathBuf,
    info: TokenFileInfo,
    wide: bool,
    tokens: Spool,
    offsets: Spool,
    documents: u64,
    token_count: u64,
}

impl TokenFileWriter {
    /// Starts a token file at `path`, whose folder must exist.
    ///
    /// # Errors
    /// A temporary file cannot be made in the folder.
    pub fn create(path: impl AsRef<Path>, info: TokenFileInfo) -> Result<Self, ShardsError> {
        let path = path.as_ref().to_owned();
        let mut writer = Self {
            tokens: Spool::create(&path)?,
            offsets: Spool::create(&path)?,
            wide: is_wide(info.vocab_size),
            path,
            info,
            documents: 0,
            token_count: 0,
        };
        writer.offsets.write(&0u64.to_le_bytes(), &writer.path)?;
        Ok(writer)
    }

    /// Appends a document. Its last token must be the end-of-text token.
    ///
    /// # Errors
    /// The last token is another, a token is not in the vocabulary, or the disk is full. A refused document leaves the
    /// writer unchanged.
    pub fn push_document(&mut self, tokens: &[u32]) -> Result<(), ShardsError> {
        if tokens.last() != Some(&self.info.end_of_text) {
            return Err(ShardsError::NoEndOfText {
                path: self.path.clone(),
                document: self.documents,
                end_of_text: self.info.end_of_text,
            });
        }
        if let Some(&token) = tokens.iter().find(|&&token| token >= self.info.vocab_size) {
            return Err(ShardsError::TokenOutOfVocabulary {
                path: self.path.clone(),
                place: format!("document {}", self.documents),
                token,
                vocab_size: self.info.vocab_size,
            });
        }
        let bytes: Vec<u8> = if self.wide {
            tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
        } else {
            tokens.iter().flat_map(|&token| (token as u16).to_le_bytes()).collect()
        };
        self.tokens.write(&bytes, &self.path)?;
        self.token_count += tokens.len() as u64;
        self.documents += 1;
        self.offsets.write(&self.token_count.to_le_bytes(), &self.path)
    }

    /// Number of documents appended so far.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// Number of tokens appended so far.
    pub fn tokens(&self) -> u64 {
        self.token_count
    }

    /// Replaces [`TokenFileInfo::source`]. Its hashes are often known only after reading.
    pub fn set_source(&mut self, source: String) {
        self.info.source = source;
    }

    /// Writes the HDF5 file, syncs it and renames it to its destination, replacing an earlier file.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn finish(mut self) -> Result<TokenFileSummary, ShardsError> {
        let assembly = Assembly {
            path: &self.path,
            info: &self.info,
            documents: self.documents,
            tokens: self.token_count,
            content_hash: content_hash(&self.tokens.hasher.finalize(), &self.offsets.hasher.finalize()),
        };
        assembly.write(|file, places| {
            self.offsets.copy_to(file, places.documents, &self.path)?;
            self.tokens.copy_to(file, places.tokens, &self.path)
        })
    }
}

/// Bytes of a data set, collected in a temporary file: their number and hash must be known before HDF5 makes its
/// structures, which come first in the file.
struct Spool {
    file: BufWriter<PendingFile>,
    hasher: blake3::Hasher,
}

impl Spool {
    fn create(path: &Path) -> Result<Self, ShardsError> {
        let file = BufWriter::with_capacity(1 << 18, PendingFile::create(path)?);
        Ok(Self { file, hasher: blake3::Hasher::new() })
    }

    fn write(&mut self, bytes: &[u8], path: &Path) -> Result<(), ShardsError> {
        self.hasher.update(bytes);
        self.file.write_all(bytes).map_err(ShardsError::io("write", path))
    }

    /// Copies the spool to a place in a file.
    fn copy_to(&mut self, file: &mut File, offset: u64, path: &Path) -> Result<(), ShardsError> {
        self.file.flush().map_err(ShardsError::io("write", path))?;
        let spool = self.file.get_mut().file_mut();
        spool
            .seek(SeekFrom::Start(0))
            .and_then(|_| file.seek(SeekFrom::Start(offset)))
            .and_then(|_| std::io::copy(spool, file))
            .map_err(ShardsError::io("write", path))?;
        Ok(())
    }
}
