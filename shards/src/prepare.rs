//! Text to a tokenizer and token files.

mod config;
mod manifest;
mod pipeline;
mod report;
mod sample;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::readers::InputList;
use crate::{Progress, ShardsError, TokenFile, TokenFileInfo, TokenFileWriter, Tokenizer, list_inputs};
use manifest::Manifest;
use pipeline::{Outputs, Split};

pub use config::PrepareConfig;
pub use report::{FileReport, PrepareReport, SplitReport, TokenizerReport};

/// Names in the output folder.
const TOKENIZER: &str = "tokenizer.json";
const TRAIN: &str = "train.h5";
const VALIDATION: &str = "validation.h5";
const REPORT: &str = "report.json";
const MANIFEST: &str = "manifest.json";

/// Turns text into `tokenizer.json`, `train.h5`, `validation.h5` (when there is a validation split or input),
/// `report.json` and `manifest.json` in the folder `out`.
///
/// `validation_inputs`, when not empty, is the validation set, and nothing is split off the inputs. Otherwise
/// [`PrepareConfig::validation_fraction`] of the documents is, by a hash of their text: the same text is always on the
/// same side. Documents that occur several times are kept.
///
/// Memory is bounded: one reader, the tokenising threads and the writer share a limited number of batches. The files
/// are the same bytes whatever the number of threads. When the manifest says that the outputs were made from these
/// inputs (compared by content) with this configuration, and they are whole, nothing is done and the report has
/// `skipped` set.
///
/// # Errors
/// An input does not exist, nothing can be kept, the tokenizer does not work, the disk is full, or `cancel` was set.
/// Damaged lines and files are no errors; the report has them.
pub fn prepare(
    config: &PrepareConfig,
    inputs: &[PathBuf],
    validation_inputs: &[PathBuf],
    out: &Path,
    progress: &dyn Progress,
    cancel: &AtomicBool,
) -> Result<PrepareReport, ShardsError> {
    let start = Instant::now();
    config.check()?;
    let list = list_some(inputs)?;
    let validation_list =
        if validation_inputs.is_empty() { None } else { Some(list_some(validation_inputs)?) };
    std::fs::create_dir_all(out).map_err(ShardsError::io("create the folder", out))?;
    if let Some(mut report) =
        manifest::up_to_date(config, &list, validation_list.as_ref(), out, progress, cancel)?
    {
        report.skipped = true;
        return Ok(report);
    }
    // From here on the outputs are in the making, and an old manifest must not vouch for them.
    remove_stale(&out.join(MANIFEST))?;

    let mut report = PrepareReport::default();
    let tokenizer = match &config.tokenizer {
        Some(path) => Tokenizer::from_file(path, config.end_of_text.as_deref())?,
        None => {
            let split = Split::new(config, validation_list.is_some());
            let trained = sample::train_tokenizer(config, &list, split, progress, cancel)?;
            report.tokenizer.trained_on_bytes = trained.1;
            trained.0
        }
    };
    report.tokenizer.hash = tokenizer.hash().to_owned();
    report.tokenizer.vocab_size = tokenizer.vocab_size();
    report.tokenizer.seconds = start.elapsed().as_secs_f64();

    let tokenising = Instant::now();
    let writer = |name: &str| {
        TokenFileWriter::create(
            out.join(name),
            TokenFileInfo {
                tokenizer_hash: tokenizer.hash().to_owned(),
                end_of_text: tokenizer.end_of_text(),
                vocab_size: tokenizer.vocab_size(),
                source: String::new(),
                origin: String::new(),
            },
        )
    };
    let split = Split::new(config, validation_list.is_some());
    let mut outputs = Outputs { train: Some(writer(TRAIN)?), validation: None };
    if validation_list.is_some() || split.validates() {
        outputs.validation = Some(writer(VALIDATION)?);
    }
    pipeline::run(config, &list, &tokenizer, split, &mut outputs, &mut report, progress, cancel)?;
    if report.train.documents + report.validation.documents == 0 {
        return Err(report.no_documents(inputs));
    }
    if report.train.documents == 0 {
        return Err(ShardsError::EmptyTrain {
            documents: report.validation.documents,
            fraction: config.validation_fraction,
        });
    }
    if let Some(list) = &validation_list {
        let mut own = PrepareReport::default();
        pipeline::run(
            config,
            list,
            &tokenizer,
            Split::AllValidation,
            &mut outputs,
            &mut own,
            progress,
            cancel,
        )?;
        if own.validation.documents == 0 {
            return Err(own.no_documents(validation_inputs));
        }
        report.merge(own);
    } else if split.validates() && report.validation.documents == 0 {
        return Err(ShardsError::EmptyValidation {
            documents: report.train.documents,
            fraction: config.validation_fraction,
        });
    }

    let source = report.source();
    write_atomically(&out.join(TOKENIZER), tokenizer.to_json())?;
    for (writer, split) in [(outputs.train, &mut report.train), (outputs.validation, &mut report.validation)]
    {
        let Some(mut writer) = writer else { continue };
        writer.set_source(source.clone());
        split.content_hash = writer.finish()?.content_hash;
    }
    if report.validation.content_hash.is_empty() {
        remove_stale(&out.join(VALIDATION))?;
    }
    report.tokenising_seconds = tokenising.elapsed().as_secs_f64();
    report.seconds = start.elapsed().as_secs_f64();
    write_json(&out.join(REPORT), &report)?;
    write_json(&out.join(MANIFEST), &Manifest::new(config, &report))?;
    Ok(report)
}

fn list_some(inputs: &[PathBuf]) -> Result<InputList, ShardsError> {
    let list = list_inputs(inputs)?;
    if list.files.is_empty() {
        return Err(ShardsError::NoInput { inputs: names(inputs), one: inputs.len() == 1 });
    }
    Ok(list)
}

fn names(inputs: &[PathBuf]) -> String {
    inputs.iter().map(|input| input.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn check_cancelled(cancel: &AtomicBool) -> Result<(), ShardsError> {
    if cancel.load(Ordering::Relaxed) { Err(ShardsError::Cancelled) } else { Ok(()) }
}

fn write_json<T: serde::Serialize>(path: &Path, value: &T) -> Result<(), ShardsError> {
    let json = |source| ShardsError::Json { path: path.to_owned(), source };
    let mut bytes = serde_json::to_vec_pretty(value).map_err(json)?;
    bytes.push(b'\n');
    write_atomically(path, &bytes)
}

/// Writes under a temporary name, syncs, renames.
fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), ShardsError> {
    use std::io::Write;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = crate::temporary::temporary(folder, path)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(ShardsError::io("write", path))?;
    file.persist(path).map_err(|error| ShardsError::io("rename", path)(error.error))?;
    Ok(())
}

/// Removes the output of an earlier configuration, which would be taken for one of this.
fn remove_stale(path: &Path) -> Result<(), ShardsError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ShardsError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn token_file_is_whole(path: &Path, content_hash: &str) -> bool {
    TokenFile::open(path).is_ok_and(|file| file.content_hash() == content_hash && file.verify().is_ok())
}

#[cfg(test)]
mod tests;
