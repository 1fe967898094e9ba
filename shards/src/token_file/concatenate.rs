//! Joining several token files into one.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::assembly::{Assembly, DataSetOffsets};
use super::{TokenFile, TokenFileInfo, TokenFileSummary, content_hash};
use crate::ShardsError;
use crate::progress::Watch;

/// Documents in memory at once.
const BLOCK_DOCUMENTS: usize = 64 << 10;
/// Bytes of tokens in memory at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Writes the documents of `sources`, in their order, into one token file at `path`: the same bytes as if one writer had
/// written them all. The disk holds the sources and the result and nothing more; memory does not grow with either.
///
/// # Errors
/// A source is damaged or was made with another tokenizer than `info` names, the disk is full, or `watch` was cancelled.
pub(crate) fn concatenate(
    sources: &[PathBuf],
    path: &Path,
    info: &TokenFileInfo,
    watch: Watch<'_>,
) -> Result<TokenFileSummary, ShardsError> {
    // The content hash is among HDF5's structures, which come before the data, so the sources are read twice. The first
    // reading also checks them.
    let content = measure(sources, info, watch)?;
    let assembly = Assembly {
        path,
        info,
        documents: content.documents,
        tokens: content.tokens,
        content_hash: content.hash,
    };
    assembly.write(|out, offsets| copy(sources, path, info, watch, out, offsets))
}

/// Content of all sources together.
struct Content {
    documents: u64,
    tokens: u64,
    hash: String,
}

/// Verifies the sources; counts and hashes the documents and tokens that they have together.
fn measure(sources: &[PathBuf], info: &TokenFileInfo, watch: Watch<'_>) -> Result<Content, ShardsError> {
    let (mut documents, mut tokens) = (0, 0);
    let (mut documents_hash, mut tokens_hash) = (blake3::Hasher::new(), blake3::Hasher::new());
    documents_hash.update(&0u64.to_le_bytes());
    for source in sources {
        watch.check_cancelled()?;
        let file = open(source, info)?;
        file.verify()?;
        file.each_block(&mut |bytes| {
            tokens_hash.update(bytes);
            Ok(())
        })?;
        file.each_end(tokens, &mut |bytes| {
            documents_hash.update(bytes);
            Ok(())
        })?;
        (documents, tokens) = (documents + file.documents(), tokens + file.tokens());
        watch.progress.advance(file.map.len(), 0);
    }
    let hash = content_hash(&tokens_hash.finalize(), &documents_hash.finalize());
    Ok(Content { documents, tokens, hash })
}

/// Copies the data sets of the sources into the data sets of a new file.
fn copy(
    sources: &[PathBuf],
    path: &Path,
    info: &TokenFileInfo,
    watch: Watch<'_>,
    out: &mut File,
    offsets: DataSetOffsets,
) -> Result<(), ShardsError> {
    let failed = |error| ShardsError::io("write", path)(error);
    let mut out = BufWriter::with_capacity(BLOCK_BYTES, out);
    out.seek(SeekFrom::Start(offsets.documents))
        .and_then(|_| out.write_all(&0u64.to_le_bytes()))
        .map_err(failed)?;
    let mut before = 0;
    for source in sources {
        watch.check_cancelled()?;
        let file = open(source, info)?;
        file.each_end(before, &mut |bytes| out.write_all(bytes).map_err(failed))?;
        before += file.tokens();
    }
    out.seek(SeekFrom::Start(offsets.tokens)).map_err(failed)?;
    for source in sources {
        watch.check_cancelled()?;
        let file = open(source, info)?;
        file.each_block(&mut |bytes| out.write_all(bytes).map_err(failed))?;
        watch.progress.advance(file.map.len(), 0);
    }
    out.flush().map_err(failed)
}

fn open(source: &Path, info: &TokenFileInfo) -> Result<TokenFile, ShardsError> {
    let file = TokenFile::open(source)?;
    let found = &file.metadata.info;
    if (&found.tokenizer_hash, found.end_of_text, found.vocab_size)
        == (&info.tokenizer_hash, info.end_of_text, info.vocab_size)
    {
        return Ok(file);
    }
    Err(ShardsError::TokenizerMismatch {
        path: source.to_owned(),
        found: found.tokenizer_hash.clone(),
        expected: info.tokenizer_hash.clone(),
    })
}

impl TokenFile {
    /// Passes the bytes of the tokens to `take`, block by block.
    fn each_block(&self, take: &mut dyn FnMut(&[u8]) -> Result<(), ShardsError>) -> Result<(), ShardsError> {
        let range = self.header.tokens_range();
        for start in range.clone().step_by(BLOCK_BYTES) {
            let block = start..range.end.min(start + BLOCK_BYTES as u64);
            take(self.map.region(block.clone()))?;
            self.map.release(block);
        }
        Ok(())
    }

    /// Passes the ends of the documents, each plus `before` tokens, to `take` as bytes, block by block.
    fn each_end(
        &self,
        before: u64,
        take: &mut dyn FnMut(&[u8]) -> Result<(), ShardsError>,
    ) -> Result<(), ShardsError> {
        for block in self.offsets().get(1..).unwrap_or_default().chunks(BLOCK_DOCUMENTS) {
            let bytes: Vec<u8> = block.iter().flat_map(|end| (before + end).to_le_bytes()).collect();
            take(&bytes)?;
        }
        self.map.release(self.header.documents_range());
        Ok(())
    }
}
