//! Finding the files of inputs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::list::{InputFile, InputList, Skipped};
use super::run_files;
use crate::ShardsError;

/// Lists the files of `inputs`: files, and directories with all their files. A directory with the files of a run is left
/// out. A file with several names is listed once.
///
/// # Errors
/// An input does not exist or is a pipe, a socket or a device, a directory cannot be read, or a name is not UTF-8.
pub fn list_inputs(inputs: &[PathBuf]) -> Result<InputList, ShardsError> {
    Ok(Listing::of(inputs, &[])?.into_list())
}

/// The files of inputs, each once.
#[derive(Default)]
pub(crate) struct Listing {
    /// The files, by their real paths.
    files: BTreeMap<PathBuf, Found>,
    skipped: BTreeMap<Skipped, u64>,
    runs: BTreeSet<PathBuf>,
}

/// A file by the name that it was found under. Of several names of a file, the least counts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    /// False if a link has given the file another name. The name decides the format, and in a cache of downloads only the
    /// links have a telling one.
    own_name: bool,
    path: PathBuf,
    bytes: u64,
}

impl Listing {
    /// Finds the files of `inputs`. A directory with one of the real paths `outputs` counts as one with the files of a run.
    ///
    /// # Errors
    /// As [`list_inputs`].
    pub(crate) fn of(inputs: &[PathBuf], outputs: &[PathBuf]) -> Result<Self, ShardsError> {
        let mut listing = Self::default();
        let mut directories = Vec::new();
        for input in inputs {
            let metadata = std::fs::metadata(input).map_err(ShardsError::io("open", input))?;
            if metadata.is_dir() {
                directories.push((input.clone(), real_path(input)));
            } else if !metadata.is_file() {
                // Files are read more than once: for the tokenizer, for the tokens, and to compare them later.
                return Err(ShardsError::NotRegular { path: input.clone() });
            } else {
                listing.add(input.clone(), real_path(input), metadata.len());
            }
        }
        listing.add_directories(directories, outputs)?;
        let names = listing.files.values().map(|found| &found.path);
        match names.filter(|path| path.to_str().is_none()).min() {
            Some(path) => Err(ShardsError::NameNotUtf8 { path: path.clone() }),
            None => Ok(listing),
        }
    }

    /// Adds the files of directories, each with its real path.
    fn add_directories(
        &mut self,
        mut directories: Vec<(PathBuf, PathBuf)>,
        outputs: &[PathBuf],
    ) -> Result<(), ShardsError> {
        // Of several names of a directory the first one counts, whatever the order of the inputs.
        directories.sort();
        directories.reverse();
        let mut seen = BTreeSet::new();
        while let Some((directory, real)) = directories.pop() {
            if !seen.insert(real.clone()) {
                continue;
            }
            if outputs.contains(&real) || run_files::are_in(&directory) {
                self.skip(Skipped::RunFiles);
                self.runs.insert(directory);
                continue;
            }
            let read = |error| ShardsError::io("read the directory", &directory)(error);
            for entry in std::fs::read_dir(&directory).map_err(read)? {
                let entry = entry.map_err(read)?;
                let (path, real) = (entry.path(), real.join(entry.file_name()));
                let kind = entry.file_type().map_err(ShardsError::io("look at", &path))?;
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    self.skip(Skipped::Hidden);
                } else if kind.is_dir() {
                    directories.push((path, real));
                } else {
                    // Unlike the entry's type, this follows links.
                    match std::fs::metadata(&path) {
                        Ok(target) if target.is_dir() => self.skip(Skipped::LinkedDirectory),
                        Ok(target) if target.is_file() => {
                            let real = if kind.is_symlink() { real_path(&path) } else { real };
                            self.add(path, real, target.len());
                        }
                        _ => self.skip(Skipped::NotRegular),
                    }
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf, real: PathBuf, bytes: u64) {
        let found = Found { own_name: path.file_name() == real.file_name(), path, bytes };
        let kept = self.files.entry(real).or_insert_with(|| found.clone());
        if found < *kept {
            *kept = found;
        }
    }

    fn skip(&mut self, reason: Skipped) {
        *self.skipped.entry(reason).or_default() += 1;
    }

    /// True if there is no file.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The first of the directories that were left out because they hold the files of a run.
    pub(crate) fn first_run(&self) -> Option<&PathBuf> {
        self.runs.first()
    }

    /// Takes out the files of another listing, whatever their names. Returns their number.
    pub(crate) fn take_out(&mut self, other: &Self) -> usize {
        let before = self.files.len();
        self.files.retain(|real, _| !other.files.contains_key(real));
        before - self.files.len()
    }

    /// The files in the order of reading.
    pub(crate) fn into_list(self) -> InputList {
        let sorted: BTreeMap<PathBuf, u64> =
            self.files.into_values().map(|found| (found.path, found.bytes)).collect();
        InputList {
            files: sorted.into_iter().map(|(path, bytes)| InputFile::new(path, bytes)).collect(),
            skipped: self.skipped,
            runs: self.runs.into_iter().collect(),
        }
    }
}

/// The path without links, by which a file is known whatever its names. A file whose path has no such form keeps its name.
fn real_path(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests;
