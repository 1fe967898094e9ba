//! Pieces: the unit of tokenising. A killed run does not repeat finished pieces, and machines divide the pieces among
//! them.
//!
//! A piece is one input file, or several small files that follow each other. Its documents go to its own token files in
//! the folder `pieces`, where they stay; a record, written last, names the inputs. Pieces depend only on the list of
//! inputs, so the files have the same bytes whatever the number of machines and interruptions.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use super::manifest::{comparable, read, same_content};
use super::pipeline::{Outputs, Pipeline, Split};
use super::{PrepareConfig, PrepareReport, is_whole, remove_stale, write_json};
use crate::progress::Watch;
use crate::readers::InputList;
use crate::{InputFile, ShardsError, TokenFileInfo, TokenFileWriter, Tokenizer, WorkPart};

/// Name of the folder in the output folder.
pub(super) const FOLDER: &str = "pieces";

/// Least size of a piece in stored bytes: a file of this size is its own piece, and smaller files are joined up to it,
/// because each piece costs two files and a few syncs.
const PIECE_BYTES: u64 = 2 << 20;
/// A large text has larger pieces, at most about twice as many: a process has a memory map for each file of a token set, and Linux
/// permits 65,530 of them.
const PIECES: u64 = 8192;

/// Version of the records; part of [`Piece::key`].
const VERSION: u32 = 1;

impl Inputs {
    /// The pieces, in the order of their documents.
    pub(super) fn pieces(&self, config: &PrepareConfig) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut first = 0;
        let sets = [
            (Some(&self.train), Split::new(config, self.validation.is_some())),
            (self.validation.as_ref(), Split::AllValidation),
        ];
        for (list, split) in sets {
            for files in list.into_iter().flat_map(groups) {
                let (number, count) = (pieces.len(), files.len());
                let files = InputList { files, ..InputList::default() };
                pieces.push(Piece { number, first, files, split });
                first += count;
            }
        }
        pieces
    }
}

/// The files of each piece of a list.
fn groups(list: &InputList) -> Vec<Vec<InputFile>> {
    let least = PIECE_BYTES.max(list.bytes().div_ceil(PIECES));
    let mut groups = Vec::new();
    let (mut files, mut bytes) = (Vec::new(), 0u64);
    for file in &list.files {
        if file.bytes >= least && !files.is_empty() {
            groups.push(std::mem::take(&mut files));
            bytes = 0;
        }
        files.push(file.clone());
        bytes = bytes.saturating_add(file.bytes);
        if bytes >= least {
            groups.push(std::mem::take(&mut files));
            bytes = 0;
        }
    }
    if !files.is_empty() {
        groups.push(files);
    }
    groups
}

/// Input files that are tokenised together.
pub(super) struct Piece {
    number: usize,
    /// Number of its first file among all inputs.
    first: usize,
    files: InputList,
    split: Split,
}

/// The record of a finished piece, written after its token files.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PieceRecord {
    /// See [`Piece::key`].
    key: String,
    /// The part that made the piece.
    part: WorkPart,
    /// Report of this piece alone.
    pub(super) report: PrepareReport,
}

/// A piece whose token files and record are there.
pub(super) struct FinishedPiece<'a> {
    pub(super) piece: &'a Piece,
    pub(super) record: PieceRecord,
}

impl Piece {
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Length of its files as stored, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// True for a piece of the separate validation inputs.
    pub(super) fn is_validation(&self) -> bool {
        self.split == Split::AllValidation
    }

    pub(super) fn first_file(&self) -> PathBuf {
        self.files.files.first().map(|file| file.path.clone()).unwrap_or_default()
    }

    /// True if the piece contains the input with this number among all inputs.
    pub(super) fn holds(&self, input: usize) -> bool {
        (self.first..self.first + self.files.files.len()).contains(&input)
    }

    /// Name of its training documents in the folder of the pieces, if it can have any.
    pub(super) fn train_name(&self) -> Option<String> {
        (!self.is_validation()).then(|| format!("{:05}-train.h5", self.number))
    }

    /// Name of its validation documents in the folder of the pieces, if it can have any.
    pub(super) fn validation_name(&self) -> Option<String> {
        self.split.validates().then(|| format!("{:05}-validation.h5", self.number))
    }

    fn record_file(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{:05}.json", self.number))
    }

    /// Hash of everything that decides the outcome and is known without reading the files. Another machine may mount the
    /// folders elsewhere, so file names count and folder names do not.
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
        dipaco_files::content_hash(all.to_string().as_bytes())
    }

    /// The record, if the piece was made from files of these names and lengths with these settings.
    pub(super) fn record(
        &self,
        config: &PrepareConfig,
        tokenizer: &Tokenizer,
        folder: &Path,
    ) -> Option<PieceRecord> {
        let record: PieceRecord = read(&self.record_file(folder))?;
        (record.key == self.key(config, tokenizer)).then_some(record)
    }

    /// True if the token files of a recorded piece are whole and its input files have not changed.
    pub(super) fn is_done(
        &self,
        record: &PieceRecord,
        folder: &Path,
        watch: Watch<'_>,
    ) -> Result<bool, ShardsError> {
        for (name, hash) in [
            (self.train_name(), &record.report.train.content_hash),
            (self.validation_name(), &record.report.validation.content_hash),
        ] {
            let Some(name) = name else { continue };
            if !is_whole(&folder.join(name), hash, &mut |_| watch.check_cancelled())? {
                return Ok(false);
            }
        }
        let hashes = record.report.files.iter().map(|file| file.hash.as_str());
        let files: Vec<_> = self.files.files.iter().zip(hashes).collect();
        Ok(files.len() == self.files.files.len() && same_content(&files, watch)?)
    }

    /// Tokenises the piece and records it.
    pub(super) fn make(
        &self,
        config: &PrepareConfig,
        tokenizer: &Tokenizer,
        part: WorkPart,
        folder: &Path,
        watch: Watch<'_>,
    ) -> Result<PieceRecord, ShardsError> {
        remove_stale(&self.record_file(folder))?;
        let start = Instant::now();
        let writer = |name: Option<String>| {
            name.map(|name| TokenFileWriter::create(folder.join(name), info(tokenizer))).transpose()
        };
        let mut outputs =
            Outputs { train: writer(self.train_name())?, validation: writer(self.validation_name())? };
        let mut report = PrepareReport::default();
        let pipeline = Pipeline { config, inputs: &self.files, tokenizer, split: self.split, watch };
        pipeline.run(&mut outputs, &mut report)?;
        // Hashes of the inputs are known only after reading, so the writers get their source last.
        let source = report.source();
        for (writer, split) in
            [(outputs.train, &mut report.train), (outputs.validation, &mut report.validation)]
        {
            let Some(mut writer) = writer else { continue };
            writer.set_source(source.clone());
            split.content_hash = writer.finish()?.content_hash;
        }
        report.tokenising_seconds = start.elapsed().as_secs_f64();
        let record = PieceRecord { key: self.key(config, tokenizer), part, report };
        write_json(&self.record_file(folder), &record)?;
        Ok(record)
    }
}

impl PieceRecord {
    pub(super) fn part(&self) -> WorkPart {
        self.part
    }
}

/// Description of a token file that `tokenizer` makes.
pub(super) fn info(tokenizer: &Tokenizer) -> TokenFileInfo {
    TokenFileInfo {
        tokenizer_hash: tokenizer.hash().to_owned(),
        end_of_text: tokenizer.end_of_text(),
        vocab_size: tokenizer.vocab_size(),
        ..TokenFileInfo::default()
    }
}

/// Checks that no piece is missing.
///
/// # Errors
/// Some are; the error names the parts that they belong to.
pub(super) fn check_all_there(
    pieces: &[Piece],
    missing: &[usize],
    parts: u32,
    folder: &Path,
) -> Result<(), ShardsError> {
    let Some(first) = missing.first().and_then(|&number| pieces.get(number)) else { return Ok(()) };
    let mut of: Vec<WorkPart> = missing.iter().map(|&number| WorkPart::dealt(number, parts)).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of files in the pieces of files of these sizes.
    fn counts(sizes: impl IntoIterator<Item = u64>) -> Vec<usize> {
        let file = |(number, bytes): (usize, u64)| InputFile::new(format!("{number:06}.jsonl").into(), bytes);
        let files = sizes.into_iter().enumerate().map(file).collect();
        groups(&InputList { files, ..InputList::default() }).iter().map(Vec::len).collect()
    }

    #[test]
    fn small_files_share_a_piece_and_a_large_text_has_a_bounded_number_of_pieces() {
        assert_eq!(counts([100, 200, 3 << 20, 1 << 20, 1 << 20, 5]), [2, 1, 2, 1]);
        assert!(counts([]).is_empty());
        assert_eq!(counts(vec![4 << 20; 5000]), vec![1; 5000], "a text of 20 GB");
        // 400 GB: ten files of 5 MB and more in each piece.
        let many = counts(vec![5_000_000; 80_000]);
        assert_eq!((many.len(), many.iter().sum::<usize>()), (8000, 80_000));
        // Files of 60 MB between small ones.
        let mixed = counts((0..14_000u64).map(|number| if number % 2 == 0 { 1_000_000 } else { 60_000_000 }));
        assert_eq!((mixed.len(), 2 * PIECES), (14_000, 16_384));
    }
}
