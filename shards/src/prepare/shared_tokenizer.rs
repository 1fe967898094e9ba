//! The tokenizer of a preparation: given, trained earlier by this run or on another machine, or trained now.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use super::manifest::read;
use super::pipeline::Split;
use super::sample::TrainedTokenizer;
use super::{PrepareConfig, TOKENIZER, TokenizerReport, sample, write_json};
use crate::progress::Watch;
use crate::tokenizer::END_OF_TEXT;
use crate::{ShardsError, Tokenizer, WorkPart};

/// Record of the training of the tokenizer in the folder of the pieces.
const RECORD: &str = "tokenizer-record.json";

/// Version of the records; part of [`key`].
const VERSION: u32 = 2;

#[derive(Serialize, Deserialize)]
struct TokenizerRecord {
    key: String,
    hash: String,
    trained_on_bytes: u64,
    seconds: f64,
}

/// The tokenizer for these inputs, whose training text was given as `named`. A part of a divided job may not train its own:
/// all parts must share one.
pub(super) fn tokenizer(
    config: &PrepareConfig,
    inputs: &Inputs,
    named: &[PathBuf],
    part: Option<WorkPart>,
    folder: &Path,
    watch: Watch<'_>,
) -> Result<(Tokenizer, TokenizerReport), ShardsError> {
    let start = Instant::now();
    let of = |tokenizer: &Tokenizer, trained_on_bytes, seconds| TokenizerReport {
        hash: tokenizer.hash().to_owned(),
        vocab_size: tokenizer.vocab_size(),
        end_of_text: Some(tokenizer.end_of_text_text()),
        trained_on_bytes,
        trained_before: false,
        seconds,
    };
    if let Some(path) = &config.tokenizer {
        let tokenizer = Tokenizer::from_file(path, config.end_of_text.as_deref())?;
        let report = of(&tokenizer, 0, start.elapsed().as_secs_f64());
        return Ok((tokenizer, report));
    }
    let (file, key) = (folder.join(TOKENIZER), key(config, inputs));
    if let Some((tokenizer, record)) = trained(&key, folder) {
        let report = of(&tokenizer, record.trained_on_bytes, record.seconds);
        return Ok((tokenizer, TokenizerReport { trained_before: true, ..report }));
    }
    if let Some(part) = part {
        let other = file.exists() && folder.join(RECORD).exists();
        return Err(ShardsError::NoSharedTokenizer { path: file, part, other });
    }
    let split = Split::new(config, inputs.validation.is_some());
    let TrainedTokenizer { tokenizer, sample_bytes } =
        sample::train_tokenizer(config, &inputs.train, named, split, watch)?;
    let report = of(&tokenizer, sample_bytes, start.elapsed().as_secs_f64());
    publish(tokenizer.to_json(), key, &report, folder)?;
    Ok((tokenizer, report))
}

/// Gives the parts the tokenizer of the finished preparation of these inputs in the folder `out`.
pub(super) fn share(
    config: &PrepareConfig,
    inputs: &Inputs,
    report: &TokenizerReport,
    out: &Path,
    folder: &Path,
) -> Result<(), ShardsError> {
    let file = out.join(TOKENIZER);
    let json = std::fs::read(&file).map_err(ShardsError::io("read", &file))?;
    publish(&json, key(config, inputs), report, folder)
}

/// Writes a trained tokenizer into the folder of the pieces. The record vouches for it, so it comes last.
fn publish(json: &[u8], key: String, report: &TokenizerReport, folder: &Path) -> Result<(), ShardsError> {
    let (trained_on_bytes, seconds) = (report.trained_on_bytes, report.seconds);
    let record = TokenizerRecord { key, hash: report.hash.clone(), trained_on_bytes, seconds };
    dipaco_files::publish(&folder.join(TOKENIZER), json)?;
    write_json(&folder.join(RECORD), &record)
}

/// True if the parts find a tokenizer: a given one, or that of these inputs and settings in the folder of the pieces.
pub(super) fn is_there(config: &PrepareConfig, inputs: &Inputs, folder: &Path) -> bool {
    config.tokenizer.is_some() || trained(&key(config, inputs), folder).is_some()
}

/// The whole tokenizer with this key in the folder of the pieces, and its record.
fn trained(key: &str, folder: &Path) -> Option<(Tokenizer, TokenizerRecord)> {
    let record = read::<TokenizerRecord>(&folder.join(RECORD)).filter(|record| record.key == key)?;
    let tokenizer = Tokenizer::from_file(&folder.join(TOKENIZER), Some(END_OF_TEXT)).ok()?;
    (tokenizer.hash() == record.hash).then_some((tokenizer, record))
}

/// Hash of everything that decides the outcome of the training and is known without reading the files.
fn key(config: &PrepareConfig, inputs: &Inputs) -> String {
    let files: Vec<_> = inputs
        .train
        .files
        .iter()
        .map(|file| (file.path.file_name().map(|name| name.to_string_lossy()), file.bytes))
        .collect();
    let split = format!("{:?}", Split::new(config, inputs.validation.is_some()));
    let reading = (&config.text_field, config.text_document_bytes, config.max_line_bytes);
    let settings = (config.vocab_size, config.tokenizer_sample_bytes, reading);
    let all = serde_json::json!([VERSION, files, split, settings]);
    dipaco_files::content_hash(all.to_string().as_bytes())
}
