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
    /// The text of an extension was prepared with another tokenizer or another end-of-text token.
    #[error(
        "{} is not the tokenizer of the run to extend, {}, or has another end-of-text token: prepare the text with \
         `dipaco prepare` after `dipaco extend`",
        file.display(),
        expected.display()
    )]
    Tokenizer {
        /// The tokenizer's file.
        file: PathBuf,
        /// The tokenizer of the run to extend.
        expected: PathBuf,
    },
    /// Other text would replace that of a finished run.
    #[error(
        "{} holds the prepared text of a finished run, and other text would replace it: name a folder without prepared text \
         with --set run.data=DIR; no path of {} trains, so its text is for `dipaco evaluate` only",
        folder.display(),
        run.display()
    )]
    LentText {
        /// The run, whose paths are all kept.
        run: PathBuf,
        /// The folder of prepared text.
        folder: PathBuf,
    },
    /// A setting differs from that of the run to extend, whose weights depend on it.
    #[error("{key} differs from the run to extend, whose weights depend on it: leave it as it is")]
    Setting {
        /// The key or section.
        key: &'static str,
    },
    /// The extension was made before with another value of a setting.
    #[error(
        "{} was made before with {key} = {made}, and `dipaco extend` changes no run that is there: give --set \
         {key}={given} to the command that uses the setting, such as `dipaco train`, or name another directory with --run",
        folder.display()
    )]
    Kept {
        /// The directory of the new run.
        folder: PathBuf,
        /// The key.
        key: &'static str,
        /// Its value when the run was made.
        made: String,
        /// The value that the user gives.
        given: String,
    },
}
