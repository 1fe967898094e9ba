//! The memory map of a token file: the only place of this package with unsafe code.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use super::Tokens;
use crate::ShardsError;

/// The system maps up to this many bytes around a byte that is read, released bytes included.
#[cfg(unix)]
const FAULT_AROUND: u64 = 128 << 10;

/// A file, mapped for reading. Reading takes no lock and copies nothing.
pub(super) struct FileMap {
    bytes: Mmap,
}

impl FileMap {
    /// Maps a file whose bytes nobody changes any more. `path` is for errors.
    ///
    /// # Errors
    /// The system cannot map the file.
    pub(super) fn new(file: &File, path: &Path) -> Result<Self, ShardsError> {
        // SAFETY: the bytes must not change while they are mapped. Both callers see to it: `TokenFile::open` maps finished
        // files, which are never written again (renaming them, as a download does, keeps their bytes), and `Assembly` maps its own
        // temporary file, whose name no other process knows, while it does not write.
        let bytes = unsafe { Mmap::map(file) }.map_err(ShardsError::io("map", path))?;
        Ok(Self { bytes })
    }

    /// All bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Length of the file in bytes.
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Bytes of the file in a range; empty when the file does not have them all.
    pub(super) fn region(&self, range: Range<u64>) -> &[u8] {
        let bounds = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        bounds.and_then(|(start, end)| self.bytes.get(start..end)).unwrap_or_default()
    }

    /// The 64-bit numbers in a range of bytes; none when the range is not aligned, which `Header::read` rules out.
    pub(super) fn numbers(&self, range: Range<u64>) -> &[u64] {
        bytemuck::try_cast_slice(self.region(range)).unwrap_or_default()
    }

    /// The tokens of 2 or 4 bytes in a range of bytes; none when the range is not aligned, which `Header::read` rules
    /// out.
    pub(super) fn tokens(&self, range: Range<u64>, token_bytes: u64) -> Tokens<'_> {
        let bytes = self.region(range);
        if token_bytes == 2 {
            Tokens::U16(bytemuck::try_cast_slice(bytes).unwrap_or_default())
        } else {
            Tokens::U32(bytemuck::try_cast_slice(bytes).unwrap_or_default())
        }
    }

    /// Takes bytes of the file out of this process's memory; the next read brings them back from the file.
    #[cfg(unix)]
    pub(super) fn release(&self, range: Range<u64>) {
        let length = self.len();
        let (start, end) = (range.start.saturating_sub(FAULT_AROUND).min(length), range.end.min(length));
        // SAFETY: the map is of a file and is never written, so the next read brings the same bytes back.
        let advised = unsafe {
            self.bytes.unchecked_advise_range(
                memmap2::UncheckedAdvice::DontNeed,
                start as usize,
                end.saturating_sub(start) as usize,
            )
        };
        if let Err(error) = advised {
            tracing::debug!(%error, "the system keeps the pages of a token file");
        }
    }

    /// Other systems have no such advice: they reclaim pages on their own.
    #[cfg(not(unix))]
    pub(super) fn release(&self, _: Range<u64>) {}
}
