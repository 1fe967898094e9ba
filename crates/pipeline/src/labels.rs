//! Labels of the documents of a run, from a label file.
//!
//! Each line of a label file is a JSON object with `url` and `domain`. Token files hold no addresses, so the text that they
//! were made of is read again, by the reader and with the settings of `prepare`: first the addresses of a file, then the texts.
//! Both name the line or row. The tokens of the text identify the document.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_eval::Domains;
use dipaco_routing::PrefixLabels;
use dipaco_shards::{
    FileEnd, InputFile, NoProgress, PrepareConfig, PrepareReport, ReadRecord, ReadSettings, ShardsError,
    TokenSet, Tokenizer, list_inputs, read_documents, read_lines,
};
use dipaco_telemetry::{Progress, ProgressUnit};
use rayon::prelude::*;
use serde::Deserialize;

use crate::error::PipelineError;
use crate::label_error::LabelError;
use crate::prepared::{token_file, tokenizer};
use crate::run_directory::RunDirectory;

/// Number of documents that are tokenised at the same time.
const BATCH: usize = 1024;
/// Upper bound on a line of a label file, in bytes.
const LONGEST_LABEL: usize = 1 << 20;
/// Field of JSON lines, or column of Parquet files, with the address of a document, as in C4.
const ADDRESS: &str = "url";

#[derive(Deserialize)]
struct Label {
    url: String,
    domain: String,
}

/// Labels the validation documents of a run. `prepare` has the settings that the text was prepared with, `labels` is the label
/// file, and `text` the text of the documents; when `text` is empty, the files that `prepare` read. Blocks.
///
/// # Errors
/// When a file can't be read, when the label file has another form or is of another text, when the text has no addresses, or
/// when `cancel` was set.
pub fn domains(
    run: &RunDirectory,
    prepare: &PrepareConfig,
    labels: &Path,
    text: &[PathBuf],
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<Domains, PipelineError> {
    let known = read_labels(labels)?;
    let validation = token_file(run, &run.validation_tokens())?;
    let files = if text.is_empty() { prepared_from(run, Prepared::Validation)? } else { text.to_vec() };
    let mut domains = Domains::of_documents(&validation);
    let text = LabelledText { tokenizer: tokenizer(run)?, prepare, file: labels, labels: &known };
    let first_url = text.read(&files, progress, cancel, &mut |tokens, domain| {
        domains.label(tokens, domain);
        domains.unlabelled() > 0
    })?;
    check(domains, labels, &validation, &known, first_url)
}

/// Labels of all documents of a run, by their first `prefix_tokens` tokens. `prepare` has the settings that the text was prepared
/// with. The text is the files that `prepare` read. Blocks.
///
/// # Errors
/// When a file can't be read, when the label file has another form, when the text has no addresses, or when `cancel` was set.
pub fn prefix_labels(
    run: &RunDirectory,
    prepare: &PrepareConfig,
    labels: &Path,
    prefix_tokens: usize,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<PrefixLabels, PipelineError> {
    let known = read_labels(labels)?;
    let files = prepared_from(run, Prepared::All)?;
    let mut found = PrefixLabels::new(prefix_tokens);
    let text = LabelledText { tokenizer: tokenizer(run)?, prepare, file: labels, labels: &known };
    text.read(&files, progress, cancel, &mut |tokens, domain| {
        found.label(tokens, domain);
        true
    })?;
    Ok(found)
}

/// Checks that a label file can be read. Blocks.
///
/// # Errors
/// When the file can't be read, or when it has another form.
pub fn check_file(labels: &Path) -> Result<(), PipelineError> {
    read_labels(labels).map(drop)
}

/// Reads a label file: domains by address.
fn read_labels(file: &Path) -> Result<HashMap<String, String>, PipelineError> {
    let mut labels = HashMap::new();
    let mut wrong = None;
    read_lines(file, LONGEST_LABEL, &mut |line, text| match serde_json::from_slice::<Label>(text) {
        Ok(Label { url, domain }) => {
            labels.insert(url, domain);
            ControlFlow::Continue(())
        }
        Err(_) if text.iter().all(u8::is_ascii_whitespace) => ControlFlow::Continue(()),
        Err(source) => {
            wrong = Some((line, source));
            ControlFlow::Break(())
        }
    })?;
    match wrong {
        Some((line, source)) => Err(LabelError::Line { file: file.to_owned(), line, source }.into()),
        None => Ok(labels),
    }
}

/// A part of the text that `prepare` read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prepared {
    /// The files given with `--validation`, or all files when the validation text was split off.
    Validation,
    /// All files.
    All,
}

/// The files of prepared text.
fn prepared_from(run: &RunDirectory, part: Prepared) -> Result<Vec<PathBuf>, PipelineError> {
    let file = run.data().join("report.json");
    let failed = |source| PipelineError::Io { action: "read", path: file.clone(), source };
    let text = std::fs::read(&file).map_err(failed)?;
    let report: PrepareReport = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    let own = report.files.iter().any(|file| file.validation);
    let wanted = |validation: bool| part == Prepared::All || validation == own;
    let files: Vec<PathBuf> =
        report.files.into_iter().filter(|file| wanted(file.validation)).map(|file| file.path).collect();
    match files.iter().find(|file| !file.exists()) {
        None => Ok(files),
        Some(missing) => {
            let file = missing.clone();
            Err(match part {
                Prepared::Validation => LabelError::ValidationTextGone { file },
                Prepared::All => LabelError::TextGone { file },
            }
            .into())
        }
    }
}

/// Called with the tokens of a document and its label; returns false to end the reading.
type Visit<'a> = dyn FnMut(&[u32], &str) -> bool + 'a;

/// Reads text and labels its documents.
struct LabelledText<'a> {
    tokenizer: Tokenizer,
    /// Settings that the text was prepared with.
    prepare: &'a PrepareConfig,
    /// The label file.
    file: &'a Path,
    /// Its labels.
    labels: &'a HashMap<String, String>,
}

impl LabelledText<'_> {
    /// Passes the labelled documents of some files to `visit`, in their order. Returns the first address of the text.
    fn read(
        &self,
        files: &[PathBuf],
        progress: &Progress,
        cancel: &AtomicBool,
        visit: &mut Visit<'_>,
    ) -> Result<String, PipelineError> {
        let settings = self.prepare.reading();
        let files = list_inputs(files)?;
        let task = progress.task("read labelled text", Some(files.bytes()), ProgressUnit::Bytes);
        let (mut first_url, mut batch, mut done) = (None, Vec::new(), 0);
        for file in &files.files {
            let labels = self.labels_of(file, cancel, &mut first_url)?;
            let mut goes_on = Ok(true);
            if !labels.is_empty() {
                let end = read_documents(file, &settings, &NoProgress, &mut |record| {
                    if let ReadRecord::Document { text, line } = record
                        && let Some(&domain) = labels.get(&line)
                    {
                        batch.push((text, domain));
                    }
                    if batch.len() >= BATCH {
                        goes_on = self.visit(std::mem::take(&mut batch), visit);
                    }
                    if matches!(goes_on, Ok(true)) { go_on(cancel) } else { ControlFlow::Break(()) }
                })?;
                warn_of_damage(file, &end);
            }
            done += file.bytes;
            task.set(done);
            if cancel.load(Ordering::Relaxed) {
                return Err(dipaco_eval::EvalError::Cancelled.into());
            }
            if !goes_on? {
                break;
            }
        }
        self.visit(batch, visit)?;
        task.finish();
        let none = || LabelError::NoAddress {
            labels: self.file.to_owned(),
            files: files.files.len(),
            first: files.files.first().map(|file| file.path.clone()).unwrap_or_default(),
        };
        Ok(first_url.ok_or_else(none)?)
    }

    /// The labels of the documents of a file by their line or row. The first address of the text goes to `first_url`.
    fn labels_of(
        &self,
        file: &InputFile,
        cancel: &AtomicBool,
        first_url: &mut Option<String>,
    ) -> Result<HashMap<u64, &str>, ShardsError> {
        let mut labels = HashMap::new();
        if !file.has_fields() {
            return Ok(labels);
        }
        let settings = ReadSettings { text_field: ADDRESS.to_owned(), ..self.prepare.reading() };
        let end = read_documents(file, &settings, &NoProgress, &mut |record| {
            if let ReadRecord::Document { text: url, line } = record {
                if let Some(domain) = self.labels.get(&url) {
                    labels.insert(line, domain.as_str());
                }
                first_url.get_or_insert(url);
            }
            go_on(cancel)
        })?;
        warn_of_damage(file, &end);
        Ok(labels)
    }

    /// Tokenises documents and passes them on. Returns false when `visit` does.
    fn visit(&self, batch: Vec<(String, &str)>, visit: &mut Visit<'_>) -> Result<bool, ShardsError> {
        let end_of_text = self.tokenizer.end_of_text();
        let encode = |(text, domain): (String, _)| {
            let mut tokens = self.tokenizer.encode(&text)?;
            tokens.push(end_of_text);
            Ok((tokens, domain))
        };
        let encoded: Vec<(Vec<u32>, &str)> =
            batch.into_par_iter().map(encode).collect::<Result<_, ShardsError>>()?;
        let mut goes_on = true;
        for (tokens, domain) in &encoded {
            goes_on &= visit(tokens, domain);
        }
        Ok(goes_on)
    }
}

/// Goes on unless the caller asked to stop.
fn go_on(cancel: &AtomicBool) -> ControlFlow<()> {
    if cancel.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Tells of a file that can't be read to its end. `prepare` has kept the documents before the damage, too.
fn warn_of_damage(file: &InputFile, end: &FileEnd) {
    if let Some(damage) = &end.damage {
        tracing::warn!("{}: {damage}; what can't be read gets no label", file.path.display());
    }
}

/// Checks the labels. A file that labels fewer than half of the documents is rejected as one of another text.
fn check(
    domains: Domains,
    labels: &Path,
    validation: &TokenSet,
    known: &HashMap<String, String>,
    first_url: String,
) -> Result<Domains, PipelineError> {
    let (documents, unlabelled) = (domains.documents(), domains.unlabelled());
    let labelled = documents - unlabelled;
    if labelled * 2 < documents {
        let example = |url: Option<&String>| url.map_or_else(|| "none".to_owned(), |url| format!("{url:?}"));
        return Err(LabelError::OtherText {
            labels: labels.to_owned(),
            known: known.len(),
            label: example(known.keys().min()),
            url: example(Some(&first_url)),
            documents,
            labelled,
            tokens: validation.path().to_owned(),
        }
        .into());
    }
    if unlabelled > 0 {
        tracing::warn!(labels = %labels.display(), unlabelled, documents, "some validation documents have no label");
    }
    Ok(domains)
}

#[cfg(test)]
mod tests;
