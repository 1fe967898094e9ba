//! Domains of the validation documents of a run, from a label file.
//!
//! Each line of a label file is a JSON object with `url` and `domain`. Token files hold no addresses, so the text that they
//! were made of is read again: each of its lines has an address and a text, and the tokens of the text identify the
//! document.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_eval::Domains;
use dipaco_shards::{PrepareReport, TokenFile, Tokenizer, list_inputs, read_lines};
use dipaco_telemetry::{Progress, ProgressUnit};
use rayon::prelude::*;
use serde::Deserialize;

use crate::error::PipelineError;
use crate::prepared::{token_file, tokenizer};
use crate::run_directory::RunDirectory;

/// Number of documents that are tokenised at the same time.
const BATCH: usize = 1024;
/// Upper bound on a line of a label file, in bytes.
const LONGEST_LABEL: usize = 1 << 20;

#[derive(Deserialize)]
struct Label {
    url: String,
    domain: String,
}

#[derive(Deserialize)]
struct Document {
    url: String,
    text: String,
}

/// Labels the validation documents of a run. `labels` is the label file and `text` the text of the documents; when `text`
/// is empty, the files that `prepare` read. Blocks.
///
/// # Errors
/// When a file can't be read, when the label file has another form or is of another text, or when `cancel` was set.
pub fn domains(
    run: &RunDirectory,
    labels: &Path,
    text: &[PathBuf],
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<Domains, PipelineError> {
    let known = read_labels(labels)?;
    let validation = token_file(run, &run.validation_tokens())?;
    let files = if text.is_empty() { prepared_from(run)? } else { text.to_vec() };
    let longest = dipaco_shards::PrepareConfig::default().max_line_bytes;
    let mut reader = Reader {
        tokenizer: tokenizer(run)?,
        labels: &known,
        domains: Domains::of_documents(&validation),
        batch: Vec::new(),
        first_url: None,
        failed: None,
    };
    let files = list_inputs(&files)?;
    let task = progress.task("read labelled text", Some(files.bytes()), ProgressUnit::Bytes);
    let mut done = 0;
    for file in &files.files {
        read_lines(&file.path, longest, &mut |_, line| {
            reader.line(line);
            let ended = reader.failed.is_some() || reader.domains.unlabelled() == 0;
            if ended || cancel.load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        reader.flush();
        done += file.bytes;
        task.set(done);
        if cancel.load(Ordering::Relaxed) {
            return Err(dipaco_eval::EvalError::Cancelled.into());
        }
    }
    task.finish();
    reader.finish(labels, &validation)
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
        Some((line, source)) => Err(PipelineError::Label { file: file.to_owned(), line, source }),
        None => Ok(labels),
    }
}

/// The files of the validation text: the files given with `--validation`, or all files when it was split off.
fn prepared_from(run: &RunDirectory) -> Result<Vec<PathBuf>, PipelineError> {
    let file = run.data().join("report.json");
    let failed = |source| PipelineError::Io { action: "read", path: file.clone(), source };
    let text = std::fs::read(&file).map_err(failed)?;
    let report: PrepareReport = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    let own = report.files.iter().any(|file| file.validation);
    let files: Vec<PathBuf> =
        report.files.into_iter().filter(|file| file.validation == own).map(|file| file.path).collect();
    match files.iter().find(|file| !file.exists()) {
        Some(missing) => Err(PipelineError::LabelledText { file: missing.clone() }),
        None => Ok(files),
    }
}

/// Reads text and labels its documents.
struct Reader<'a> {
    tokenizer: Tokenizer,
    labels: &'a HashMap<String, String>,
    domains: Domains,
    /// Documents to tokenise next, with their domains.
    batch: Vec<(String, &'a str)>,
    /// The first address in the text, for the error about a label file of another text.
    first_url: Option<String>,
    failed: Option<dipaco_shards::ShardsError>,
}

impl Reader<'_> {
    /// Reads a line of text. A line without address and text is skipped, because it can not be labelled.
    fn line(&mut self, line: &[u8]) {
        let Ok(Document { url, text }) = serde_json::from_slice(line) else { return };
        if let Some(domain) = self.labels.get(&url) {
            self.batch.push((text, domain));
        }
        self.first_url.get_or_insert(url);
        if self.batch.len() >= BATCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let end_of_text = self.tokenizer.end_of_text();
        let encode = |(text, domain): (String, _)| {
            let mut tokens = self.tokenizer.encode(&text)?;
            tokens.push(end_of_text);
            Ok((tokens, domain))
        };
        let encoded: Result<Vec<_>, _> =
            std::mem::take(&mut self.batch).into_par_iter().map(encode).collect();
        match encoded {
            Ok(encoded) => encoded.iter().for_each(|(tokens, domain)| self.domains.label(tokens, domain)),
            Err(error) => self.failed = Some(error),
        }
    }

    /// The labels. A file that labels fewer than half of the documents is rejected as one of another text.
    fn finish(self, labels: &Path, validation: &TokenFile) -> Result<Domains, PipelineError> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        let (documents, unlabelled) = (self.domains.documents(), self.domains.unlabelled());
        let labelled = documents - unlabelled;
        if labelled * 2 < documents {
            let example =
                |url: Option<&String>| url.map_or_else(|| "none".to_owned(), |url| format!("{url:?}"));
            return Err(PipelineError::OtherLabels {
                labels: labels.to_owned(),
                known: self.labels.len(),
                label: example(self.labels.keys().min()),
                url: example(self.first_url.as_ref()),
                documents,
                labelled,
                tokens: validation.path().to_owned(),
            });
        }
        if unlabelled > 0 {
            tracing::warn!(labels = %labels.display(), unlabelled, documents, "some validation documents have no label");
        }
        Ok(self.domains)
    }
}
