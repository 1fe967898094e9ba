//! Training the tokenizer on a sample of the documents.

use std::ops::ControlFlow;
use std::path::PathBuf;

use super::pipeline::{Split, text_key};
use super::{PrepareConfig, PrepareReport, ReportedInputs, check_train};
use crate::progress::Watch;
use crate::readers::{InputFile, InputList};
use crate::{ReadRecord, ShardsError, Tokenizer, TokenizerTrainer, read_documents};

/// Limit of the text that is read to find the sample, as a multiple of the sample: enough to spread over the files
/// without reading a corpus of terabytes twice.
const READ_PER_SAMPLED: u64 = 32;

/// A tokenizer and the size of its sample.
pub(super) struct TrainedTokenizer {
    pub(super) tokenizer: Tokenizer,
    /// Bytes of text that it was trained on.
    pub(super) sample_bytes: u64,
}

/// Trains a tokenizer on training documents that are spread over the input, which was given as `named`.
///
/// A document is in the sample if a hash of its text is below the fraction that gives about
/// [`PrepareConfig::tokenizer_sample_bytes`]. No file gives more than four times its share. If no document is drawn, the
/// first ones are the sample.
///
/// # Errors
/// There is no training document; the error names the reasons.
pub(super) fn train_tokenizer(
    config: &PrepareConfig,
    inputs: &InputList,
    named: &[PathBuf],
    split: Split,
    watch: Watch<'_>,
) -> Result<TrainedTokenizer, ShardsError> {
    let trainer = TokenizerTrainer::new(config.vocab_size)?;
    let mut sample = Sample { config, split, watch, trainer, report: PrepareReport::default() };
    sample.draw(&inputs.files)?;
    if sample.trainer.bytes() == 0 {
        // A draw may choose none of a few large documents, and it does not read all files.
        sample.take_first(inputs)?;
    }
    check_train(config, &ReportedInputs { report: &sample.report, inputs: named })?;
    let sample_bytes = sample.trainer.bytes();
    watch.progress.begin("train the tokenizer", 0);
    let tokenizer = sample.trainer.train()?;
    watch.progress.end();
    Ok(TrainedTokenizer { tokenizer, sample_bytes })
}

/// Collects the sample.
struct Sample<'a> {
    config: &'a PrepareConfig,
    split: Split,
    watch: Watch<'a>,
    trainer: TokenizerTrainer,
    /// What was read: documents by split, refusals and files.
    report: PrepareReport,
}

impl Sample<'_> {
    /// Draws documents from files that are spread over the input.
    fn draw(&mut self, files: &[InputFile]) -> Result<(), ShardsError> {
        let wanted = self.config.tokenizer_sample_bytes;
        let files = spread(files, wanted.saturating_mul(READ_PER_SAMPLED));
        let text_bytes: u64 = files.iter().map(|file| file.text_bytes_estimate()).sum();
        let fraction = wanted as f64 / text_bytes.max(1) as f64;
        self.begin(files.iter().map(|file| file.bytes).sum());
        for file in files {
            let share = fraction * file.text_bytes_estimate() as f64;
            let document = self.config.text_document_bytes as u64;
            let most = self.trainer.bytes().saturating_add((4.0 * share) as u64).saturating_add(document);
            self.read(file, fraction * u64::MAX as f64, most)?;
        }
        self.watch.progress.end();
        Ok(())
    }

    /// Takes the first documents of the input.
    fn take_first(&mut self, inputs: &InputList) -> Result<(), ShardsError> {
        self.report = PrepareReport::default();
        self.report.skip(&inputs.skipped);
        self.begin(inputs.bytes());
        for file in &inputs.files {
            self.read(file, f64::INFINITY, self.config.tokenizer_sample_bytes)?;
            if self.trainer.bytes() >= self.config.tokenizer_sample_bytes {
                break;
            }
        }
        self.watch.progress.end();
        Ok(())
    }

    fn begin(&self, bytes: u64) {
        self.watch.progress.begin("read a sample for the tokenizer", bytes);
    }

    /// Reads a file until the sample has `most` bytes, and adds the training documents whose key is below `below`.
    fn read(&mut self, file: &InputFile, below: f64, most: u64) -> Result<(), ShardsError> {
        let (split, watch) = (self.split, self.watch);
        let (mut documents, mut refused, mut failed) = (0, 0, None);
        let end = read_documents(file, &self.config.reading(), watch.progress, &mut |record| {
            match record {
                ReadRecord::Document { text, .. } => {
                    documents += 1;
                    let key = text_key(&text);
                    if split.is_validation(key.split) {
                        self.report.validation.documents += 1;
                    } else {
                        self.report.train.documents += 1;
                        if (key.sample as f64) < below {
                            failed = self.trainer.push_document(&text).err();
                        }
                    }
                }
                ReadRecord::Refused { reason, line } => {
                    refused += 1;
                    self.report.refused.add(reason, file, line);
                }
            }
            if failed.is_some() || self.trainer.bytes() >= most || watch.is_cancelled() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        self.report.add_file(file, end, false, documents, refused);
        watch.check_cancelled()
    }
}

/// Evenly spaced files with about `text_bytes` of text in all; all files if they have less.
fn spread(files: &[InputFile], text_bytes: u64) -> Vec<&InputFile> {
    let all: u64 = files.iter().map(InputFile::text_bytes_estimate).sum();
    if all <= text_bytes {
        return files.iter().collect();
    }
    let count = ((files.len() as u128 * u128::from(text_bytes)).div_ceil(u128::from(all))) as usize;
    (0..count).map(|at| &files[at * files.len() / count]).collect()
}
