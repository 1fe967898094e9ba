//! Reading the attributes of a token file with the HDF5 library.

use std::path::Path;

use super::header::Header;
use super::{FORMAT, TokenFileInfo, TokenFileMetadata};
use crate::ShardsError;

/// Reads the attributes and checks that they and the data sets agree with the header.
///
/// # Errors
/// The file is no token file, or its attributes, data sets and header contradict each other.
pub(super) fn read(path: &Path, header: &Header) -> Result<TokenFileMetadata, ShardsError> {
    let file = hdf5::File::with_options()
        // Nobody writes to a finished file, and some network file systems have no locks.
        .with_fapl(|access| access.file_locking(false))
        .open(path)
        .map_err(ShardsError::hdf5("open", path))?;
    let metadata = read_metadata(&file, path)?;
    check_data_sets(&file, path, header)?;
    if (metadata.tokens, metadata.documents) != (header.tokens, header.documents) {
        return Err(damaged(path, "the counts in the attributes and in the header differ".to_owned()));
    }
    Ok(metadata)
}

fn read_metadata(file: &hdf5::File, path: &Path) -> Result<TokenFileMetadata, ShardsError> {
    let wrap = |error| ShardsError::hdf5("open", path)(error);
    let text = |name: &str| -> Result<String, ShardsError> {
        let value: hdf5::types::VarLenUnicode =
            file.attr(name).and_then(|a| a.read_scalar()).map_err(wrap)?;
        // The binding hands out the file's bytes as a `str` and checks nothing.
        let text = std::str::from_utf8(value.as_bytes())
            .map_err(|error| damaged(path, format!("attribute {name} is not text: {error}")))?;
        Ok(text.to_owned())
    };
    let number =
        |name: &str| file.attr(name).and_then(|attribute| attribute.read_scalar::<u64>()).map_err(wrap);
    let id = |name: &str| -> Result<u32, ShardsError> {
        let value = number(name)?;
        u32::try_from(value).map_err(|_| damaged(path, format!("attribute {name} is {value}")))
    };
    let format = text("format")?;
    if format != FORMAT {
        let reason = format!("its format is {format:?}");
        return Err(ShardsError::NotATokenFile { path: path.to_owned(), reason });
    }
    Ok(TokenFileMetadata {
        info: TokenFileInfo {
            tokenizer_hash: text("tokenizer_hash")?,
            end_of_text: id("end_of_text")?,
            vocab_size: id("vocab_size")?,
            source: text("source")?,
            origin: text("origin")?,
        },
        documents: number("documents")?,
        tokens: number("tokens")?,
        content_hash: text("content_hash")?,
    })
}

fn check_data_sets(file: &hdf5::File, path: &Path, header: &Header) -> Result<(), ShardsError> {
    for (name, range, elements, bytes) in [
        ("tokens", header.tokens_range(), header.tokens, header.token_bytes),
        ("documents", header.documents_range(), header.documents + 1, 8),
    ] {
        let set = file.dataset(name).map_err(ShardsError::hdf5("open", path))?;
        // HDF5 gives an empty data set no place in the file.
        let right_place = elements == 0 || set.offset() == Some(range.start);
        let right_type = set.dtype().is_ok_and(|dtype| dtype.size() as u64 == bytes);
        if !right_place || !right_type || set.size() as u64 != elements {
            return Err(damaged(path, format!("data set {name} does not match the header")));
        }
    }
    Ok(())
}

fn damaged(path: &Path, reason: String) -> ShardsError {
    ShardsError::Damaged { path: path.to_owned(), reason }
}
