//! Errors of labels.

use std::path::PathBuf;

use thiserror::Error;

/// Why documents can't be labelled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabelError {
    /// A label file has a line of another form.
    #[error(
        "{}, line {line}: this is no label: each line must be a JSON object with the texts `url` and `domain`",
        file.display()
    )]
    Line {
        /// The label file.
        file: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
    /// The router was fitted with another label file.
    #[error(
        "{} has hash {found}, but the router was fitted with a label file of hash {expected}: put that file back, or run \
         `dipaco route fit` again",
        file.display()
    )]
    OtherFile {
        /// The label file.
        file: PathBuf,
        /// Its hash.
        found: String,
        /// Hash of the label file of the fit.
        expected: String,
    },
    /// Text that was prepared into the run is gone, and the router needs its labels.
    #[error(
        "{} was prepared into this run and is not there: put it back, or choose another routing.kind",
        file.display()
    )]
    TextGone {
        /// The missing file.
        file: PathBuf,
    },
    /// The validation text that labels refer to is gone.
    #[error(
        "{} was prepared into this run's validation text and no longer exists: give the text with --labelled-text",
        file.display()
    )]
    ValidationTextGone {
        /// The missing file.
        file: PathBuf,
    },
    /// The text has no addresses.
    #[error(
        "{} has labels for addresses, and no document of the text has one ({files} files, the first is {}): labels need JSON \
         lines or Parquet files, with the address of a document in the field or column `url`",
        labels.display(),
        first.display()
    )]
    NoAddress {
        /// The label file.
        labels: PathBuf,
        /// Number of files of the text.
        files: usize,
        /// The first of them.
        first: PathBuf,
    },
    /// The label file is of another text.
    #[error(
        "{} has labels for {labelled} of the {documents} documents of {}: it is of another text. It has {known} addresses \
         such as {label}, the text has addresses such as {url}",
        labels.display(),
        tokens.display()
    )]
    OtherText {
        /// The label file.
        labels: PathBuf,
        /// Number of addresses in the label file.
        known: usize,
        /// One of them.
        label: String,
        /// An address of the text.
        url: String,
        /// Number of validation documents.
        documents: usize,
        /// Number of validation documents with a label.
        labelled: usize,
        /// The validation token file.
        tokens: PathBuf,
    },
}
