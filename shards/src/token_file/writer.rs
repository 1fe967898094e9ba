//! Writing a token file.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hdf5::plist::dataset_create::{AllocTime, FillTime, Layout};
use hdf5::types::VarLenUnicode;
use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::header::{HEADER_BYTES, Header};
use super::{FORMAT, FORMAT_VERSION, TokenFileInfo, content_hash};
use crate::ShardsError;
use crate::temporary::temporary;

/// More than HDF5's own structures take, long attributes not counted.
const STRUCTURE_BYTES: u64 = 64 << 10;

/// What was written.
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
    /// Hash of the content (see [`super::TokenFileMetadata::content_hash`]).
    pub content_hash: String,
}

/// Writes a token file in bounded memory.
///
/// Tokens go to temporary files beside the destination, and [`Self::finish`] makes the HDF5 file of them under a
/// temporary name and renames it. Until then the destination is untouched; a writer that is dropped, or fails, leaves
/// nothing behind.
pub struct TokenFileWriter {
    path: PathBuf,
    folder: PathBuf,
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
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut writer = Self {
            tokens: Spool::create(&folder, &path)?,
            offsets: Spool::create(&folder, &path)?,
            wide: info.vocab_size > 1 << 16,
            path,
            folder,
            info,
            documents: 0,
            token_count: 0,
        };
        writer.offsets.write(&0u64.to_le_bytes(), &writer.path)?;
        Ok(writer)
    }

    /// Appends a document, which ends with the end-of-text token.
    ///
    /// # Errors
    /// The document does not end so, a token is not in the vocabulary, or the disk is full. A document that is refused
    /// leaves the writer as it was.
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

    /// Number of documents so far.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// Number of tokens so far.
    pub fn tokens(&self) -> u64 {
        self.token_count
    }

    /// Replaces [`TokenFileInfo::source`], whose hashes are often known only after reading.
    pub fn set_source(&mut self, source: String) {
        self.info.source = source;
    }

    /// Writes the HDF5 file, syncs it to the disk and renames it to its place, replacing what was there.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn finish(mut self) -> Result<TokenFileSummary, ShardsError> {
        let tokens_hash = self.tokens.hasher.finalize();
        let documents_hash = self.offsets.hasher.finalize();
        let content_hash = content_hash(&tokens_hash, &documents_hash);
        let mut finished = temporary(&self.folder, &self.path)?;
        let texts = self.info.source.len() + self.info.origin.len() + self.info.tokenizer_hash.len();
        let data = self.token_count * if self.wide { 4 } else { 2 } + (self.documents + 1) * 8;
        reserve(finished.as_file_mut(), data, STRUCTURE_BYTES + texts as u64)
            .map_err(ShardsError::io("write", &self.path))?;
        let header = self.write_hdf5(finished.path(), &content_hash)?;
        let bytes = header
            .to_bytes()
            .map_err(|error| ShardsError::io("write the header of", &self.path)(error.into()))?;
        let file = finished.as_file_mut();
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(&bytes))
            .and_then(|()| file.sync_all())
            .map_err(ShardsError::io("write", &self.path))?;
        finished.persist(&self.path).map_err(|error| ShardsError::io("rename", &self.path)(error.error))?;
        // The renaming itself is durable once the folder is.
        File::open(&self.folder)
            .and_then(|folder| folder.sync_all())
            .map_err(ShardsError::io("sync", &self.folder))?;
        Ok(TokenFileSummary {
            path: self.path,
            documents: self.documents,
            tokens: self.token_count,
            bytes: header.file_bytes,
            content_hash,
        })
    }

    /// Writes everything but the header's bytes. HDF5 makes the structures; the data sets are filled when it has closed
    /// the file.
    fn write_hdf5(&mut self, temporary: &Path, content_hash: &str) -> Result<Header, ShardsError> {
        let path = self.path.clone();
        let wrap = |error| ShardsError::hdf5("write", &path)(error);
        let file = hdf5::File::with_options()
            // Data sets start on cache lines, which aligns every integer type.
            .with_fapl(|access| access.alignment(1, 64).file_locking(false))
            .with_fcpl(|create| create.userblock(HEADER_BYTES).obj_track_times(false))
            .create(temporary)
            .map_err(wrap)?;
        let documents_offset = create_set::<u64>(&file, "documents", self.documents + 1, &path)?;
        let tokens_offset = if self.wide {
            create_set::<u32>(&file, "tokens", self.token_count, &path)?
        } else {
            create_set::<u16>(&file, "tokens", self.token_count, &path)?
        };
        for (name, text) in [
            ("format", FORMAT),
            ("tokenizer_hash", &self.info.tokenizer_hash),
            ("source", &self.info.source),
            ("origin", &self.info.origin),
            ("content_hash", content_hash),
        ] {
            let value = VarLenUnicode::from_str(text)
                .map_err(|error| hdf5::Error::from(error.to_string()))
                .map_err(wrap)?;
            file.new_attr::<VarLenUnicode>()
                .create(name)
                .and_then(|attribute| attribute.write_scalar(&value))
                .map_err(wrap)?;
        }
        for (name, number) in [
            ("format_version", FORMAT_VERSION),
            ("end_of_text", u64::from(self.info.end_of_text)),
            ("vocab_size", u64::from(self.info.vocab_size)),
            ("documents", self.documents),
            ("tokens", self.token_count),
        ] {
            file.new_attr::<u64>()
                .create(name)
                .and_then(|attribute| attribute.write_scalar(&number))
                .map_err(wrap)?;
        }
        file.flush().map_err(wrap)?;
        file.close().map_err(wrap)?;

        let mut closed =
            File::options().read(true).write(true).open(temporary).map_err(ShardsError::io("open", &path))?;
        self.offsets.copy_to(&mut closed, documents_offset, &path)?;
        self.tokens.copy_to(&mut closed, tokens_offset, &path)?;
        // SAFETY: the temporary file is this writer's own and nobody else knows its name.
        let map = unsafe { Mmap::map(&closed) }.map_err(ShardsError::io("map", &path))?;
        let mut header = Header {
            version: FORMAT_VERSION,
            file_bytes: map.len() as u64,
            token_bytes: if self.wide { 4 } else { 2 },
            tokens: self.token_count,
            tokens_offset,
            documents: self.documents,
            documents_offset,
            structure_hash: String::new(),
        };
        header.structure_hash = header.structure_hash(&map);
        Ok(header)
    }
}

/// Bytes on their way into a data set.
struct Spool {
    file: BufWriter<NamedTempFile>,
    hasher: blake3::Hasher,
}

impl Spool {
    fn create(folder: &Path, path: &Path) -> Result<Self, ShardsError> {
        let file = BufWriter::with_capacity(1 << 18, temporary(folder, path)?);
        Ok(Self { file, hasher: blake3::Hasher::new() })
    }

    fn write(&mut self, bytes: &[u8], path: &Path) -> Result<(), ShardsError> {
        self.hasher.update(bytes);
        self.file.write_all(bytes).map_err(ShardsError::io("write", path))
    }

    /// Copies the spool to a place in a file.
    fn copy_to(&mut self, file: &mut File, offset: u64, path: &Path) -> Result<(), ShardsError> {
        self.file.flush().map_err(ShardsError::io("write", path))?;
        let spool = self.file.get_mut().as_file_mut();
        spool
            .seek(SeekFrom::Start(0))
            .and_then(|_| file.seek(SeekFrom::Start(offset)))
            .and_then(|_| std::io::copy(spool, file))
            .map_err(ShardsError::io("write", path))?;
        Ok(())
    }
}

/// Creates a data set with room for its elements; returns where that starts in the file.
fn create_set<T: hdf5::H5Type>(
    file: &hdf5::File,
    name: &str,
    elements: u64,
    path: &Path,
) -> Result<u64, ShardsError> {
    let set = file
        .new_dataset::<T>()
        .layout(Layout::Contiguous)
        .alloc_time(Some(AllocTime::Early))
        .fill_time(FillTime::Never)
        .obj_track_times(false)
        .shape(elements as usize)
        .create(name)
        .map_err(ShardsError::hdf5("write", path))?;
    // An empty data set has no place; any aligned one in the file will do.
    Ok(set.offset().unwrap_or(HEADER_BYTES))
}

/// Checks that a file can have `data` bytes and that there is room for HDF5's own structures, because the HDF5 library
/// does not survive a failing write.
fn reserve(file: &mut File, data: u64, structure: u64) -> std::io::Result<()> {
    std::io::copy(&mut std::io::repeat(0).take(structure), file)?;
    file.sync_all()?;
    file.set_len(data + structure)?;
    file.set_len(0)
}
