//! The report of `prepare`.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::names;
use crate::{FileEnd, InputFile, Refusals, ShardsError, Skipped};

/// Result of a preparation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PrepareReport {
    /// True if the outputs were up to date; the other fields are the report of the run that made them.
    pub skipped: bool,
    /// The tokenizer.
    pub tokenizer: TokenizerReport,
    /// The training set.
    pub train: SplitReport,
    /// The validation set.
    pub validation: SplitReport,
    /// Lines and runs of text that gave no document.
    pub refused: Refusals,
    /// Skipped files of directories, by reason.
    pub skipped_files: BTreeMap<Skipped, u64>,
    /// Every file that was read, in the order of reading.
    pub files: Vec<FileReport>,
    /// Seconds for reading, tokenising and writing, of all pieces together.
    pub tokenising_seconds: f64,
    /// Seconds in all.
    pub seconds: f64,
}

/// The tokenizer in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenizerReport {
    /// Its hash.
    pub hash: String,
    /// Number of token ids.
    pub vocab_size: u32,
    /// Its end-of-text token, as it writes it. `None` in the report of a piece, and in a report of an earlier program.
    pub end_of_text: Option<String>,
    /// Bytes of text that it was trained on; 0 if it was given.
    pub trained_on_bytes: u64,
    /// True if an earlier call trained it. False in a report of an earlier program.
    #[serde(default)]
    pub trained_before: bool,
    /// Seconds to train it, or to load a given one.
    pub seconds: f64,
}

/// The training set or the validation set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SplitReport {
    /// Documents.
    pub documents: u64,
    /// Tokens, end-of-text tokens included.
    pub tokens: u64,
    /// Bytes of text (UTF-8).
    pub text_bytes: u64,
    /// Hash of the content; empty if there is no such set.
    pub content_hash: String,
}

impl SplitReport {
    /// Bytes of text per token; 0 without tokens.
    pub fn bytes_per_token(&self) -> f64 {
        if self.tokens == 0 { 0.0 } else { self.text_bytes as f64 / self.tokens as f64 }
    }
}

/// An input file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileReport {
    /// Its path, as given or found.
    pub path: PathBuf,
    /// Its length as stored, in bytes.
    pub bytes: u64,
    /// BLAKE3 of the file as stored, in hexadecimal; empty if it could not be read to its end.
    pub hash: String,
    /// True for a file of the validation inputs.
    pub validation: bool,
    /// Lines read.
    pub lines: u64,
    /// Documents read from it, before `min_document_tokens` applies.
    pub documents: u64,
    /// Refused lines and runs of text.
    pub refused: u64,
    /// Damage of the file as a whole; documents before the damage are kept.
    pub damage: Option<String>,
    /// Reason for skipping the file.
    pub skipped: Option<Skipped>,
}

impl PrepareReport {
    /// Damaged files, each with its damage.
    pub fn damaged(&self) -> impl Iterator<Item = (&FileReport, &str)> {
        self.files.iter().filter_map(|file| Some((file, file.damage.as_deref()?)))
    }

    /// Adds a file, with the numbers of its documents and of its refused lines and runs of text.
    pub(super) fn add_file(
        &mut self,
        file: &InputFile,
        end: FileEnd,
        validation: bool,
        documents: u64,
        refused: u64,
    ) {
        if let Some(reason) = end.skipped {
            *self.skipped_files.entry(reason).or_default() += 1;
        }
        self.files.push(FileReport {
            path: file.path.clone(),
            bytes: file.bytes,
            hash: end.hash.unwrap_or_default(),
            validation,
            lines: end.lines,
            documents,
            refused,
            damage: end.damage,
            skipped: end.skipped,
        });
    }

    /// Adds the report of another set of inputs.
    pub(super) fn merge(&mut self, other: &Self) {
        for (into, from) in [(&mut self.train, &other.train), (&mut self.validation, &other.validation)] {
            into.documents += from.documents;
            into.tokens += from.tokens;
            into.text_bytes += from.text_bytes;
        }
        for (&reason, refused) in &other.refused.0 {
            self.refused
                .0
                .entry(reason)
                .and_modify(|own| own.count += refused.count)
                .or_insert_with(|| refused.clone());
        }
        self.skip(&other.skipped_files);
        self.files.extend_from_slice(&other.files);
        self.tokenising_seconds += other.tokenising_seconds;
    }

    /// Counts skipped files.
    pub(super) fn skip(&mut self, skipped: &BTreeMap<Skipped, u64>) {
        for (&reason, count) in skipped {
            *self.skipped_files.entry(reason).or_default() += count;
        }
    }

    /// The inputs, for the attribute `source` of the token files.
    pub(super) fn source(&self) -> String {
        let files: Vec<_> = self
            .files
            .iter()
            .map(|file| {
                let path = file.path.to_string_lossy();
                serde_json::json!({ "path": path, "bytes": file.bytes, "blake3": file.hash })
            })
            .collect();
        serde_json::Value::from(files).to_string()
    }

    pub(super) fn no_documents(&self, inputs: &[PathBuf]) -> ShardsError {
        ShardsError::NoDocuments { inputs: names(inputs), reasons: self.left_out().join("; ") }
    }

    /// Text that gave no document: the first damaged files, and each reason of refused text and skipped files.
    pub(super) fn left_out(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self
            .damaged()
            .take(3)
            .map(|(file, damage)| format!("{}: {damage}", file.path.display()))
            .collect();
        reasons.extend(self.refused.shown());
        reasons.extend(
            self.skipped_files.iter().map(|(reason, count)| format!("{count} files skipped: {reason}")),
        );
        reasons
    }

    /// The seconds of the call and of its tokenizer, in words. Those of a tokenizer that an earlier call trained are none of this
    /// call.
    fn times(&self) -> String {
        let TokenizerReport { trained_before, seconds, .. } = &self.tokenizer;
        if *trained_before {
            format!("{:.1} s; tokenizer trained before, in {seconds:.1} s", self.seconds)
        } else {
            format!("{:.1} s, of which tokenizer {seconds:.1} s", self.seconds)
        }
    }
}

impl Display for PrepareReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        if self.skipped {
            writeln!(
                f,
                "nothing to do: inputs, configuration and outputs are unchanged since the run reported here"
            )?;
        }
        let files = self.files.len();
        let stored: u64 = self.files.iter().map(|file| file.bytes).sum();
        writeln!(f, "{files} files, {:.1} MB as stored", stored as f64 / 1e6)?;
        writeln!(f, "tokenizer   {} tokens, hash {:.16}", self.tokenizer.vocab_size, self.tokenizer.hash)?;
        for (name, split) in [("train", &self.train), ("validation", &self.validation)] {
            writeln!(
                f,
                "{name:<12}{} documents, {} tokens, {:.1} MB of text, {:.2} bytes per token",
                split.documents,
                split.tokens,
                split.text_bytes as f64 / 1e6,
                split.bytes_per_token(),
            )?;
        }
        if self.refused.0.is_empty() {
            writeln!(f, "refused     nothing")?;
        }
        for (reason, refused) in &self.refused.0 {
            writeln!(f, "refused     {:>8} × {reason}, first at {}", refused.count, refused.first)?;
        }
        for (file, damage) in self.damaged() {
            writeln!(
                f,
                "damaged     {}: {damage}; {} documents kept from it",
                file.path.display(),
                file.documents
            )?;
        }
        for (reason, count) in &self.skipped_files {
            writeln!(f, "skipped     {count:>8} files: {reason}")?;
        }
        let documents = self.train.documents + self.validation.documents;
        let text = (self.train.text_bytes + self.validation.text_bytes) as f64 / 1e6;
        let seconds = self.tokenising_seconds.max(1e-9);
        write!(
            f,
            "time        {}; {:.0} documents/s, {:.1} MB of text/s",
            self.times(),
            documents as f64 / seconds,
            text / seconds,
        )
    }
}
