//! The manifest of a preparation, and the check that its outputs are up to date.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use super::{MANIFEST, PrepareConfig, PrepareReport, REPORT, TOKENIZER, TRAIN, VALIDATION, is_whole};
use crate::progress::Watch;
use crate::{InputFile, ShardsError, Tokenizer};

/// The inputs and the configuration that the outputs were made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    version: u64,
    config: PrepareConfig,
    inputs: Vec<Input>,
    tokenizer_hash: String,
    train_content_hash: String,
    /// Empty if there is no validation file.
    validation_content_hash: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Input {
    path: PathBuf,
    bytes: u64,
    blake3: String,
    validation: bool,
}

const VERSION: u64 = 2;

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

    /// True if the token sets are the ones of this manifest. Reads all of their files.
    ///
    /// # Errors
    /// `cancel` was set.
    fn outputs_are_whole(&self, out: &Path, watch: Watch<'_>) -> Result<bool, ShardsError> {
        let mut read = |bytes: u64| {
            watch.progress.advance(bytes, 0);
            watch.check_cancelled()
        };
        let validation = out.join(VALIDATION);
        watch.progress.begin("compare outputs", 0);
        let whole = is_whole(&out.join(TRAIN), &self.train_content_hash, &mut read)?
            && match self.validation_content_hash.as_str() {
                "" => !validation.exists(),
                hash => is_whole(&validation, hash, &mut read)?,
            };
        watch.progress.end();
        Ok(whole)
    }
}

/// The configuration without the values that cannot change the result.
pub(super) fn comparable(config: &PrepareConfig) -> PrepareConfig {
    PrepareConfig { threads: 0, ..config.clone() }
}

/// True if two configurations give the same result, but for the content of a given tokenizer. Its place does not count: a run
/// may have moved together with its tokenizer.
fn same_settings(one: &PrepareConfig, other: &PrepareConfig) -> bool {
    let rest = |config: &PrepareConfig| PrepareConfig { tokenizer: None, ..comparable(config) };
    one.tokenizer.is_some() == other.tokenizer.is_some() && rest(one) == rest(other)
}

/// The report of the run that made the outputs, if they are whole and this configuration would make the same from these
/// inputs. Anything unexpected counts as a difference. The content of an input is compared if `compare` is true for its
/// number.
pub(super) fn up_to_date(
    config: &PrepareConfig,
    inputs: &Inputs,
    compare: impl Fn(usize) -> bool,
    out: &Path,
    watch: Watch<'_>,
) -> Result<Option<PrepareReport>, ShardsError> {
    let (Some(manifest), Some(report)) =
        (read::<Manifest>(&out.join(MANIFEST)), read::<PrepareReport>(&out.join(REPORT)))
    else {
        return Ok(None);
    };
    let now: Vec<_> = inputs.files().collect();
    // Folders may have moved or be mounted elsewhere, so names of folders do not count; the content is compared below.
    let same_names = now.len() == manifest.inputs.len()
        && now.iter().zip(&manifest.inputs).all(|((file, validation), input)| {
            (file.path.file_name(), file.bytes, *validation)
                == (input.path.file_name(), input.bytes, input.validation)
        });
    if manifest.version != VERSION || !same_settings(&manifest.config, config) || !same_names {
        return Ok(None);
    }
    let given = config.tokenizer.as_ref().map(|path| hash_file(path));
    if given.is_some_and(|hash| hash.as_ref() != Some(&manifest.tokenizer_hash))
        || hash_file(&out.join(TOKENIZER)).as_ref() != Some(&manifest.tokenizer_hash)
        || !manifest.outputs_are_whole(out, watch)?
    {
        return Ok(None);
    }
    let compared: Vec<_> = now
        .iter()
        .zip(&manifest.inputs)
        .enumerate()
        .filter(|(number, _)| compare(*number))
        .map(|(_, ((file, _), input))| (*file, input.blake3.as_str()))
        .collect();
    watch.progress.begin("compare inputs", compared.iter().map(|(file, _)| file.bytes).sum());
    let same = same_content(&compared, watch)?;
    watch.progress.end();
    Ok(same.then_some(report))
}

/// True if all files have the content of their hashes.
///
/// # Errors
/// A file cannot be read, or `cancel` was set.
pub(super) fn same_content(files: &[(&InputFile, &str)], watch: Watch<'_>) -> Result<bool, ShardsError> {
    for (file, hash) in files {
        watch.check_cancelled()?;
        if dipaco_files::file_hash(&file.path)? != *hash {
            return Ok(false);
        }
        watch.progress.advance(file.bytes, 0);
    }
    Ok(true)
}

/// Opens the tokenizer in a folder of prepared text, with the end-of-text token that the text was prepared with.
///
/// # Errors
/// The tokenizer cannot be read, or has no such token.
pub fn prepared_tokenizer(folder: &Path) -> Result<Tokenizer, ShardsError> {
    let file = folder.join(TOKENIZER);
    // The report stays while a preparation is repeated, and the manifest goes.
    let report = read::<PrepareReport>(&folder.join(REPORT)).map(|report| report.tokenizer);
    let reported = report.filter(|report| hash_file(&file).as_ref() == Some(&report.hash));
    let end_of_text = reported.and_then(|report| report.end_of_text).or_else(|| configured_end(folder));
    Tokenizer::from_file(&file, end_of_text.as_deref())
}

/// The end-of-text token that the configuration of a preparation names.
fn configured_end(folder: &Path) -> Option<String> {
    let config = read::<Manifest>(&folder.join(MANIFEST))?.config;
    // The key counts only for a given tokenizer. One that this program trained has the usual name.
    config.tokenizer.is_some().then_some(config.end_of_text).flatten()
}

pub(super) fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn hash_file(path: &Path) -> Option<String> {
    dipaco_files::file_hash(path).ok()
}
