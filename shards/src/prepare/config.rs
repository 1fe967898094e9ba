//! The configuration of `prepare`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{ReadSettings, ShardsError};

/// Section `prepare`: how text becomes token files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrepareConfig {
    /// Size of the vocabulary to train, the 256 bytes and the end-of-text token included. Default 4096. A larger
    /// vocabulary gives fewer tokens per byte of text and a larger embedding; up to 65536 ids a token takes 2 bytes on
    /// disk. Without effect if `tokenizer` is given.
    pub vocab_size: u32,
    /// A `tokenizer.json` to use instead of training one. Default: none.
    pub tokenizer: Option<PathBuf>,
    /// Name of the end-of-text token of the given tokenizer. Default: the first token of `<|endoftext|>`, `</s>`,
    /// `<|end_of_text|>` and `<eos>` in its vocabulary.
    pub end_of_text: Option<String>,
    /// Bytes of text to train the tokenizer on, spread over the input. Default 10000000 (10 MB). More text takes longer
    /// and hardly changes the vocabulary.
    pub tokenizer_sample_bytes: u64,
    /// Fraction of the documents for the validation set if no validation inputs are given, chosen by a hash of their
    /// text. Default 0.02; 0 writes no validation set.
    pub validation_fraction: f64,
    /// Field of JSON lines, or column of Parquet files, with the text of a document. Default `text`, as in C4 and in the
    /// data sets of Hugging Face.
    pub text_field: String,
    /// Largest document of a plain text file in bytes; files are cut at line ends. Default 16384. Small values cut
    /// context, large values leave few documents to route.
    pub text_document_bytes: usize,
    /// Longest line, and so the longest JSON document, or text of a Parquet file, in bytes. Default 67108864 (64 MiB). Longer lines are refused and
    /// counted. Memory grows with the value.
    pub max_line_bytes: usize,
    /// Documents with fewer tokens, without the end-of-text token, are refused and counted. Default 0 keeps all.
    pub min_document_tokens: usize,
    /// Number of tokenising threads. Default 0: one for each core. The result does not depend on it.
    pub threads: usize,
}

impl Default for PrepareConfig {
    fn default() -> Self {
        Self {
            vocab_size: 4096,
            tokenizer: None,
            end_of_text: None,
            tokenizer_sample_bytes: 10_000_000,
            validation_fraction: 0.02,
            text_field: "text".to_owned(),
            text_document_bytes: 16 * 1024,
            max_line_bytes: 64 << 20,
            min_document_tokens: 0,
            threads: 0,
        }
    }
}

impl PrepareConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// A value is outside its valid range; the error names its key.
    pub fn check(&self) -> Result<(), ShardsError> {
        let refuse = |key, value: String, reason| Err(ShardsError::Value { key, value, reason });
        if self.tokenizer.is_none() && !(258..=1 << 24).contains(&self.vocab_size) {
            let reason = "a byte-level vocabulary has 258 to 16777216 tokens";
            return refuse("prepare.vocab_size", self.vocab_size.to_string(), reason);
        }
        if self.tokenizer.is_none() && self.tokenizer_sample_bytes == 0 {
            return refuse("prepare.tokenizer_sample_bytes", "0".into(), "training a tokenizer needs text");
        }
        if !(0.0..1.0).contains(&self.validation_fraction) {
            let reason = "give a fraction from 0 to below 1";
            return refuse("prepare.validation_fraction", self.validation_fraction.to_string(), reason);
        }
        if self.text_field.is_empty() {
            return refuse("prepare.text_field", "\"\"".into(), "give the name of a field or column");
        }
        for (key, bytes) in [
            ("prepare.text_document_bytes", self.text_document_bytes),
            ("prepare.max_line_bytes", self.max_line_bytes),
        ] {
            if !(1..=1 << 30).contains(&bytes) {
                return refuse(key, bytes.to_string(), "give 1 to 1073741824 bytes (1 GiB)");
            }
        }
        if self.threads > 1024 {
            return refuse("prepare.threads", self.threads.to_string(), "give 0 (all cores) to 1024");
        }
        Ok(())
    }

    /// The settings of reading documents.
    pub fn reading(&self) -> ReadSettings {
        ReadSettings {
            text_field: self.text_field.clone(),
            max_line_bytes: self.max_line_bytes,
            text_document_bytes: self.text_document_bytes,
        }
    }

    pub(super) fn thread_count(&self) -> usize {
        if self.threads > 0 {
            self.threads
        } else {
            std::thread::available_parallelism().map_or(1, usize::from)
        }
    }
}
