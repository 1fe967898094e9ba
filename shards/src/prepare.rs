//! Text to a tokenizer and token files.

mod config;
mod manifest;
mod merge;
mod pieces;
mod pipeline;
mod report;
mod sample;
mod shared_tokenizer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::readers::InputList;
use crate::{Part, Progress, ShardsError, TokenFile, list_inputs};
use manifest::Manifest;
use pieces::{Inputs, Piece};
use pipeline::Split;

pub use config::PrepareConfig;
pub use report::{FileReport, PrepareReport, SplitReport, TokenizerReport};

/// Names in the output folder.
const TOKENIZER: &str = "tokenizer.json";
const TRAIN: &str = "train.h5";
const VALIDATION: &str = "validation.h5";
const REPORT: &str = "report.json";
const MANIFEST: &str = "manifest.json";

/// How much of a preparation a call does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrepareWork {
    /// Everything that has not been done, and the outputs. When parts have begun, it waits for nobody and does none of
    /// their work: it says which are missing.
    #[default]
    All,
    /// The tokenizer, which all parts share.
    Tokenizer,
    /// A part of the input files.
    Part(Part),
}

/// Turns text into `tokenizer.json`, `train.h5`, `validation.h5` (when there is a validation split or input),
/// `report.json` and `manifest.json` in the folder `out`.
///
/// `validation_inputs`, when not empty, is the validation set, and nothing is split off the inputs. Otherwise
/// [`PrepareConfig::validation_fraction`] of the documents is, by a hash of their text: the same text is always on the
/// same side. Documents that occur several times are kept.
///
/// The text is tokenised in pieces, one input file or several small ones each, which stay in the folder `pieces` until
/// all are there. A call that was stopped is continued by another, and several machines can each do a part of the pieces
/// ([`PrepareWork::Part`]) and have one of them merge. All machines must be given the same inputs; each reads its own.
///
/// Memory is bounded: one reader, the tokenising threads and the writer share a limited number of batches. The files
/// are the same bytes whatever the number of threads, parts and interruptions. When the manifest says that the outputs
/// were made from these inputs (compared by content) with this configuration, and they are whole, nothing is done and
/// the report has `skipped` set.
///
/// # Errors
/// An input does not exist, nothing can be kept, the tokenizer does not work, a part is missing, the disk is full, or
/// `cancel` was set. Damaged lines and files are no errors; the report has them.
pub fn prepare(
    config: &PrepareConfig,
    inputs: &[PathBuf],
    validation_inputs: &[PathBuf],
    work: PrepareWork,
    out: &Path,
    progress: &dyn Progress,
    cancel: &AtomicBool,
) -> Result<PrepareReport, ShardsError> {
    let start = Instant::now();
    config.check()?;
    let list = Inputs::list(inputs, validation_inputs)?;
    let pieces = list.pieces(config);
    let folder = out.join(pieces::FOLDER);
    std::fs::create_dir_all(out).map_err(ShardsError::io("create the folder", out))?;
    let part = match work {
        PrepareWork::Part(part) => Some(part),
        _ => None,
    };
    let mine = |piece: &Piece| part.is_none_or(|part| part.deals(piece.number()));
    let compare = |input| {
        work != PrepareWork::Tokenizer && pieces.iter().any(|piece| mine(piece) && piece.holds(input))
    };
    if let Some(mut report) = manifest::up_to_date(config, &list, compare, out, progress, cancel)? {
        report.skipped = true;
        return Ok(report);
    }

    std::fs::create_dir_all(&folder).map_err(ShardsError::io("create the folder", &folder))?;
    let (tokenizer, used) = shared_tokenizer::tokenizer(config, &list, part, &folder, progress, cancel)?;
    let mut report = PrepareReport { tokenizer: used, ..PrepareReport::default() };
    if work == PrepareWork::Tokenizer {
        report.seconds = start.elapsed().as_secs_f64();
        return Ok(report);
    }

    let records: Vec<_> = pieces.iter().map(|piece| piece.record(config, &tokenizer, &folder)).collect();
    let parts = records.iter().flatten().map(|record| record.part().count()).max().unwrap_or(1);
    let merging = part.is_none() && parts > 1;
    if merging {
        let missing: Vec<usize> = (0..pieces.len()).filter(|&number| records[number].is_none()).collect();
        pieces::check_all_there(&pieces, &missing, parts, &folder)?;
    }
    let (mut missing, mut done) = (Vec::new(), Vec::new());
    let recorded = pieces.iter().zip(&records).filter(|(piece, record)| mine(piece) && record.is_some());
    let compared: u64 = recorded.map(|(piece, _)| piece.bytes()).sum();
    if compared > 0 && !merging {
        progress.begin("compare inputs", compared);
    }
    for (piece, record) in pieces.iter().zip(records).filter(|(piece, _)| mine(piece)) {
        match record {
            // The machine that merges need not hold what the others have read.
            Some(record) if merging || piece.is_done(&record, &folder, progress, cancel)? => {
                done.push((piece, record));
            }
            _ => missing.push(piece),
        }
    }
    if compared > 0 && !merging {
        progress.end();
    }
    if !missing.is_empty() {
        progress.begin("tokenise", missing.iter().map(|piece| piece.bytes()).sum());
        for piece in missing {
            let part = part.unwrap_or_default();
            done.push((piece, piece.make(config, &tokenizer, part, &folder, progress, cancel)?));
        }
        progress.end();
    }
    done.sort_by_key(|(piece, _)| piece.number());
    let mut own = PrepareReport::default();
    for (piece, record) in done {
        if piece.is_validation() { &mut own } else { &mut report }.merge(record.report);
    }
    if part.is_some() {
        report.merge(own);
        report.seconds = start.elapsed().as_secs_f64();
        return Ok(report);
    }
    report.skip(&list.train.skipped);
    own.skip(&list.validation.unwrap_or_default().skipped);
    check_documents(config, (&report, inputs), (&own, validation_inputs))?;
    report.merge(own);
    merge::merge(&pieces, &tokenizer, &folder, out, &mut report, progress, cancel)?;
    report.seconds = start.elapsed().as_secs_f64();
    write_json(&out.join(REPORT), &report)?;
    write_json(&out.join(MANIFEST), &Manifest::new(config, &report))?;
    std::fs::remove_dir_all(&folder).map_err(ShardsError::io("remove", &folder))?;
    Ok(report)
}

/// Checks that both splits have a document. `own` is of a validation set of its own.
fn check_documents(
    config: &PrepareConfig,
    (report, inputs): (&PrepareReport, &[PathBuf]),
    (own, own_inputs): (&PrepareReport, &[PathBuf]),
) -> Result<(), ShardsError> {
    let (train, validation) = (report.train.documents, report.validation.documents);
    let fraction = config.validation_fraction;
    if train + validation == 0 {
        return Err(report.no_documents(inputs));
    }
    if train == 0 {
        return Err(ShardsError::EmptyTrain { documents: validation, fraction });
    }
    if !own_inputs.is_empty() && own.validation.documents == 0 {
        return Err(own.no_documents(own_inputs));
    }
    if validation == 0 && Split::new(config, !own_inputs.is_empty()).validates() {
        return Err(ShardsError::EmptyValidation { documents: train, fraction });
    }
    Ok(())
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
