//! Lists of files to read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Compression of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Format of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// JSON lines.
    Json,
    /// Parquet, which compresses its columns itself.
    Parquet,
    /// Plain text.
    Text,
}

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFile {
    /// Its path.
    pub path: PathBuf,
    /// Its length as stored, in bytes.
    pub bytes: u64,
    pub(super) format: Format,
    pub(super) compression: Compression,
}

impl InputFile {
    /// A file with the format that its name indicates.
    pub fn new(path: PathBuf, bytes: u64) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let (stem, compression) = match (name.strip_suffix(".gz"), name.strip_suffix(".zst")) {
            (Some(stem), _) => (stem, Compression::Gzip),
            (_, Some(stem)) => (stem, Compression::Zstd),
            _ => (name.as_str(), Compression::None),
        };
        let format = if name.ends_with(".parquet") {
            Format::Parquet
        } else if [".json", ".jsonl", ".ndjson"].iter().any(|ending| stem.ends_with(ending)) {
            Format::Json
        } else {
            Format::Text
        };
        Self { path, bytes, format, compression }
    }

    /// Estimated number of bytes of text in the file.
    pub(crate) fn text_bytes_estimate(&self) -> u64 {
        // English text shrinks to about 40 % with gzip and 35 % with zstd. Parquet files are nearly always compressed.
        let plain = self.compression == Compression::None && self.format != Format::Parquet;
        if plain { self.bytes } else { self.bytes.saturating_mul(5) / 2 }
    }
}

/// The reason for skipping a file of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Skipped {
    /// Its name, or the name of a folder on the way to it, starts with a dot.
    Hidden,
    /// It has a NUL byte near its start.
    Binary,
    /// It is a symbolic link to a directory, which could form a loop.
    LinkedDirectory,
    /// It is a socket, pipe or device.
    NotRegular,
    /// It is a directory with the files of a run, or with text that a run has prepared.
    RunFiles,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Hidden => "hidden",
            Self::Binary => "not text",
            Self::LinkedDirectory => "link to a directory",
            Self::NotRegular => "not a regular file",
            Self::RunFiles => "directory of a run",
        })
    }
}

/// Files to read, in the order of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputList {
    /// The files, sorted by path, each once, whatever its names.
    pub files: Vec<InputFile>,
    /// Skipped entries of directories: the count for each reason.
    pub skipped: BTreeMap<Skipped, u64>,
    /// Directories that were left out because they hold the files of a run, sorted by path.
    pub runs: Vec<PathBuf>,
}

impl InputList {
    /// Length of all files as stored, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}
