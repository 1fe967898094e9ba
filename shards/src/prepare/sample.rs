//! Training the tokenizer on a sample of the documents.

use std::ops::ControlFlow;

use super::PrepareConfig;
use super::pipeline::{Split, text_key};
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

/// Trains a tokenizer on training documents that are spread over the input.
///
/// A document is in the sample if a hash of its text is below the fraction that gives about
/// [`PrepareConfig::tokenizer_sample_bytes`]. No file gives more than four times its share.
pub(super) fn train_tokenizer(
    config: &PrepareConfig,
    inputs: &InputList,
    split: Split,
    watch: Watch<'_>,
) -> Result<TrainedTokenizer, ShardsError> {
    let files = spread(&inputs.files, config.tokenizer_sample_bytes.saturating_mul(READ_PER_SAMPLED));
    let text_bytes: u64 = files.iter().map(|file| file.text_bytes_estimate()).sum();
    let fraction = config.tokenizer_sample_bytes as f64 / text_bytes.max(1) as f64;
    let mut trainer = TokenizerTrainer::new(config.vocab_size)?;
    watch.progress.begin("read a sample for the tokenizer", files.iter().map(|file| file.bytes).sum());
    for file in files {
        let share = fraction * file.text_bytes_estimate() as f64;
        let most = trainer.bytes() + (4.0 * share) as u64 + config.text_document_bytes as u64;
        let mut failed = None;
        read_documents(file, &config.reading(), watch.progress, &mut |record| {
            if let ReadRecord::Document { text, .. } = record {
                let key = text_key(&text);
                let in_sample = (key.sample as f64) < fraction * u64::MAX as f64;
                if in_sample && !split.is_validation(key.split) {
                    failed = trainer.push_document(&text).err();
                }
            }
            if failed.is_some() || trainer.bytes() >= most || watch.is_cancelled() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        watch.check_cancelled()?;
    }
    watch.progress.end();
    let sample_bytes = trainer.bytes();
    watch.progress.begin("train the tokenizer", 0);
    let tokenizer = trainer.train()?;
    watch.progress.end();
    Ok(TrainedTokenizer { tokenizer, sample_bytes })
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
