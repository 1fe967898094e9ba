//! What is finished of a cell, in `cell.json` of its run directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dipaco_eval::Evaluation;
use dipaco_experiment::Facts;
use serde::{Deserialize, Serialize};

use crate::error::CliError;
use crate::steps::error::StepError;
use crate::steps::files;

/// The record of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// What was trained; absent until training is complete.
    pub(crate) trained: Option<Facts>,
    /// Results by the key of the evaluation.
    pub(crate) evaluations: BTreeMap<String, Evaluation>,
}

impl Record {
    fn file(folder: &Path) -> PathBuf {
        folder.join("cell.json")
    }

    /// The record of a cell's folder; an empty one when there is none.
    pub(crate) fn load(folder: &Path) -> Result<Self, CliError> {
        let file = Self::file(folder);
        let failed = |source| CliError::Io { action: "read", path: file.clone(), source };
        match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(error.into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(failed(source)),
        }
    }

    pub(crate) fn save(&self, folder: &Path) -> Result<(), CliError> {
        Ok(write_json(&Self::file(folder), self)?)
    }
}

/// Writes a value as indented JSON, whole or not at all.
pub(crate) fn write_json(file: &Path, value: &impl Serialize) -> Result<(), StepError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| StepError::Io {
        action: "write",
        path: file.to_owned(),
        source: error.into(),
    })?;
    bytes.push(b'\n');
    files::write(file, &bytes)
}
