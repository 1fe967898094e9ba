//! Errors of extending a run.

use std::path::PathBuf;

use thiserror::Error;

/// Why a run can't extend another one.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// A run can't extend itself.
    #[error(
        "{} is the run to extend, or has its store: name another directory with --run, and another run.store",
        folder.display()
    )]
    Itself {
        /// The directory.
        folder: PathBuf,
    },
    /// The text of an extension was prepared with another tokenizer.
    #[error(
        "{} is not the tokenizer of the run to extend, {}: prepare the text with `dipaco prepare` after `dipaco extend`",
        file.display(),
        expected.display()
    )]
    Tokenizer {
        /// The tokenizer's file.
        file: PathBuf,
        /// The tokenizer of the run to extend.
        expected: PathBuf,
    },
    /// A setting differs from that of the run to extend, whose weights depend on it.
    #[error("{key} differs from the run to extend, whose weights depend on it: leave it as it is")]
    Setting {
        /// The key or section.
        key: &'static str,
    },
}
