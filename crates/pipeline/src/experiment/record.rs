//! The finished parts of a cell, in `cell.json` of its run directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dipaco_eval::Evaluation;
use dipaco_experiment::Facts;
use serde::{Deserialize, Serialize};

use crate::error::PipelineError;
use crate::files;

/// The record of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Facts about the training; absent until it is complete.
    pub(super) trained: Option<Facts>,
    /// Results by the key of the evaluation.
    pub(super) evaluations: BTreeMap<String, Evaluation>,
}

impl Record {
    fn file(folder: &Path) -> PathBuf {
        folder.join("cell.json")
    }

    /// Reads the record of a cell's folder. A folder without one has an empty record.
    pub(super) fn load(folder: &Path) -> Result<Self, PipelineError> {
        let file = Self::file(folder);
        let failed = |source| PipelineError::Io { action: "read", path: file.clone(), source };
        match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(error.into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(failed(source)),
        }
    }

    pub(super) fn save(&self, folder: &Path) -> Result<(), PipelineError> {
        write_json(&Self::file(folder), self)
    }
}

/// Writes a value as indented JSON, whole or not at all.
pub(super) fn write_json(file: &Path, value: &impl Serialize) -> Result<(), PipelineError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| PipelineError::Io {
        action: "write",
        path: file.to_owned(),
        source: error.into(),
    })?;
    bytes.push(b'\n');
    files::write(file, &bytes)
}
