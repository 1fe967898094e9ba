//! The pieces in which text is tokenised: what a killed run need not do again, and what machines divide among them.
//!
//! A piece is one input file, or several small ones that follow each other. Its documents go to token files of its own
//! in the folder `pieces`, and a record, written last, says what they were made of. Pieces depend on the list of inputs
//! only, so that the merged files are the same bytes whatever the number of machines and interruptions.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::manifest::{comparable, read, same_content};
use super::pipeline::{self, Outputs, Split};
use super::{PrepareConfig, PrepareReport, list_some, remove_stale, token_file_is_whole, write_json};
use crate::readers::InputList;
use crate::{InputFile, Part, Progress, ShardsError, TokenFileInfo, TokenFileWriter, Tokenizer};

/// Name of the folder in the output folder.
pub(super) const FOLDER: &str = "pieces";

/// A file of so many bytes as stored is a piece of its own, and smaller ones are put together until they have as many:
/// each piece costs two files and a few syncs.
const PIECE_BYTES: u64 = 2 << 20;

/// Version of the records.
const VERSION: u32 = 1;

/// The files to read.
pub(super) struct Inputs {
    pub(super) train: InputList,
    /// Files of a validation set of its own.
    pub(super) validation: Option<InputList>,
}

impl Inputs {
    pub(super) fn list(train: &[PathBuf], validation: &[PathBuf]) -> Result<Self, ShardsError> {
        let own = if validation.is_empty() { None } else { Some(list_some(validation)?) };
        Ok(Self { train: list_some(train)?, validation: own })
    }

    /// All files, and whether each is of the validation set.
    pub(super) fn files(&self) -> impl Iterator<Item = (&InputFile, bool)> {
        let validation = self.validation.iter().flat_map(|list| &list.files);
        self.train.files.iter().map(|file| (file, false)).chain(validation.map(|file| (file, true)))
    }

    /// The pieces, in the order in which they are merged.
    pub(super) fn pieces(&self, config: &PrepareConfig) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut first = 0;
        let sets = [
            (Some(&self.train), Split::new(config, self.validation.is_some())),
            (self.validation.as_ref(), Split::AllValidation),
        ];
        for (list, split) in sets {
            let Some(list) = list else { continue };
            let mut files: Vec<InputFile> = Vec::new();
            let mut close = |files: &mut Vec<InputFile>| {
                if !files.is_empty() {
                    let (number, count) = (pieces.len(), files.len());
                    let files = InputList { files: std::mem::take(files), ..InputList::default() };
                    pieces.push(Piece { number, first, files, split });
                    first += count;
                }
            };
            for file in &list.files {
                if file.bytes >= PIECE_BYTES {
                    close(&mut files);
                }
                files.push(file.clone());
                if files.iter().map(|file| file.bytes).sum::<u64>() >= PIECE_BYTES {
                    close(&mut files);
                }
            }
            close(&mut files);
        }
        pieces
    }
}

/// Input files that are tokenised in one go.
pub(super) struct Piece {
    number: usize,
    /// Number of its first file among all inputs.
    first: usize,
    files: InputList,
    split: Split,
}

/// What was made of a piece; written when its token files are there.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// See [`Piece::key`].
    key: String,
    /// The part that made it.
    part: Part,
    /// Of the piece alone.
    pub(super) report: PrepareReport,
}

impl Piece {
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Length of its files as stored, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// Whether it is of a validation set of its own.
    pub(super) fn is_validation(&self) -> bool {
        self.split == Split::AllValidation
    }

    pub(super) fn first_file(&self) -> PathBuf {
        self.files.files.first().map(|file| file.path.clone()).unwrap_or_default()
    }

    /// Whether it holds an input, by its number among all of them.
    pub(super) fn holds(&self, input: usize) -> bool {
        (self.first..self.first + self.files.files.len()).contains(&input)
    }

    pub(super) fn train_file(&self, folder: &Path) -> Option<PathBuf> {
        (!self.is_validation()).then(|| folder.join(format!("{:05}-train.h5", self.number)))
    }

    pub(super) fn validation_file(&self, folder: &Path) -> Option<PathBuf> {
        self.split.validates().then(|| folder.join(format!("{:05}-validation.h5", self.number)))
    }

    fn record_file(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{:05}.json", self.number))
    }

    /// What decides the outcome, as far as it can be known without reading the files. Folders may be mounted elsewhere
    /// on another machine, so names of files count and those of their folders do not.
    fn key(&self, config: &PrepareConfig, tokenizer: &Tokenizer) -> String {
        let files: Vec<_> = self
            .files
            .files
            .iter()
            .map(|file| (file.path.file_name().map(|name| name.to_string_lossy()), file.bytes))
            .collect();
        let settings = PrepareConfig { tokenizer: None, ..comparable(config) };
        let split = format!("{:?}", self.split);
        let all = serde_json::json!([VERSION, self.number, files, settings, tokenizer.hash(), split]);
        blake3::hash(all.to_string().as_bytes()).to_hex().to_string()
    }

    /// The record, when the piece has been made of files of these names and lengths with these settings.
    pub(super) fn record(
        &self,
        config: &PrepareConfig,
        tokenizer: &Tokenizer,
        folder: &Path,
    ) -> Option<Record> {
        let record: Record = read(&self.record_file(folder))?;
        (record.key == self.key(config, tokenizer)).then_some(record)
    }

    /// Whether a recorded piece is whole and its files still have the content that it was made of.
    pub(super) fn is_done(
        &self,
        record: &Record,
        folder: &Path,
        progress: &dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<bool, ShardsError> {
        let whole = [
            (self.train_file(folder), &record.report.train.content_hash),
            (self.validation_file(folder), &record.report.validation.content_hash),
        ]
        .iter()
        .all(|(file, hash)| file.as_ref().is_none_or(|file| token_file_is_whole(file, hash)));
        let hashes = record.report.files.iter().map(|file| file.hash.as_str());
        let files: Vec<_> = self.files.files.iter().zip(hashes).collect();
        Ok(whole && files.len() == self.files.files.len() && same_content(&files, progress, cancel)?)
    }

    /// Tokenises the piece and records it.
    pub(super) fn make(
        &self,
        config: &PrepareConfig,
        tokenizer: &Tokenizer,
        part: Part,
        folder: &Path,
        progress: &dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Record, ShardsError> {
        remove_stale(&self.record_file(folder))?;
        let start = Instant::now();
        let writer = |file: Option<PathBuf>| {
            file.map(|file| TokenFileWriter::create(file, info(tokenizer, String::new()))).transpose()
        };
        let mut outputs = Outputs {
            train: writer(self.train_file(folder))?,
            validation: writer(self.validation_file(folder))?,
        };
        let mut report = PrepareReport::default();
        pipeline::run(
            config,
            &self.files,
            tokenizer,
            self.split,
            &mut outputs,
            &mut report,
            progress,
            cancel,
        )?;
        let source = report.source();
        for (writer, split) in
            [(outputs.train, &mut report.train), (outputs.validation, &mut report.validation)]
        {
            let Some(mut writer) = writer else { continue };
            writer.set_source(source.clone());
            split.content_hash = writer.finish()?.content_hash;
        }
        report.tokenising_seconds = start.elapsed().as_secs_f64();
        let record = Record { key: self.key(config, tokenizer), part, report };
        write_json(&self.record_file(folder), &record)?;
        Ok(record)
    }
}

impl Record {
    pub(super) fn part(&self) -> Part {
        self.part
    }
}

/// What token files of a tokenizer say of themselves.
pub(super) fn info(tokenizer: &Tokenizer, source: String) -> TokenFileInfo {
    TokenFileInfo {
        tokenizer_hash: tokenizer.hash().to_owned(),
        end_of_text: tokenizer.end_of_text(),
        vocab_size: tokenizer.vocab_size(),
        source,
        origin: String::new(),
    }
}

/// The error that says which parts are missing, when some are: the pieces that have no record belong to them.
pub(super) fn check_all_there(
    pieces: &[Piece],
    missing: &[usize],
    parts: u32,
    folder: &Path,
) -> Result<(), ShardsError> {
    let Some(first) = missing.first().and_then(|&number| pieces.get(number)) else { return Ok(()) };
    let mut of: Vec<Part> = missing.iter().map(|&number| Part::dealt(number, parts)).collect();
    of.sort();
    of.dedup();
    Err(ShardsError::MissingParts {
        folder: folder.to_owned(),
        pieces: missing.len(),
        total: pieces.len(),
        first: first.first_file(),
        parts: of,
    })
}
