//! The texts of a Parquet file: one document per row.

mod pages;

use std::fs::File;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::compression::{Fault, is_of_the_system};
use super::{FileEnd, InputFile, ReadRecord, ReadSettings, Refusal, json};
use crate::ShardsError;
use pages::CheckedPages;

/// Reads a file, row group by row group and page by page, and passes its documents to `sink` until it breaks. A row counts
/// as a line. `sink` has received the documents before a fault.
pub(super) fn read(
    file: &InputFile,
    settings: &ReadSettings,
    sink: &mut dyn FnMut(ReadRecord) -> ControlFlow<()>,
    end: &mut FileEnd,
) -> Result<ControlFlow<()>, Fault> {
    let mut group = None;
    // The library promises no error for every damaged file. A panic of it is damage too.
    let outcome = catch_unwind(AssertUnwindSafe(|| read_groups(file, settings, sink, end, &mut group)));
    let damage = match outcome {
        Ok(Ok(flow)) => return Ok(flow),
        Ok(Err(Fault::Damage(damage))) => damage,
        Ok(Err(unreadable)) => return Err(unreadable),
        Err(_) => "the Parquet library cannot decode it".to_owned(),
    };
    Err(Fault::Damage(match group {
        Some(group) => format!("row group {group}, row {}: {damage}", end.lines + 1),
        None => damage,
    }))
}

/// The fault behind an error of the library in reading the file `path`.
fn fault(path: &Path, error: ParquetError) -> Fault {
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
    if source.is_some_and(is_of_the_system) {
        Fault::Unreadable(ShardsError::io("read", path)(std::io::Error::other(error)))
    } else {
        Fault::Damage(error.to_string())
    }
}

impl From<String> for Fault {
    fn from(damage: String) -> Self {
        Self::Damage(damage)
    }
}

/// [`read`]; `group` is the number of the row group in reading.
fn read_groups(
    file: &InputFile,
    settings: &ReadSettings,
    sink: &mut dyn FnMut(ReadRecord) -> ControlFlow<()>,
    end: &mut FileEnd,
    group: &mut Option<usize>,
) -> Result<ControlFlow<()>, Fault> {
    let wrong = |error| fault(&file.path, error);
    let opened = File::open(&file.path)
        .map_err(|error| Fault::Unreadable(ShardsError::io("open", &file.path)(error)))?;
    let reader = SerializedFileReader::new(opened).map_err(|error| match wrong(error) {
        Fault::Damage(damage) => Fault::Damage(format!("it is no whole Parquet file: {damage}")),
        unreadable => unreadable,
    })?;
    let column = column_of(reader.metadata(), &settings.text_field)?;
    for number in 0..reader.num_row_groups() {
        *group = Some(number);
        let rows = reader.get_row_group(number).map_err(wrong)?;
        let described = rows.metadata().schema_descr().column(column);
        let pages = rows.get_column_page_reader(column).map_err(wrong)?;
        let pages = CheckedPages { pages, present: described.max_def_level() };
        let ColumnReader::ByteArrayColumnReader(texts) = get_column_reader(described, Box::new(pages)) else {
            return Err(format!("column `{}` holds no texts here", settings.text_field).into());
        };
        let expected = u64::try_from(rows.metadata().num_rows()).map_err(|error| error.to_string())?;
        let before = end.lines;
        if read_rows(texts, settings, sink, end).map_err(wrong)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let found = end.lines - before;
        if found != expected {
            return Err(format!("it has {found} rows, and {expected} are declared").into());
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Number of the column with the texts.
fn column_of(metadata: &ParquetMetaData, name: &str) -> Result<usize, String> {
    let schema = metadata.file_metadata().schema_descr();
    let names: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
    let Some(at) = names.iter().position(|own| own == name) else {
        let names = names.join("`, `");
        return Err(format!("it has no column `{name}` but `{names}`; prepare.text_field names the column"));
    };
    let column = schema.column(at);
    if column.physical_type() != Type::BYTE_ARRAY || column.max_rep_level() != 0 {
        return Err(format!("column `{name}` holds no texts; prepare.text_field names the column"));
    }
    Ok(at)
}

/// Reads the column of a row group.
fn read_rows(
    mut texts: ColumnReaderImpl<ByteArrayType>,
    settings: &ReadSettings,
    sink: &mut dyn FnMut(ReadRecord) -> ControlFlow<()>,
    end: &mut FileEnd,
) -> Result<ControlFlow<()>, ParquetError> {
    let (mut levels, mut values): (Vec<i16>, Vec<ByteArray>) = (Vec::new(), Vec::new());
    loop {
        levels.clear();
        values.clear();
        // In the encoding DELTA_BYTE_ARRAY each text is a copy, and can be as long as its page. So the library decodes
        // one row at a time.
        let (rows, ..) = texts.read_records(1, Some(&mut levels), None, &mut values)?;
        if rows == 0 {
            return Ok(ControlFlow::Continue(()));
        }
        end.lines += 1;
        let text = values.first().map_or(Err(Refusal::NoText), |bytes| text_of(bytes.data(), settings));
        let record = match text {
            Ok(text) => ReadRecord::Document { text, line: end.lines },
            Err(reason) => ReadRecord::Refused { reason, line: end.lines },
        };
        if sink(record).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
}

fn text_of(bytes: &[u8], settings: &ReadSettings) -> Result<String, Refusal> {
    if bytes.len() > settings.max_line_bytes {
        return Err(Refusal::LineTooLong);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| Refusal::NotUtf8)?;
    if json::is_blank(text) { Err(Refusal::EmptyText) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests;
