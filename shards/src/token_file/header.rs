//! The first 512 bytes of a token file.

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::TOKEN_FILE_FORMAT_VERSION;
use crate::ShardsError;

/// Size of HDF5's user block.
pub(super) const HEADER_BYTES: u64 = 512;

const MAGIC: &[u8] = b"dipaco-tokens\n";

/// Places of the data sets in a token file. On disk: a magic line, one line of JSON, then zeros up to 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) version: u64,
    /// Length of the whole file in bytes.
    pub(super) file_bytes: u64,
    /// Bytes of a token: 2 or 4.
    pub(super) token_bytes: u64,
    pub(super) tokens: u64,
    pub(super) tokens_offset: u64,
    pub(super) documents: u64,
    pub(super) documents_offset: u64,
    /// BLAKE3 of every byte that is neither header nor data set.
    pub(super) structure_hash: String,
}

impl Header {
    pub(super) fn tokens_range(&self) -> Range<u64> {
        self.tokens_offset..self.tokens_offset + self.tokens * self.token_bytes
    }

    pub(super) fn documents_range(&self) -> Range<u64> {
        self.documents_offset..self.documents_offset + (self.documents + 1) * 8
    }

    /// The header's bytes.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = MAGIC.to_vec();
        serde_json::to_writer(&mut bytes, self)?;
        bytes.push(b'\n');
        // Offsets and counts have at most 20 digits, so the line is shorter than 400 bytes.
        bytes.resize(HEADER_BYTES as usize, 0);
        Ok(bytes)
    }

    /// Reads the header of a mapped file and checks it: all lengths and places fit the file, and HDF5's structures have
    /// the hash that they were written with.
    pub(super) fn read(file: &[u8], path: &Path) -> Result<Self, ShardsError> {
        let refuse =
            |reason: &str| ShardsError::NotATokenFile { path: path.to_owned(), reason: reason.to_owned() };
        let damaged = |reason: String| ShardsError::Damaged { path: path.to_owned(), reason };
        if file.is_empty() {
            return Err(refuse("it is empty"));
        }
        let rest = file
            .get(..HEADER_BYTES as usize)
            .ok_or_else(|| refuse("it is shorter than a header"))?
            .strip_prefix(MAGIC)
            .ok_or_else(|| refuse("it does not start with \"dipaco-tokens\""))?;
        let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let header: Self = match serde_json::from_slice(line) {
            Ok(header) => header,
            Err(error) => {
                // Another version may have other fields.
                #[derive(Deserialize)]
                struct OnlyVersion {
                    version: u64,
                }
                return Err(match serde_json::from_slice::<OnlyVersion>(line) {
                    Ok(other) if other.version != TOKEN_FILE_FORMAT_VERSION => version(path, other.version),
                    _ => damaged(format!("its header cannot be read: {error}")),
                });
            }
        };
        if header.version != TOKEN_FILE_FORMAT_VERSION {
            return Err(version(path, header.version));
        }
        let length = file.len() as u64;
        if header.file_bytes != length {
            return Err(damaged(format!(
                "it has {length} bytes, but was written with {}",
                header.file_bytes
            )));
        }
        header.check(length).map_err(|reason| damaged(reason.to_owned()))?;
        if header.structure_hash != header.structure_hash(file) {
            return Err(damaged(
                "its HDF5 structures do not have the hash that they were written with".to_owned(),
            ));
        }
        Ok(header)
    }

    pub(super) fn check(&self, length: u64) -> Result<(), &'static str> {
        if !matches!(self.token_bytes, 2 | 4) {
            return Err("a token has neither 2 nor 4 bytes");
        }
        let fits = |offset: u64, elements: u64, bytes: u64| {
            let end = elements.checked_mul(bytes).and_then(|bytes| offset.checked_add(bytes));
            offset >= HEADER_BYTES && end.is_some_and(|end| end <= length)
        };
        let offsets = self.documents.checked_add(1).ok_or("the number of documents is impossible")?;
        if !fits(self.tokens_offset, self.tokens, self.token_bytes)
            || !fits(self.documents_offset, offsets, 8)
        {
            return Err("a data set lies outside the file");
        }
        if !self.tokens_offset.is_multiple_of(self.token_bytes) || !self.documents_offset.is_multiple_of(8) {
            return Err("a data set is not aligned");
        }
        let (tokens, documents) = (self.tokens_range(), self.documents_range());
        if tokens.start < documents.end && documents.start < tokens.end && !tokens.is_empty() {
            return Err("the data sets overlap");
        }
        Ok(())
    }

    /// Hash of every byte that is neither header nor data set. The ranges must fit the file.
    pub(super) fn structure_hash(&self, file: &[u8]) -> String {
        let mut sets = [self.tokens_range(), self.documents_range()];
        sets.sort_by_key(|range| (range.start, range.end));
        let mut hasher = blake3::Hasher::new();
        let mut at = HEADER_BYTES as usize;
        for range in sets {
            let (start, end) = (range.start as usize, range.end as usize);
            hasher.update(file.get(at..start).unwrap_or_default());
            at = at.max(end);
        }
        hasher.update(file.get(at..).unwrap_or_default());
        hasher.finalize().to_hex().to_string()
    }
}

fn version(path: &Path, found: u64) -> ShardsError {
    ShardsError::Version { path: path.to_owned(), found, supported: TOKEN_FILE_FORMAT_VERSION }
}
