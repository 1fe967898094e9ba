//! Reading documents from files, one after the other, in bounded memory.
//!
//! | name ends in | read as |
//! |---|---|
//! | `.json`, `.jsonl`, `.ndjson` | one JSON object per line, with its text in the field `text` (C4) or another |
//! | `.parquet` | Parquet, with a document per row in the column of the same name |
//! | anything else | plain text in UTF-8, cut into documents at line ends |
//! | JSON or plain text with `.gz` or `.zst` | the same, compressed; several gzip members or zstd frames are read as one |
//!
//! Nothing is dropped in silence: a line or file without a document is reported with its reason and place.

mod compression;
mod crate_sources;
mod json;
mod lines;
mod list;
mod listing;
mod parquet;
mod run_files;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::ops::ControlFlow;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{NoProgress, PrepareProgress, ShardsError};
use compression::{Content, Fault};
use lines::{Line, Lines};

pub use crate_sources::crate_sources;
use list::Format;
pub use list::{InputFile, InputList, Skipped};
pub(crate) use listing::Listing;
pub use listing::list_inputs;

/// Bytes at the start of a file that are searched for a NUL; a file with one is not text.
const SNIFFED_BYTES: usize = 8 * 1024;

/// Settings of reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadSettings {
    /// Field of JSON lines, or column of Parquet files, with the text.
    pub text_field: String,
    /// Longest line in bytes, and so the longest JSON document. Longer lines are refused without being held in memory.
    pub max_line_bytes: usize,
    /// Largest document of a plain text in bytes. The text is cut at line ends; a longer line is one document.
    pub text_document_bytes: usize,
}

impl InputFile {
    /// True if documents of the file can have other fields beside their text: JSON lines and Parquet, not plain text.
    pub fn has_fields(&self) -> bool {
        self.format != Format::Text
    }
}

/// The reason why a line, or a run of plain text, is not a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// Longer than `max_line_bytes`.
    LineTooLong,
    /// The bytes are not UTF-8.
    NotUtf8,
    /// The line is not JSON. Lone surrogates and raw control characters in strings count too.
    InvalidJson,
    /// The JSON is nested deeper than 128 levels.
    NestedTooDeep,
    /// The JSON value is not an object.
    NotAnObject,
    /// The object or row has no text.
    NoText,
    /// The text is not a string.
    TextWrongType,
    /// The text is empty or white space.
    EmptyText,
    /// Fewer tokens than `min_document_tokens`.
    TooShort,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::LineTooLong => "line longer than max_line_bytes",
            Self::NotUtf8 => "not UTF-8",
            Self::InvalidJson => "invalid JSON",
            Self::NestedTooDeep => "JSON nested too deep",
            Self::NotAnObject => "JSON, but not an object",
            Self::NoText => "no text field",
            Self::TextWrongType => "the text field is not a string",
            Self::EmptyText => "the text is blank",
            Self::TooShort => "fewer tokens than min_document_tokens",
        })
    }
}

/// A finding of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadRecord {
    /// A document.
    Document {
        /// Its text.
        text: String,
        /// Its first line in the decompressed file, from 1.
        line: u64,
    },
    /// A line or a run of text that is not a document.
    Refused {
        /// The reason.
        reason: Refusal,
        /// Its first line in the decompressed file, from 1.
        line: u64,
    },
}

/// How the reading of a file ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEnd {
    /// Bytes of the file as stored.
    pub bytes: u64,
    /// BLAKE3 of the file as stored, in hexadecimal; `None` if reading was stopped.
    pub hash: Option<String>,
    /// Lines read.
    pub lines: u64,
    /// Damage of the file as a whole; documents before the damage are kept.
    pub damage: Option<String>,
    /// Reason for skipping the file, if it holds no text and was not read.
    pub skipped: Option<Skipped>,
}

/// Reads the documents of a file and passes them to `sink` until it breaks. Damage is part of the result, never a panic
/// or an error; `sink` has received the records before it.
///
/// # Errors
/// The operating system cannot open or read the file: a right is missing, or a disk or a network fails. The content may be
/// whole, so this is no damage.
pub fn read_documents(
    file: &InputFile,
    settings: &ReadSettings,
    progress: &dyn PrepareProgress,
    sink: &mut dyn FnMut(ReadRecord) -> ControlFlow<()>,
) -> Result<FileEnd, ShardsError> {
    let mut end = FileEnd { bytes: 0, hash: None, lines: 0, damage: None, skipped: None };
    let (mut content, no_content) = Content::open(file, progress)?;
    let mut records = 0u64;
    let sink = &mut |record: ReadRecord| {
        records += 1;
        sink(record)
    };
    let outcome = match (no_content, file.format) {
        (Some(damage), _) => Err(Fault::Damage(damage.to_owned())),
        (None, Format::Parquet) => parquet::read(file, settings, sink, &mut end),
        (None, Format::Json | Format::Text) => {
            let read = read_lined(file.format, &mut content, settings, sink, &mut end);
            read.map_err(|error| content.fault(&file.path, end.lines + 1, error))
        }
    };
    let stopped = match outcome {
        Ok(flow) => flow.is_break(),
        Err(Fault::Unreadable(error)) => return Err(error),
        Err(Fault::Damage(damage)) => {
            end.damage = Some(damage);
            false
        }
    };
    if !stopped {
        let (bytes, hash) = content.finish().map_err(ShardsError::io("read", &file.path))?;
        (end.bytes, end.hash) = (bytes, Some(hash));
    }
    if end.damage.is_none() && end.skipped.is_none() && !stopped && records == 0 {
        end.damage = Some("it holds no text".to_owned());
    }
    Ok(end)
}

/// Reads the lines of a file and passes them to `sink` with their number, from 1, until it breaks. The name of the file
/// decides the decompression. For files beside the text, such as labels. Lines over `max_line_bytes` are left out.
///
/// # Errors
/// The file cannot be opened or read, or is damaged; `sink` has received the lines before the damage.
pub fn read_lines(
    path: &Path,
    max_line_bytes: usize,
    sink: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
) -> Result<(), ShardsError> {
    let bytes = std::fs::metadata(path).map_err(ShardsError::io("open", path))?.len();
    let damaged = |reason| ShardsError::Damaged { path: path.to_owned(), reason };
    let file = InputFile::new(path.to_owned(), bytes);
    let (mut content, no_content) = Content::open(&file, &NoProgress)?;
    if let Some(damage) = no_content {
        return Err(damaged(damage.to_owned()));
    }
    let mut number = 0;
    let mut lines = Lines::new(content.reader(), max_line_bytes);
    let error = loop {
        match lines.next() {
            Ok(None) => return Ok(()),
            Err(error) => break error,
            Ok(Some(line)) => {
                number += 1;
                if let Line::Whole(line) = line
                    && sink(number, line).is_break()
                {
                    return Ok(());
                }
            }
        }
    };
    Err(match content.fault(path, number + 1, error) {
        Fault::Unreadable(error) => error,
        Fault::Damage(reason) => damaged(reason),
    })
}

type Flow = std::io::Result<ControlFlow<()>>;

/// Reads JSON lines or plain text.
fn read_lined(
    format: Format,
    content: &mut Content<'_>,
    settings: &ReadSettings,
    sink: &mut dyn FnMut(ReadRecord) -> ControlFlow<()>,
    end: &mut FileEnd,
) -> Flow {
    if format == Format::Json {
        let mut lines = Lines::new(content.reader(), settings.max_line_bytes);
        return read_json(&mut lines, &settings.text_field, sink, end);
    }
    let start = content.reader().fill_buf()?;
    if start[..start.len().min(SNIFFED_BYTES)].contains(&0) {
        end.skipped = Some(Skipped::Binary);
        return Ok(ControlFlow::Continue(()));
    }
    let mut lines = Lines::new(content.reader(), settings.max_line_bytes);
    read_text(&mut lines, settings.text_document_bytes, sink, end)
}

fn read_json<R: BufRead>(
    lines: &mut Lines<R>,
    field: &str,
    sink: &mut dyn FnMut(ReadRecord) -> ControlFlow<()>,
    end: &mut FileEnd,
) -> Flow {
    while let Some(line) = lines.next()? {
        end.lines += 1;
        let parsed = match line {
            Line::TooLong => Err(Refusal::LineTooLong),
            Line::Whole(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => continue,
            Line::Whole(bytes) => json::text_of(bytes, field),
        };
        let record = match parsed {
            Ok(text) => ReadRecord::Document { text, line: end.lines },
            Err(reason) => ReadRecord::Refused { reason, line: end.lines },
        };
        if sink(record).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn read_text<R: BufRead>(
    lines: &mut Lines<R>,
    limit: usize,
    sink: &mut dyn FnMut(ReadRecord) -> ControlFlow<()>,
    end: &mut FileEnd,
) -> Flow {
    let mut text: Vec<u8> = Vec::new();
    let mut first = 1;
    loop {
        let line = match lines.next() {
            Ok(line) => line,
            Err(error) => {
                // The lines before the damage are whole, so they still make a document.
                return match emit_text(&mut text, first, sink) {
                    ControlFlow::Continue(()) => Err(error),
                    ControlFlow::Break(()) => Ok(ControlFlow::Break(())),
                };
            }
        };
        let length = match line {
            Some(Line::Whole(bytes)) => bytes.len(),
            _ => 0,
        };
        let full = !text.is_empty() && text.len() + length > limit;
        if (full || !matches!(line, Some(Line::Whole(_)))) && emit_text(&mut text, first, sink).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        match line {
            None => return Ok(ControlFlow::Continue(())),
            Some(Line::TooLong) => {
                end.lines += 1;
                if sink(ReadRecord::Refused { reason: Refusal::LineTooLong, line: end.lines }).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Some(Line::Whole(bytes)) => {
                end.lines += 1;
                if text.is_empty() {
                    first = end.lines;
                }
                text.extend_from_slice(if end.lines == 1 { json::without_mark(bytes) } else { bytes });
            }
        }
    }
}

fn emit_text(
    text: &mut Vec<u8>,
    line: u64,
    sink: &mut dyn FnMut(ReadRecord) -> ControlFlow<()>,
) -> ControlFlow<()> {
    match String::from_utf8(std::mem::take(text)) {
        Ok(text) if json::is_blank(&text) => ControlFlow::Continue(()),
        Ok(text) => sink(ReadRecord::Document { text, line }),
        Err(_) => sink(ReadRecord::Refused { reason: Refusal::NotUtf8, line }),
    }
}

/// Count and first place of each reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Refusals(pub BTreeMap<Refusal, Refused>);

/// Count and first place of a reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Number of refusals.
    pub count: u64,
    /// `file:line` of the first refusal.
    pub first: String,
}

impl Refusals {
    /// Counts a refusal in a line of a file.
    pub fn add(&mut self, reason: Refusal, file: &InputFile, line: u64) {
        self.0
            .entry(reason)
            .or_insert_with(|| Refused { count: 0, first: format!("{}:{line}", file.path.display()) })
            .count += 1;
    }

    /// Number of refusals for all reasons together.
    pub fn count(&self) -> u64 {
        self.0.values().map(|refused| refused.count).sum()
    }

    /// Count, reason and first place of each reason, as a message shows them.
    pub fn shown(&self) -> impl Iterator<Item = String> {
        self.0
            .iter()
            .map(|(reason, refused)| format!("{} × {reason}, first at {}", refused.count, refused.first))
    }
}

#[cfg(test)]
mod tests;
