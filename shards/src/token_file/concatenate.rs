//! Several token files as one.

use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::assembly::Assembly;
use super::{TokenFile, TokenFileInfo, TokenFileSummary, content_hash};
use crate::{Progress, ShardsError};

/// Documents and bytes of tokens that are in memory at once.
const BLOCK_DOCUMENTS: usize = 64 << 10;
const BLOCK_BYTES: usize = 1 << 20;

/// Writes the documents of `sources`, in their order, into one token file at `path`, as if they had been written there
/// at first. Nothing is held twice on the disk but the result beside its sources, and memory does not grow with either.
///
/// # Errors
/// A source is damaged or was made with another tokenizer than `info` says, the disk is full, or `cancel` was set.
pub fn concatenate(
    sources: &[PathBuf],
    path: &Path,
    info: &TokenFileInfo,
    progress: &dyn Progress,
    cancel: &AtomicBool,
) -> Result<TokenFileSummary, ShardsError> {
    let check = || if cancel.load(Ordering::Relaxed) { Err(ShardsError::Cancelled) } else { Ok(()) };
    // The hash is among HDF5's structures, which come before the data, so the sources are read twice; the first time
    // checks them.
    let (mut documents, mut tokens) = (0, 0);
    let (mut documents_hash, mut tokens_hash) = (blake3::Hasher::new(), blake3::Hasher::new());
    documents_hash.update(&0u64.to_le_bytes());
    for source in sources {
        check()?;
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
        progress.advance(file.map.len() as u64, 0);
    }
    let content_hash = content_hash(&tokens_hash.finalize(), &documents_hash.finalize());
    Assembly { path, info, documents, tokens, content_hash }.write(|out, places| {
        let failed = |error| ShardsError::io("write", path)(error);
        let mut out = BufWriter::with_capacity(BLOCK_BYTES, out);
        out.seek(SeekFrom::Start(places.documents))
            .and_then(|_| out.write_all(&0u64.to_le_bytes()))
            .map_err(failed)?;
        let mut before = 0;
        for source in sources {
            check()?;
            let file = open(source, info)?;
            file.each_end(before, &mut |bytes| out.write_all(bytes).map_err(failed))?;
            before += file.tokens();
        }
        out.seek(SeekFrom::Start(places.tokens)).map_err(failed)?;
        for source in sources {
            check()?;
            let file = open(source, info)?;
            file.each_block(&mut |bytes| out.write_all(bytes).map_err(failed))?;
            progress.advance(file.map.len() as u64, 0);
        }
        out.flush().map_err(failed)
    })
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
    /// Hands the tokens' bytes over, block by block.
    fn each_block(&self, take: &mut dyn FnMut(&[u8]) -> Result<(), ShardsError>) -> Result<(), ShardsError> {
        let range = self.header.tokens_range();
        for start in range.clone().step_by(BLOCK_BYTES) {
            let block = start..range.end.min(start + BLOCK_BYTES as u64);
            take(self.region(block.clone()))?;
            self.release_bytes(block);
        }
        Ok(())
    }

    /// Hands the ends of the documents over as bytes, block by block, counted from `before` tokens on.
    fn each_end(
        &self,
        before: u64,
        take: &mut dyn FnMut(&[u8]) -> Result<(), ShardsError>,
    ) -> Result<(), ShardsError> {
        for block in self.offsets().get(1..).unwrap_or_default().chunks(BLOCK_DOCUMENTS) {
            let bytes: Vec<u8> = block.iter().flat_map(|end| (before + end).to_le_bytes()).collect();
            take(&bytes)?;
        }
        self.release_bytes(self.header.documents_range());
        Ok(())
    }
}
