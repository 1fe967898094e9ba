//! Which files to read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ShardsError;

/// How a file is compressed, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its length as stored, in bytes.
    pub bytes: u64,
    /// Whether it holds JSON lines; otherwise plain text.
    pub json: bool,
    pub(super) compression: Compression,
}

impl InputFile {
    /// The file, with its format by its name.
    pub fn new(path: PathBuf, bytes: u64) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let (stem, compression) = match (name.strip_suffix(".gz"), name.strip_suffix(".zst")) {
            (Some(stem), _) => (stem, Compression::Gzip),
            (_, Some(stem)) => (stem, Compression::Zstd),
            _ => (name.as_str(), Compression::None),
        };
        let json = [".json", ".jsonl", ".ndjson"].iter().any(|ending| stem.ends_with(ending));
        Self { path, bytes, json, compression }
    }

    /// About how many bytes of text the file holds.
    pub(crate) fn text_bytes_estimate(&self) -> u64 {
        // English text shrinks to about 40 % with gzip and 35 % with zstd.
        if self.compression == Compression::None { self.bytes } else { self.bytes.saturating_mul(5) / 2 }
    }
}

/// Why a file of a directory is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Skipped {
    /// Its name, or that of a directory on the way to it, starts with a dot.
    Hidden,
    /// It has NUL bytes at its start.
    Binary,
    /// A symbolic link to a directory, which could be a loop.
    LinkedDirectory,
    /// A socket, pipe or device.
    NotRegular,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Hidden => "hidden",
            Self::Binary => "not text",
            Self::LinkedDirectory => "link to a directory",
            Self::NotRegular => "not a regular file",
        })
    }
}

/// Files to read, in the order of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputList {
    /// The files, sorted by path, each once.
    pub files: Vec<InputFile>,
    /// What was passed over in directories: how often for each reason.
    pub skipped: BTreeMap<Skipped, u64>,
}

impl InputList {
    /// Length of all files as stored, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// The files that `inputs` (files and directories, which are searched through) stand for.
///
/// # Errors
/// An input does not exist or a directory cannot be read.
pub fn list_inputs(inputs: &[PathBuf]) -> Result<InputList, ShardsError> {
    let mut skipped = BTreeMap::new();
    let mut found: BTreeMap<PathBuf, u64> = BTreeMap::new();
    let mut directories = Vec::new();
    for input in inputs {
        let metadata = std::fs::metadata(input).map_err(ShardsError::io("open", input))?;
        if metadata.is_dir() {
            directories.push(input.clone());
        } else {
            found.insert(input.clone(), metadata.len());
        }
    }
    while let Some(directory) = directories.pop() {
        let read = |error| ShardsError::io("read the directory", &directory)(error);
        for entry in std::fs::read_dir(&directory).map_err(read)? {
            let entry = entry.map_err(read)?;
            let path = entry.path();
            let kind = entry.file_type().map_err(ShardsError::io("look at", &path))?;
            let mut skip = |reason| *skipped.entry(reason).or_default() += 1;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                skip(Skipped::Hidden);
            } else if kind.is_dir() {
                directories.push(path);
            } else {
                // Follows links.
                match std::fs::metadata(&path) {
                    Ok(target) if target.is_dir() => skip(Skipped::LinkedDirectory),
                    Ok(target) if target.is_file() => {
                        found.insert(path, target.len());
                    }
                    _ => skip(Skipped::NotRegular),
                }
            }
        }
    }
    let files = found.into_iter().map(|(path, bytes)| InputFile::new(path, bytes)).collect();
    Ok(InputList { files, skipped })
}

/// Kinds of text in the sources of crates, each with its share of the bytes that are taken.
const KINDS: [(&[&str], f64); 5] = [
    (&["rs"], 0.40),
    (&["c", "h", "cc", "cpp"], 0.25),
    (&["md"], 0.20),
    (&["toml"], 0.075),
    (&[], 0.075), // licences
];

/// Largest file that is taken: generated tables would crowd out what people wrote.
const LARGEST_SOURCE_BYTES: u64 = 256 * 1024;

/// Text files of the crates (`name-version`) that are unpacked under `registries` (the folders in
/// `$CARGO_HOME/registry/src`): Rust, C, Markdown, TOML and licences, together about `max_bytes`.
///
/// The choice is a function of the crates' names and contents' sizes, so that all machines with the same lock file take
/// the same files: in each kind, files come in the order of a hash of `crate/path` until the kind's share is full. A
/// kind that has less leaves the rest to the others.
///
/// # Errors
/// A directory cannot be read.
pub fn crate_sources(
    registries: &[PathBuf],
    crates: &BTreeSet<String>,
    max_bytes: u64,
) -> Result<Vec<PathBuf>, ShardsError> {
    let mut roots = BTreeMap::new();
    for registry in registries {
        for name in crates {
            let root = registry.join(name);
            if root.is_dir() {
                roots.entry(name.clone()).or_insert(root);
            }
        }
    }
    let mut kinds: [BTreeMap<[u8; 32], (PathBuf, u64)>; KINDS.len()] = Default::default();
    for (name, root) in &roots {
        for file in list_inputs(std::slice::from_ref(root))?.files {
            let inside = file.path.strip_prefix(root).unwrap_or(&file.path);
            // Cargo writes this one when it unpacks, and its content depends on the version of cargo.
            let kind = if inside == Path::new("Cargo.toml.orig") { None } else { kind_of(inside) };
            if let Some(kind) = kind
                && (1..=LARGEST_SOURCE_BYTES).contains(&file.bytes)
            {
                let key = blake3::hash(format!("{name}/{}", inside.display()).as_bytes());
                kinds[kind].insert(*key.as_bytes(), (file.path, file.bytes));
            }
        }
    }
    let totals = kinds.each_ref().map(|files| files.values().map(|file| file.1).sum::<u64>());
    let budgets = budgets(&totals, max_bytes);
    let mut chosen = Vec::new();
    for (files, budget) in kinds.into_iter().zip(budgets) {
        let mut taken = 0;
        for (path, bytes) in files.into_values() {
            if taken + bytes <= budget {
                taken += bytes;
                chosen.push(path);
            }
        }
    }
    chosen.sort();
    Ok(chosen)
}

/// Bytes to take of each kind: its share, and of what other kinds leave over in proportion to the shares.
fn budgets(totals: &[u64; KINDS.len()], max_bytes: u64) -> [u64; KINDS.len()] {
    let mut budgets = [0; KINDS.len()];
    let (mut left, mut open): (f64, BTreeSet<usize>) = (max_bytes as f64, (0..KINDS.len()).collect());
    loop {
        let shares: f64 = open.iter().map(|&kind| KINDS[kind].1).sum();
        let short = open.iter().copied().find(|&kind| (totals[kind] as f64) < left * KINDS[kind].1 / shares);
        let Some(kind) = short else {
            open.iter().for_each(|&kind| budgets[kind] = (left * KINDS[kind].1 / shares) as u64);
            return budgets;
        };
        budgets[kind] = totals[kind];
        left -= totals[kind] as f64;
        open.remove(&kind);
    }
}

fn kind_of(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_str()?;
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if ["LICENSE", "LICENCE", "COPYING", "NOTICE"].iter().any(|start| name.to_uppercase().starts_with(start))
    {
        return Some(KINDS.len() - 1);
    }
    KINDS.iter().position(|(extensions, _)| extensions.contains(&extension))
}
