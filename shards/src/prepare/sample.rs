//! Training the tokenizer on a sample of the documents.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use super::pipeline::{Split, text_key};
use super::{PrepareConfig, check_cancelled};
use crate::readers::{InputFile, InputList};
use crate::{Progress, Record, ShardsError, Tokenizer, TokenizerTrainer, read_documents};

/// Text that is read to find the sample, as a multiple of the sample: enough for a spread over the files, without
/// reading a corpus of terabytes twice.
const READ_PER_SAMPLED: u64 = 32;

/// Trains a tokenizer on training documents from all over the input; returns it and the bytes it was trained on.
///
/// A document is in the sample when a hash of its text is below the fraction that gives about
/// [`PrepareConfig::tokenizer_sample_bytes`]; no file gives more than four times its share.
pub(super) fn train_tokenizer(
    config: &PrepareConfig,
    inputs: &InputList,
    split: Split,
    progress: &dyn Progress,
    cancel: &AtomicBool,
) -> Result<(Tokenizer, u64), ShardsError> {
    let files = spread(&inputs.files, config.tokenizer_sample_bytes.saturating_mul(READ_PER_SAMPLED));
    let text_bytes: u64 = files.iter().map(|file| file.text_bytes_estimate()).sum();
    let fraction = config.tokenizer_sample_bytes as f64 / text_bytes.max(1) as f64;
    let mut trainer = TokenizerTrainer::new(config.vocab_size)?;
    progress.begin("read a sample for the tokenizer", files.iter().map(|file| file.bytes).sum());
    for file in files {
        let share = fraction * file.text_bytes_estimate() as f64;
        let most = trainer.bytes() + (4.0 * share) as u64 + config.text_document_bytes as u64;
        let mut failed = None;
        read_documents(file, &config.limits(), progress, &mut |record| {
            if let Record::Document { text, .. } = record {
                let key = text_key(&text);
                // Another part of the hash than the split's, so that the sample is independent of it.
                let in_sample = (key.1 as f64) < fraction * u64::MAX as f64;
                if in_sample && !split.is_validation(key.0) {
                    failed = trainer.push_document(&text).err();
                }
            }
            if failed.is_some() || trainer.bytes() >= most || cancel.load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        check_cancelled(cancel)?;
    }
    progress.end();
    let bytes = trainer.bytes();
    progress.begin("train the tokenizer", 0);
    let tokenizer = trainer.train()?;
    progress.end();
    Ok((tokenizer, bytes))
}

/// Evenly spaced files that hold about `text_bytes` of text, all when they hold less.
fn spread(files: &[InputFile], text_bytes: u64) -> Vec<&InputFile> {
    let all: u64 = files.iter().map(InputFile::text_bytes_estimate).sum();
    if all <= text_bytes {
        return files.iter().collect();
    }
    let count = ((files.len() as u128 * u128::from(text_bytes)).div_ceil(u128::from(all))) as usize;
    (0..count).map(|at| &files[at * files.len() / count]).collect()
}
