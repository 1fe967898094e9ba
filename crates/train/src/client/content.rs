//! Content that a worker uploads: in memory, or in a file of the worker.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use dipaco_files::FileError;
use dipaco_protocol::ContentDigest;

use crate::TrainError;
use crate::blocking::blocking;

/// Bytes that are read at once: whole f32 values.
const PIECE: u64 = 4 << 20;

/// Content to be uploaded.
#[derive(Clone, Debug)]
pub enum UploadContent {
    /// In memory.
    Memory(Bytes),
    /// In a file.
    File(Arc<ContentFile>),
}

impl From<Bytes> for UploadContent {
    fn from(bytes: Bytes) -> Self {
        Self::Memory(bytes)
    }
}

impl From<Vec<u8>> for UploadContent {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Memory(bytes.into())
    }
}

impl UploadContent {
    /// Hash and length.
    pub(super) async fn digest(&self) -> Result<ContentDigest, TrainError> {
        match self {
            Self::Memory(bytes) => {
                let bytes = bytes.clone();
                blocking(move || digest_of(&bytes)).await
            }
            Self::File(file) => Ok(file.digest.clone()),
        }
    }

    /// The piece of `length` bytes at `offset`.
    ///
    /// # Errors
    /// When the file can't be read.
    pub(super) async fn piece(&self, offset: u64, length: u64) -> Result<Bytes, TrainError> {
        match self {
            Self::Memory(bytes) => {
                // Offsets within a slice fit its index type.
                let [begin, end] =
                    [offset, offset + length].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
                Ok(bytes.slice(begin..end))
            }
            Self::File(file) => {
                let file = file.clone();
                Ok(blocking(move || file.read(offset, length)).await??.into())
            }
        }
    }
}

/// Hash and length of a whole content. All threads hash it: nothing travels meanwhile.
pub(super) fn digest_of(content: &[u8]) -> ContentDigest {
    let mut hasher = blake3::Hasher::new();
    hasher.update_rayon(content);
    ContentDigest::of_hasher(&hasher)
}

/// Content in an unnamed file, with its hash. The file disappears with this or with the process.
#[derive(Debug)]
pub struct ContentFile {
    /// The lock belongs to the place from which is read.
    file: Mutex<File>,
    /// The folder on whose disk the file lies.
    folder: PathBuf,
    digest: ContentDigest,
}

impl ContentFile {
    /// Writes parts, one after the other, to a new file on the disk of `folder`.
    ///
    /// # Errors
    /// When the disk fails or is full.
    pub(crate) fn write(
        folder: &Path,
        parts: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<Self, FileError> {
        std::fs::create_dir_all(folder).map_err(FileError::new("create the folder", folder))?;
        let mut file =
            tempfile::tempfile_in(folder).map_err(FileError::new("create a temporary file in", folder))?;
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            let part = part.as_ref();
            hasher.update(part);
            file.write_all(part).map_err(FileError::new("write a temporary file in", folder))?;
        }
        let digest = ContentDigest::of_hasher(&hasher);
        Ok(Self { file: Mutex::new(file), folder: folder.to_owned(), digest })
    }

    /// The whole content as f32 values in little-endian order. Bytes after the last whole value are left out.
    ///
    /// # Errors
    /// When the disk fails, or gives back other bytes.
    pub(crate) fn values(&self) -> Result<Vec<f32>, FileError> {
        let mut values = Vec::with_capacity(self.length() / size_of::<f32>());
        self.read_pieces(|piece| {
            values.extend(piece.as_chunks().0.iter().copied().map(f32::from_le_bytes));
            Ok::<_, FileError>(())
        })?;
        Ok(values)
    }

    /// Length in bytes.
    pub(crate) fn length(&self) -> usize {
        usize::try_from(self.digest.bytes).unwrap_or(usize::MAX)
    }

    /// Reads the whole content in pieces of 4 MiB, the last one shorter, and checks its hash.
    ///
    /// # Errors
    /// When the disk fails, or gives back other bytes. The errors of `take`.
    pub(crate) fn read_pieces<E: From<FileError>>(
        &self,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut hasher = blake3::Hasher::new();
        let mut offset = 0;
        while offset < self.digest.bytes {
            let piece = self.read(offset, PIECE.min(self.digest.bytes - offset))?;
            hasher.update(&piece);
            take(&piece)?;
            offset += piece.len() as u64;
        }
        if hasher.finalize().to_hex().as_str() == self.digest.hash {
            return Ok(());
        }
        Err(self.failed(std::io::Error::other("the disk gave back other bytes than were written")).into())
    }

    fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, FileError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut piece = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        let read = file
            .seek(SeekFrom::Start(offset))
            .and_then(|_| (&mut *file).take(length).read_to_end(&mut piece));
        match read {
            Ok(read) if read as u64 == length => Ok(piece),
            Ok(_) => Err(self.failed(std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: std::io::Error) -> FileError {
        FileError::new("read a temporary file in", &self.folder)(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_comes_back_and_damage_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let write = || ContentFile::write(&cache, [&b"first"[..], b"", b"and last"]).unwrap();
        let file = write();
        let content = |file: &ContentFile| {
            let mut content = Vec::new();
            file.read_pieces(|piece| {
                content.extend_from_slice(piece);
                Ok::<_, FileError>(())
            })?;
            Ok::<_, FileError>(content)
        };
        assert_eq!(content(&file).unwrap(), b"firstand last");
        assert_eq!(file.values().unwrap(), [*b"firs", *b"tand", *b" las"].map(f32::from_le_bytes));
        assert_eq!(file.digest, ContentDigest::of(b"firstand last"));
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 0, "the files have no names");
        assert_eq!(file.read(3, 4).unwrap(), b"stan");
        assert!(file.read(3, 11).is_err());
        let damaged = write();
        damaged.file.lock().unwrap().seek(SeekFrom::Start(2)).unwrap();
        damaged.file.lock().unwrap().write_all(b"x").unwrap();
        let error = format!("{:?}", content(&damaged).unwrap_err());
        assert!(error.contains("other bytes"), "{error}");
        let error = ContentFile::write(Path::new("/proc/nothing"), [b"x"]).unwrap_err();
        assert!(error.to_string().contains("/proc/nothing"), "{error}");
    }
}
