//! Frozen inputs of the tests: a configuration and text. `tests/fixtures/README.md` says where they come from.

use std::path::{Path, PathBuf};

/// Two levels of two modules, D = 32, T = 64: every mechanism, in a few seconds.
pub const TINY: &str = include_str!("../fixtures/tiny.toml");

/// The repository's root.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).canonicalize().unwrap()
}

/// A file or a folder of `tests/fixtures`.
#[must_use]
pub fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
}

/// Text of several domains (sources, documentation, a lock file, a licence): in one folder.
#[must_use]
pub fn corpus() -> Vec<PathBuf> {
    vec![fixture("corpus")]
}

/// Pages of documentation: enough text for a run, and other text than [`corpus`].
#[must_use]
pub fn pages() -> PathBuf {
    fixture("corpus/pages.txt.gz")
}

/// Text that is not part of [`corpus`].
#[must_use]
pub fn validation() -> PathBuf {
    fixture("validation.txt.gz")
}
