//! The decompressed content of a file, with the hash of the stored bytes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use super::list::{Compression, InputFile};
use crate::PrepareProgress;

const BUFFER_BYTES: usize = 128 * 1024;

/// Largest zstd window that is accepted: 2^27 bytes, zstd's own default limit.
const ZSTD_WINDOW_LOG: u32 = 27;

/// A file as stored; reading counts, hashes and reports the bytes.
pub(super) struct Stored<'a> {
    file: File,
    hasher: blake3::Hasher,
    bytes: u64,
    progress: &'a dyn PrepareProgress,
}

impl Read for Stored<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        self.progress.advance(count as u64, 0);
        Ok(count)
    }
}

/// The decompressed content of a file.
pub(super) enum Content<'a> {
    Plain(Box<BufReader<Stored<'a>>>),
    Gzip(Box<BufReader<MultiGzDecoder<BufReader<Stored<'a>>>>>),
    Zstd(Box<BufReader<zstd::Decoder<'static, BufReader<Stored<'a>>>>>),
}

impl<'a> Content<'a> {
    /// Opens a file; the error describes the problem. A file without a content to read comes with its damage, and only its
    /// stored bytes count.
    pub(super) fn open(
        file: &InputFile,
        progress: &'a dyn PrepareProgress,
    ) -> Result<(Self, Option<&'static str>), String> {
        let opened = File::open(&file.path).map_err(|error| format!("cannot open it: {error}"))?;
        let stored = Stored { file: opened, hasher: blake3::Hasher::new(), bytes: 0, progress };
        let mut stored = BufReader::with_capacity(BUFFER_BYTES, stored);
        let start = stored.fill_buf().map_err(|error| format!("cannot read it: {error}"))?;
        let damage = if start.is_empty() {
            Some("it is empty")
        } else if file.compression == Compression::Gzip && !start.starts_with(&[0x1F, 0x8B]) {
            Some("its name ends in .gz, but its content is not gzip")
        } else {
            None
        };
        if damage.is_some() {
            return Ok((Self::Plain(Box::new(stored)), damage));
        }
        let content = match file.compression {
            Compression::None => Self::Plain(Box::new(stored)),
            Compression::Gzip => {
                let decoder = MultiGzDecoder::new(stored);
                Self::Gzip(Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder)))
            }
            Compression::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(stored)
                    .map_err(|error| format!("cannot start zstd: {error}"))?;
                decoder
                    .window_log_max(ZSTD_WINDOW_LOG)
                    .map_err(|error| format!("cannot limit zstd's window: {error}"))?;
                Self::Zstd(Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder)))
            }
        };
        Ok((content, None))
    }

    /// The decompressed bytes.
    pub(super) fn reader(&mut self) -> &mut dyn BufRead {
        match self {
            Self::Plain(reader) => reader.as_mut(),
            Self::Gzip(reader) => reader.as_mut(),
            Self::Zstd(reader) => reader.as_mut(),
        }
    }

    /// Describes an error of the decompressor.
    pub(super) fn describe(&self, error: &std::io::Error) -> String {
        let kind = match self {
            Self::Plain(_) => return format!("cannot read on: {error}"),
            Self::Gzip(_) => "gzip",
            Self::Zstd(_) => "zstd",
        };
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            return format!("the {kind} stream is cut off here");
        }
        if error.to_string().contains("gzip header") {
            return "bytes that are not gzip follow the gzip stream".to_owned();
        }
        format!("the {kind} stream is damaged around here ({error})")
    }

    /// Reads the rest of the stored file and returns its length and hash.
    pub(super) fn finish(self) -> std::io::Result<(u64, String)> {
        let mut stored = match self {
            Self::Plain(reader) => *reader,
            Self::Gzip(reader) => reader.into_inner().into_inner(),
            Self::Zstd(reader) => reader.into_inner().finish(),
        };
        loop {
            let count = stored.fill_buf()?.len();
            if count == 0 {
                break;
            }
            stored.consume(count);
        }
        let stored = stored.into_inner();
        Ok((stored.bytes, stored.hasher.finalize().to_hex().to_string()))
    }
}
