//! Errors of exports.

use std::path::PathBuf;

use dipaco_model::ImportError;
use thiserror::Error;

use crate::logit_difference::LogitDifference;

/// A file that an export would write over.
#[derive(Debug, Error)]
#[error("{} is there already: give another name, or let the export write over it", file.display())]
pub struct ThereAlready {
    /// The file.
    pub file: PathBuf,
}

/// A place that an export can't write to, whatever it may write over.
#[derive(Debug, Error)]
pub enum WrongPlace {
    /// The folder of a checkpoint.
    #[error("{} is a file: give a folder for the checkpoint", file.display())]
    File {
        /// The file in its place.
        file: PathBuf,
    },
    /// The GGUF file.
    #[error("{} is a folder: give the name of a file for the GGUF file", folder.display())]
    Folder {
        /// The folder in its place.
        folder: PathBuf,
    },
}

/// Why a checkpoint can't be replaced, or exported files are not the model that was exported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The checkpoint in the folder has an index that does not say which files its weights are in.
    #[error(
        "the weights of the checkpoint to replace are not known from {}: remove that checkpoint, or give another folder",
        index.display()
    )]
    OldWeights {
        /// The index.
        index: PathBuf,
        /// The reason.
        #[source]
        source: ImportError,
    },
    /// The files are a model of another vocabulary.
    #[error(
        "{} is a model of {found} tokens instead of {expected}: this is a fault of dipaco, please report it",
        file.display()
    )]
    Vocabulary {
        /// The folder or file.
        file: PathBuf,
        /// Number of tokens of the files' model.
        found: usize,
        /// Number of tokens of the exported weights.
        expected: usize,
    },
    /// The files are not rounded, and give other logits.
    #[error(
        "{} does not give the logits of the weights: {difference}; do not use it, this is a fault of dipaco: please report it",
        file.display()
    )]
    Differs {
        /// The folder or file.
        file: PathBuf,
        /// The logits of both.
        difference: LogitDifference,
    },
}
