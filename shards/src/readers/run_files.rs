//! Directories with the files of a run, which are no text and may hold secrets.

use std::collections::BTreeSet;
use std::path::Path;

use crate::prepare::is_prepared;

/// Sections of a run's configuration. A run saves all of them before its first step. A configuration that a person writes
/// has only those with a value of its own.
const SECTIONS: [&str; 11] = [
    "[run]",
    "[model]",
    "[topology]",
    "[prepare]",
    "[seed_model]",
    "[routing]",
    "[train]",
    "[sync]",
    "[outer]",
    "[evaluation]",
    "[serve]",
];

/// Largest file that can be a run's configuration, in bytes.
const LARGEST_CONFIG: u64 = 1 << 20;

/// True for the directory of a run, and for a directory of text that a run has prepared, which may lie elsewhere.
pub(super) fn are_in(directory: &Path) -> bool {
    is_saved_config(&directory.join("config.toml")) || is_prepared(directory)
}

/// True for a configuration that a run has saved. A file that can't be read is none.
fn is_saved_config(file: &Path) -> bool {
    let Ok(Some(bytes)) = dipaco_files::read_regular(file, LARGEST_CONFIG) else { return false };
    let text = String::from_utf8_lossy(&bytes);
    let lines: BTreeSet<&str> = text.lines().map(str::trim).collect();
    SECTIONS.iter().all(|section| lines.contains(section))
}
