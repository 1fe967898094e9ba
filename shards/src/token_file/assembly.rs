//! Making the HDF5 file of data whose size and hash are known.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hdf5::plist::dataset_create::{AllocTime, FillTime, Layout};
use hdf5::types::VarLenUnicode;
use memmap2::Mmap;

use super::header::{HEADER_BYTES, Header};
use super::{FORMAT, FORMAT_VERSION, TokenFileInfo, TokenFileSummary, is_wide};
use crate::ShardsError;
use crate::temporary::temporary;

/// More than HDF5's own structures take, long attributes not counted.
const STRUCTURE_BYTES: u64 = 64 << 10;

/// A token file about to be written.
pub(super) struct Assembly<'a> {
    /// Where it goes.
    pub(super) path: &'a Path,
    pub(super) info: &'a TokenFileInfo,
    pub(super) documents: u64,
    pub(super) tokens: u64,
    pub(super) content_hash: String,
}

/// Where the data sets begin in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) documents: u64,
    pub(super) tokens: u64,
}

impl Assembly<'_> {
    /// Makes the file under a temporary name, has `fill` write the two data sets, syncs, and renames.
    pub(super) fn write(
        &self,
        fill: impl FnOnce(&mut File, Places) -> Result<(), ShardsError>,
    ) -> Result<TokenFileSummary, ShardsError> {
        let path = self.path;
        let folder = folder_of(path);
        let mut finished = temporary(&folder, path)?;
        let texts = self.info.source.len() + self.info.origin.len() + self.info.tokenizer_hash.len();
        let data = self.tokens * self.token_bytes() + (self.documents + 1) * 8;
        reserve(finished.as_file_mut(), data, STRUCTURE_BYTES + texts as u64)
            .map_err(ShardsError::io("write", path))?;
        let places = self.write_structures(finished.path())?;
        // HDF5 has closed the file; its bytes are filled in from here.
        let file = finished.as_file_mut();
        fill(file, places)?;
        let header = self.header(file, places)?;
        let bytes =
            header.to_bytes().map_err(|error| ShardsError::io("write the header of", path)(error.into()))?;
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(&bytes))
            .and_then(|()| file.sync_all())
            .map_err(ShardsError::io("write", path))?;
        finished.persist(path).map_err(|error| ShardsError::io("rename", path)(error.error))?;
        // The renaming itself is durable once the folder is.
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(ShardsError::io("sync", &folder))?;
        Ok(TokenFileSummary {
            path: path.to_owned(),
            documents: self.documents,
            tokens: self.tokens,
            bytes: header.file_bytes,
            content_hash: self.content_hash.clone(),
        })
    }

    fn token_bytes(&self) -> u64 {
        if is_wide(self.info.vocab_size) { 4 } else { 2 }
    }

    /// Has HDF5 write everything but the data.
    fn write_structures(&self, temporary: &Path) -> Result<Places, ShardsError> {
        let path = self.path;
        let wrap = |error| ShardsError::hdf5("write", path)(error);
        let file = hdf5::File::with_options()
            // Data sets start on cache lines, which aligns every integer type.
            .with_fapl(|access| access.alignment(1, 64).file_locking(false))
            .with_fcpl(|create| create.userblock(HEADER_BYTES).obj_track_times(false))
            .create(temporary)
            .map_err(wrap)?;
        let documents = create_set::<u64>(&file, "documents", self.documents + 1, path)?;
        let tokens = if is_wide(self.info.vocab_size) {
            create_set::<u32>(&file, "tokens", self.tokens, path)?
        } else {
            create_set::<u16>(&file, "tokens", self.tokens, path)?
        };
        for (name, text) in [
            ("format", FORMAT),
            ("tokenizer_hash", &self.info.tokenizer_hash),
            ("source", &self.info.source),
            ("origin", &self.info.origin),
            ("content_hash", &self.content_hash),
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
            ("tokens", self.tokens),
        ] {
            file.new_attr::<u64>()
                .create(name)
                .and_then(|attribute| attribute.write_scalar(&number))
                .map_err(wrap)?;
        }
        file.flush().map_err(wrap)?;
        file.close().map_err(wrap)?;
        Ok(Places { documents, tokens })
    }

    fn header(&self, file: &File, places: Places) -> Result<Header, ShardsError> {
        // SAFETY: the temporary file is this writer's own and nobody else knows its name.
        let map = unsafe { Mmap::map(file) }.map_err(ShardsError::io("map", self.path))?;
        let mut header = Header {
            version: FORMAT_VERSION,
            file_bytes: map.len() as u64,
            token_bytes: self.token_bytes(),
            tokens: self.tokens,
            tokens_offset: places.tokens,
            documents: self.documents,
            documents_offset: places.documents,
            structure_hash: String::new(),
        };
        header.structure_hash = header.structure_hash(&map);
        Ok(header)
    }
}

/// The folder of a file.
pub(super) fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
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
