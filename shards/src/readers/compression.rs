//! The decompressed content of a file, with the hash of the stored bytes.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::list::{Compression, InputFile};
use crate::{PrepareProgress, ShardsError};

const BUFFER_BYTES: usize = 128 * 1024;

/// Largest zstd window that is accepted: 2^27 bytes, zstd's own default limit.
const ZSTD_WINDOW_LOG: u32 = 27;

/// The reason why a file gives no more content.
#[derive(Debug)]
pub(super) enum Fault {
    /// The operating system cannot read the file. Its content may be whole.
    Unreadable(ShardsError),
    /// The content is not what the name of the file says.
    Damage(String),
}

/// True for an error of the operating system. Only such an error has a number; a decoder's own error has none.
pub(super) fn is_of_the_system(error: &std::io::Error) -> bool {
    error.raw_os_error().is_some()
}

/// A file as stored; reading counts, hashes and reports the bytes.
pub(super) struct Stored<'a> {
    file: Box<dyn Read + 'a>,
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
    /// Opens a file. A file without a content to read comes with its damage, and only its stored bytes count.
    ///
    /// # Errors
    /// The operating system cannot open or read the file.
    pub(super) fn open(
        file: &InputFile,
        progress: &'a dyn PrepareProgress,
    ) -> Result<(Self, Option<&'static str>), ShardsError> {
        let opened = File::open(&file.path).map_err(ShardsError::io("open", &file.path))?;
        Self::of(Box::new(opened), file, progress)
    }

    /// [`Self::open`]; `stored` has the stored bytes of the file.
    fn of(
        stored: Box<dyn Read + 'a>,
        file: &InputFile,
        progress: &'a dyn PrepareProgress,
    ) -> Result<(Self, Option<&'static str>), ShardsError> {
        let stored = Stored { file: stored, hasher: blake3::Hasher::new(), bytes: 0, progress };
        let mut stored = BufReader::with_capacity(BUFFER_BYTES, stored);
        let start = stored.fill_buf().map_err(ShardsError::io("read", &file.path))?;
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
                let failed = |error| ShardsError::io("start to decompress", &file.path)(error);
                let mut decoder = zstd::Decoder::with_buffer(stored).map_err(failed)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(failed)?;
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

    /// The fault behind an error that [`Self::reader`] gave in this line of the file `path`.
    pub(super) fn fault(&self, path: &Path, line: u64, error: std::io::Error) -> Fault {
        let kind = match self {
            Self::Gzip(_) if !is_of_the_system(&error) => "gzip",
            Self::Zstd(_) if !is_of_the_system(&error) => "zstd",
            _ => return Fault::Unreadable(ShardsError::io("read", path)(error)),
        };
        let damage = if error.kind() == ErrorKind::UnexpectedEof {
            format!("the {kind} stream is cut off here")
        } else if error.to_string().contains("gzip header") {
            "bytes that are not gzip follow the gzip stream".to_owned()
        } else {
            format!("the {kind} stream is damaged around here ({error})")
        };
        Fault::Damage(format!("line {line}: {damage}"))
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::NoProgress;

    /// The number of an input/output error (EIO) on Unix.
    const INPUT_OUTPUT: i32 = 5;

    /// A disk that fails.
    struct Failing;

    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::from_raw_os_error(INPUT_OUTPUT))
        }
    }

    #[test]
    fn a_failing_disk_is_no_damage_whatever_the_compression() {
        let text: String =
            (0..60_000u64).map(|at| format!("line {}\n", at.wrapping_mul(0x9E37_79B9))).collect();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(text.as_bytes()).unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = zstd::encode_all(text.as_bytes(), 0).unwrap();
        // In the gzip header, within a stream, and where a second stream may follow.
        let cases = [
            ("a.txt", text.clone().into_bytes(), text.len() / 2),
            ("a.txt.gz", gzip.clone(), 5),
            ("a.txt.gz", gzip.clone(), gzip.len() / 2),
            ("a.txt.gz", gzip.clone(), gzip.len()),
            ("a.txt.zst", zstd.clone(), 3),
            ("a.txt.zst", zstd.clone(), zstd.len() / 2),
            ("a.txt.zst", zstd.clone(), zstd.len()),
        ];
        for (name, bytes, until) in cases {
            let file = InputFile::new(name.into(), 0);
            let stored = Box::new(bytes[..until].chain(Failing));
            let mut content = Content::of(stored, &file, &NoProgress).unwrap().0;
            let error = content.reader().read_to_end(&mut Vec::new()).unwrap_err();
            match content.fault(&file.path, 1, error) {
                Fault::Unreadable(ShardsError::Io { path, source, .. }) => {
                    assert_eq!((path, source.raw_os_error()), (file.path, Some(INPUT_OUTPUT)));
                }
                fault => panic!("{name} until {until}: {fault:?}"),
            }
        }
    }
}
