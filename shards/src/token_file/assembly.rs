//! Making the HDF5 file from data of known size and hash.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::str::FromStr;

use dipaco_files::PendingFile;
use hdf5::plist::dataset_create::{AllocTime, FillTime, Layout};
use hdf5::types::VarLenUnicode;

use super::header::{HEADER_BYTES, Header};
use super::map::FileMap;
use super::{FORMAT, TOKEN_FILE_FORMAT_VERSION, TokenFileInfo, TokenFileSummary, is_wide};
use crate::ShardsError;

/// Upper bound of the size of HDF5's own structures in bytes, without the long attributes.
const STRUCTURE_BYTES: u64 = 64 << 10;

/// A token file about to be written.
pub(super) struct Assembly<'a> {
    /// Destination.
    pub(super) path: &'a Path,
    pub(super) info: &'a TokenFileInfo,
    pub(super) documents: u64,
    pub(super) tokens: u64,
    pub(super) content_hash: String,
}

/// Offsets of the data sets in the file, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataSetOffsets {
    pub(super) documents: u64,
    pub(super) tokens: u64,
}

impl Assembly<'_> {
    /// Makes the file under a temporary name, lets `fill` write the two data sets, and publishes the file.
    pub(super) fn write(
        &self,
        fill: impl FnOnce(&mut File, DataSetOffsets) -> Result<(), ShardsError>,
    ) -> Result<TokenFileSummary, ShardsError> {
        let path = self.path;
        let mut pending = PendingFile::create(path)?;
        let texts = self.info.source.len() + self.info.origin.len() + self.info.tokenizer_hash.len();
        let data = self.tokens * self.token_bytes() + (self.documents + 1) * 8;
        reserve(pending.file_mut(), data, STRUCTURE_BYTES + texts as u64)
            .map_err(ShardsError::io("write", path))?;
        let offsets = self.write_structures(pending.temporary_path())?;
        // The data bypass HDF5, so that they are copied once and in large blocks; HDF5 has closed the file by now.
        let file = pending.file_mut();
        fill(file, offsets)?;
        let header = self.header(file, offsets)?;
        let bytes =
            header.to_bytes().map_err(|error| ShardsError::io("write the header of", path)(error.into()))?;
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(&bytes))
            .map_err(ShardsError::io("write", path))?;
        pending.publish()?;
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

    /// Lets HDF5 write everything but the data.
    fn write_structures(&self, temporary: &Path) -> Result<DataSetOffsets, ShardsError> {
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
            ("format_version", TOKEN_FILE_FORMAT_VERSION),
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
        Ok(DataSetOffsets { documents, tokens })
    }

    fn header(&self, file: &File, offsets: DataSetOffsets) -> Result<Header, ShardsError> {
        let map = FileMap::new(file, self.path)?;
        let mut header = Header {
            version: TOKEN_FILE_FORMAT_VERSION,
            file_bytes: map.len(),
            token_bytes: self.token_bytes(),
            tokens: self.tokens,
            tokens_offset: offsets.tokens,
            documents: self.documents,
            documents_offset: offsets.documents,
            structure_hash: String::new(),
        };
        header.structure_hash = header.structure_hash(map.bytes());
        Ok(header)
    }
}

/// Creates a data set with room for its elements; returns its offset in the file in bytes.
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
    // HDF5 gives an empty data set no offset; readers accept any aligned one in the file.
    Ok(set.offset().unwrap_or(HEADER_BYTES))
}

/// Checks that a file may have `data` bytes and that the disk has room for HDF5's own structures. The HDF5 library does
/// not survive a failing write, so a full disk must show before it starts.
fn reserve(file: &mut File, data: u64, structure: u64) -> std::io::Result<()> {
    std::io::copy(&mut std::io::repeat(0).take(structure), file)?;
    file.sync_all()?;
    file.set_len(data + structure)?;
    file.set_len(0)
}
