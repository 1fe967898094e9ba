//! Knowing that the outputs are up to date.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::pieces::Inputs;
use super::{
    MANIFEST, PrepareConfig, PrepareReport, REPORT, TOKENIZER, TRAIN, VALIDATION, check_cancelled,
    token_file_is_whole,
};
use crate::{InputFile, Progress, ShardsError};

/// From what, and with what configuration, the outputs were made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    version: u64,
    config: PrepareConfig,
    inputs: Vec<Input>,
    tokenizer_hash: String,
    train_content_hash: String,
    /// Empty when there is no validation file.
    validation_content_hash: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Input {
    path: PathBuf,
    bytes: u64,
    blake3: String,
    validation: bool,
}

const VERSION: u64 = 1;

impl Manifest {
    pub(super) fn new(config: &PrepareConfig, report: &PrepareReport) -> Self {
        let inputs = report.files.iter().map(|file| Input {
            path: file.path.clone(),
            bytes: file.bytes,
            blake3: file.hash.clone(),
            validation: file.validation,
        });
        Self {
            version: VERSION,
            config: comparable(config),
            inputs: inputs.collect(),
            tokenizer_hash: report.tokenizer.hash.clone(),
            train_content_hash: report.train.content_hash.clone(),
            validation_content_hash: report.validation.content_hash.clone(),
        }
    }
}

/// The configuration without what cannot change the result.
pub(super) fn comparable(config: &PrepareConfig) -> PrepareConfig {
    PrepareConfig { threads: 0, ..config.clone() }
}

/// The report of the run that made the outputs, if they are whole and still what this configuration makes of these
/// inputs. Anything unexpected means that they are not. The content of inputs is compared as far as `compare` says.
pub(super) fn up_to_date(
    config: &PrepareConfig,
    inputs: &Inputs,
    compare: impl Fn(usize) -> bool,
    out: &Path,
    progress: &dyn Progress,
    cancel: &AtomicBool,
) -> Result<Option<PrepareReport>, ShardsError> {
    let (Some(manifest), Some(report)) =
        (read::<Manifest>(&out.join(MANIFEST)), read::<PrepareReport>(&out.join(REPORT)))
    else {
        return Ok(None);
    };
    let now: Vec<_> = inputs.files().collect();
    // Folders may have moved, or be mounted elsewhere; the content tells.
    let same_names = now.len() == manifest.inputs.len()
        && now.iter().zip(&manifest.inputs).all(|((file, validation), input)| {
            (file.path.file_name(), file.bytes, *validation)
                == (input.path.file_name(), input.bytes, input.validation)
        });
    if manifest.version != VERSION || manifest.config != comparable(config) || !same_names {
        return Ok(None);
    }
    let given = config.tokenizer.as_ref().map(|path| hash_file(path));
    if given.is_some_and(|hash| hash.as_ref() != Some(&manifest.tokenizer_hash))
        || hash_file(&out.join(TOKENIZER)).as_ref() != Some(&manifest.tokenizer_hash)
        || !token_file_is_whole(&out.join(TRAIN), &manifest.train_content_hash)
    {
        return Ok(None);
    }
    let validation_path = out.join(VALIDATION);
    let validation_is_whole = match manifest.validation_content_hash.as_str() {
        "" => !validation_path.exists(),
        hash => token_file_is_whole(&validation_path, hash),
    };
    if !validation_is_whole {
        return Ok(None);
    }
    let compared: Vec<_> = now
        .iter()
        .zip(&manifest.inputs)
        .enumerate()
        .filter(|(number, _)| compare(*number))
        .map(|(_, ((file, _), input))| (*file, input.blake3.as_str()))
        .collect();
    progress.begin("compare inputs", compared.iter().map(|(file, _)| file.bytes).sum());
    let same = same_content(&compared, progress, cancel)?;
    progress.end();
    Ok(same.then_some(report))
}

/// Whether files still have the content that their hashes were taken of. One that could not be read to its end has no
/// hash, and never counts as the same.
pub(super) fn same_content(
    files: &[(&InputFile, &str)],
    progress: &dyn Progress,
    cancel: &AtomicBool,
) -> Result<bool, ShardsError> {
    for (file, hash) in files {
        check_cancelled(cancel)?;
        if hash_file(&file.path).is_none_or(|found| found != *hash) {
            return Ok(false);
        }
        progress.advance(file.bytes, 0);
    }
    Ok(true)
}

pub(super) fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// The hash of a file that is read through once, in little memory.
fn hash_file(path: &Path) -> Option<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(std::fs::File::open(path).ok()?).ok()?;
    Some(hasher.finalize().to_hex().to_string())
}
