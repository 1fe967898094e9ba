//! Preparation: from text to a tokenizer and token files.

mod config;
mod folder;
mod inputs;
mod manifest;
mod outputs;
mod pieces;
mod pipeline;
mod report;
mod sample;
mod shared_tokenizer;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::progress::Watch;
use crate::{PrepareProgress, ShardsError, TokenSet, Tokenizer, WorkPart};
use inputs::Inputs;
use manifest::Manifest;
use pieces::{FinishedPiece, Piece};
use pipeline::Split;

pub use config::PrepareConfig;
pub use folder::PrepareFolder;
pub use manifest::prepared_tokenizer;
pub(crate) use outputs::is_prepared;
pub use report::{FileReport, PrepareReport, SplitReport, TokenizerReport};

/// Names in the output folder.
const TOKENIZER: &str = "tokenizer.json";
const TRAIN: &str = "train.json";
const VALIDATION: &str = "validation.json";
const REPORT: &str = "report.json";
const MANIFEST: &str = "manifest.json";

/// The share of a preparation that a call does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrepareWork {
    /// All missing work, and the outputs. If parts have begun, the call does none of their work and does not wait for
    /// them: it reports the missing parts.
    #[default]
    All,
    /// The tokenizer that all parts share.
    Tokenizer,
    /// A part of the input files.
    Part(WorkPart),
}

/// Looks whether the inputs exist and leave files to train on, and reads none of them. The folders `outputs` will hold the files
/// of a run, so the files that lie in them now do not count. A folder among them need not exist.
///
/// # Errors
/// An input does not exist or can't be listed, a name is not UTF-8, or no file is left for training.
pub fn check_inputs(
    inputs: &[PathBuf],
    validation_inputs: &[PathBuf],
    outputs: &[PathBuf],
) -> Result<(), ShardsError> {
    Inputs::list(inputs, validation_inputs, &real_folders(outputs)).map(drop)
}

/// The real paths of those folders that exist.
fn real_folders(folders: &[PathBuf]) -> Vec<PathBuf> {
    folders.iter().filter_map(|folder| std::fs::canonicalize(folder).ok()).collect()
}

/// Turns text into `tokenizer.json`, the token sets `train.json` and `validation.json` (with a validation split or
/// validation inputs), `report.json` and `manifest.json` in the folder `into`.
///
/// Non-empty `validation_inputs` are the validation set, and no document of `inputs` is split off. Otherwise the
/// validation set is [`PrepareConfig::validation_fraction`] of the documents, chosen by a hash of their text, so the same
/// text is always on the same side. Repeated documents are kept.
///
/// A file with several names is read once, and a validation input is no training text. A directory with the files of a run
/// is left out.
///
/// The text is tokenised in pieces: one input file, or several small files. Their token files in the folder `pieces` are
/// the text; the token sets only list them. A call continues the work of a stopped call. Several machines can each do a
/// part of the pieces ([`PrepareWork::Part`]), and one of them lists all pieces. All machines must get the same inputs;
/// each reads only its own.
///
/// Memory is bounded: one reader, the tokenising threads and the writer share a limited amount of text. The outputs
/// have the same bytes whatever the number of threads, parts and interruptions. If the manifest matches the inputs
/// (compared by content) and the configuration, and the outputs are whole, the call does nothing and returns the earlier
/// report with `skipped` set.
///
/// # Errors
/// An input does not exist, is a pipe or cannot be read, no document can be kept, the tokenizer does not work, cannot encode
/// a text, or it or its end-of-text token is not the one to keep ([`PrepareFolder::keep`]), a part is missing, the disk is
/// full, or `cancel` was set.
/// Damaged lines and files are no errors; the report lists them.
pub fn prepare(
    config: &PrepareConfig,
    inputs: &[PathBuf],
    validation_inputs: &[PathBuf],
    work: PrepareWork,
    into: PrepareFolder<'_>,
    progress: &dyn PrepareProgress,
    cancel: &AtomicBool,
) -> Result<PrepareReport, ShardsError> {
    let start = Instant::now();
    config.check()?;
    let out = into.path;
    // A folder that does not exist yet holds no outputs.
    let list = Inputs::list(inputs, validation_inputs, &real_folders(&[out.to_owned()]))?;
    list.log_left_out();
    let pieces = list.pieces(config);
    let (folder, watch) = (out.join(pieces::FOLDER), Watch { progress, cancel });
    std::fs::create_dir_all(out).map_err(ShardsError::io("create the folder", out))?;
    let preparation =
        Preparation { config, work, inputs: &list, pieces: &pieces, folder: &folder, out, watch };
    if let Some(report) = preparation.up_to_date()? {
        return Ok(PrepareReport { skipped: true, ..report });
    }

    std::fs::create_dir_all(&folder).map_err(ShardsError::io("create the folder", &folder))?;
    let (tokenizer, used) =
        shared_tokenizer::tokenizer(config, &list, inputs, preparation.part(), &folder, watch)?;
    // No output has changed yet.
    into.check(&tokenizer)?;
    let mut report = PrepareReport { tokenizer: used, ..PrepareReport::default() };
    // Reported apart from the rest until both sets are known to have documents.
    let mut own_validation = PrepareReport::default();
    let finished =
        if work == PrepareWork::Tokenizer { Vec::new() } else { preparation.tokenise(&tokenizer)? };
    for FinishedPiece { piece, record } in &finished {
        let into = if piece.is_validation() { &mut own_validation } else { &mut report };
        into.merge(&record.report);
    }
    if work != PrepareWork::All {
        report.merge(&own_validation);
        report.seconds = start.elapsed().as_secs_f64();
        return Ok(report);
    }
    report.skip(&list.train.skipped);
    if let Some(validation) = &list.validation {
        own_validation.skip(&validation.skipped);
    }
    check_documents(
        config,
        &ReportedInputs { report: &report, inputs },
        &ReportedInputs { report: &own_validation, inputs: validation_inputs },
    )?;
    report.merge(&own_validation);
    let listed = outputs::list(&finished, &tokenizer, out, &mut report)?;
    report.seconds = start.elapsed().as_secs_f64();
    write_json(&out.join(REPORT), &report)?;
    // The manifest vouches for the outputs, so it comes last; records of pieces go only when nothing needs them any more.
    write_json(&out.join(MANIFEST), &Manifest::new(config, &report))?;
    outputs::remove_others(&folder, &listed)?;
    Ok(report)
}

/// One call of [`prepare()`].
struct Preparation<'a> {
    config: &'a PrepareConfig,
    work: PrepareWork,
    inputs: &'a Inputs,
    pieces: &'a [Piece],
    /// Folder of the pieces.
    folder: &'a Path,
    /// Folder of the outputs.
    out: &'a Path,
    watch: Watch<'a>,
}

impl<'a> Preparation<'a> {
    /// The part that this call does; none for all of the work.
    fn part(&self) -> Option<WorkPart> {
        match self.work {
            PrepareWork::Part(part) => Some(part),
            PrepareWork::All | PrepareWork::Tokenizer => None,
        }
    }

    /// True if this call has to do the piece.
    fn is_mine(&self, piece: &Piece) -> bool {
        self.part().is_none_or(|part| part.deals(piece.number()))
    }

    /// The report of the earlier run if its outputs are still valid.
    fn up_to_date(&self) -> Result<Option<PrepareReport>, ShardsError> {
        let alone = self.work == PrepareWork::Tokenizer;
        // The parts need the tokenizer in the folder of the pieces, which a finished preparation removes.
        let removed = alone && !shared_tokenizer::is_there(self.config, self.inputs, self.folder);
        // A machine that does a part need not hold the inputs of the others, and a tokenizer that is there needs no comparison.
        let compare = |input| {
            (removed || !alone) && self.pieces.iter().any(|piece| self.is_mine(piece) && piece.holds(input))
        };
        let report = manifest::up_to_date(self.config, self.inputs, compare, self.out, self.watch)?;
        if let Some(report) = report.as_ref().filter(|_| removed) {
            shared_tokenizer::share(self.config, self.inputs, &report.tokenizer, self.out, self.folder)?;
        }
        Ok(report)
    }

    /// Tokenises this call's missing pieces; returns all of this call's pieces, in their order.
    fn tokenise(&self, tokenizer: &Tokenizer) -> Result<Vec<FinishedPiece<'a>>, ShardsError> {
        let records: Vec<_> =
            self.pieces.iter().map(|piece| piece.record(self.config, tokenizer, self.folder)).collect();
        let parts = records.iter().flatten().map(|record| record.part().count()).max().unwrap_or(1);
        let listing = self.part().is_none() && parts > 1;
        if listing {
            let missing: Vec<usize> =
                (0..self.pieces.len()).filter(|&number| records[number].is_none()).collect();
            pieces::check_all_there(self.pieces, &missing, parts, self.folder)?;
        }
        let mut recorded: Vec<FinishedPiece<'a>> = Vec::new();
        let mut missing = Vec::new();
        for (piece, record) in self.pieces.iter().zip(records).filter(|(piece, _)| self.is_mine(piece)) {
            match record {
                Some(record) => recorded.push(FinishedPiece { piece, record }),
                None => missing.push(piece),
            }
        }
        // The machine that lists all pieces need not hold the inputs of the other parts, so it cannot compare them.
        let mut done = if listing { recorded } else { self.compare(recorded, &mut missing)? };
        missing.sort_by_key(|piece| piece.number());
        if !missing.is_empty() {
            outputs::retract(self.out)?;
            self.watch.progress.begin("tokenize", missing.iter().map(|piece| piece.bytes()).sum());
            for piece in missing {
                let part = self.part().unwrap_or_default();
                let record = piece.make(self.config, tokenizer, part, self.folder, self.watch)?;
                done.push(FinishedPiece { piece, record });
            }
            self.watch.progress.end();
        }
        done.sort_by_key(|finished| finished.piece.number());
        Ok(done)
    }

    /// The pieces whose files are whole and whose inputs have not changed; the others are added to `missing`.
    fn compare(
        &self,
        recorded: Vec<FinishedPiece<'a>>,
        missing: &mut Vec<&'a Piece>,
    ) -> Result<Vec<FinishedPiece<'a>>, ShardsError> {
        if recorded.is_empty() {
            return Ok(recorded);
        }
        let bytes = recorded.iter().map(|finished| finished.piece.bytes()).sum();
        self.watch.progress.begin("compare inputs", bytes);
        let mut done = Vec::with_capacity(recorded.len());
        for finished in recorded {
            if finished.piece.is_done(&finished.record, self.folder, self.watch)? {
                done.push(finished);
            } else {
                missing.push(finished.piece);
            }
        }
        self.watch.progress.end();
        Ok(done)
    }
}

/// Inputs of one kind and the report of their pieces.
struct ReportedInputs<'a> {
    report: &'a PrepareReport,
    inputs: &'a [PathBuf],
}

/// Checks that the training set has a document.
fn check_train(config: &PrepareConfig, main: &ReportedInputs<'_>) -> Result<(), ShardsError> {
    let (train_documents, split_off) = (main.report.train.documents, main.report.validation.documents);
    if train_documents + split_off == 0 {
        return Err(main.report.no_documents(main.inputs));
    }
    if train_documents == 0 {
        let fraction = config.validation_fraction;
        let left_out = main.report.left_out();
        return Err(ShardsError::EmptyTrain { documents: split_off, fraction, left_out });
    }
    Ok(())
}

/// Checks that both splits have a document. `validation` has the separate validation inputs, if there are any.
fn check_documents(
    config: &PrepareConfig,
    main: &ReportedInputs<'_>,
    validation: &ReportedInputs<'_>,
) -> Result<(), ShardsError> {
    check_train(config, main)?;
    let (train_documents, split_off) = (main.report.train.documents, main.report.validation.documents);
    let fraction = config.validation_fraction;
    if !validation.inputs.is_empty() && validation.report.validation.documents == 0 {
        return Err(validation.report.no_documents(validation.inputs));
    }
    if split_off == 0 && Split::new(config, !validation.inputs.is_empty()).validates() {
        let left_out = main.report.left_out();
        return Err(ShardsError::EmptyValidation { documents: train_documents, fraction, left_out });
    }
    Ok(())
}

fn names(inputs: &[PathBuf]) -> String {
    inputs.iter().map(|input| input.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn write_json<T: serde::Serialize>(path: &Path, value: &T) -> Result<(), ShardsError> {
    let json = |source| ShardsError::Json { path: path.to_owned(), source };
    let mut bytes = serde_json::to_vec_pretty(value).map_err(json)?;
    bytes.push(b'\n');
    Ok(dipaco_files::publish(path, &bytes)?)
}

/// Removes an output of an earlier configuration, so that no reader takes it for an output of this configuration.
fn remove_stale(path: &Path) -> Result<(), ShardsError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ShardsError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// True if a token set has this content. `read` gets the bytes of each block that has been read, and its error ends the
/// reading.
///
/// # Errors
/// `read` says that the step was cancelled.
fn is_whole(
    path: &Path,
    content_hash: &str,
    read: &mut dyn FnMut(u64) -> Result<(), ShardsError>,
) -> Result<bool, ShardsError> {
    let Ok(set) = TokenSet::open(path) else { return Ok(false) };
    if set.content_hash() != content_hash {
        return Ok(false);
    }
    match set.verify_watched(read) {
        Err(ShardsError::Cancelled) => Err(ShardsError::Cancelled),
        verified => Ok(verified.is_ok()),
    }
}

#[cfg(test)]
mod tests;
