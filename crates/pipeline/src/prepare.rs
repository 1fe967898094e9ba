//! Preparing the text of a run: tokenizer and token files.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dipaco_config::RunConfig;
use dipaco_shards::{PrepareProgress, PrepareReport, PrepareWork};
use dipaco_telemetry::{Progress, ProgressUnit, Task, human};

use crate::error::PipelineError;
use crate::run_directory::RunDirectory;

/// Turns text into the run's tokenizer and token files. Finished work is kept. `inputs` and `validation` are files and
/// folders; without `validation`, a part of the inputs becomes the validation text. Blocks.
///
/// # Errors
/// [`PipelineError::Shards`] when the text can't be read, the files can't be written, or `cancel` was set.
pub fn prepare(
    run: &RunDirectory,
    config: &RunConfig,
    inputs: &[PathBuf],
    validation: &[PathBuf],
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<PrepareReport, PipelineError> {
    prepare_part(run, config, inputs, validation, PrepareWork::All, progress, cancel)
}

/// Does one part of the work, when several machines share it. Blocks.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_part(
    run: &RunDirectory,
    config: &RunConfig,
    inputs: &[PathBuf],
    validation: &[PathBuf],
    work: PrepareWork,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<PrepareReport, PipelineError> {
    let (settings, watcher) = (run.located(&config.prepare), FileProgress::new(progress));
    Ok(dipaco_shards::prepare(&settings, inputs, validation, work, &run.data(), &watcher, cancel)?)
}

/// A report in one line.
pub fn summary(report: &PrepareReport) -> String {
    let tokens = report.train.tokens + report.validation.tokens;
    let documents = report.train.documents + report.validation.documents;
    let text = format!("{} documents, {} tokens", human::integer(documents), human::integer(tokens));
    if report.skipped { format!("{text}; they were there already") } else { text }
}

/// Shows the progress of a step over files as a bar.
pub struct FileProgress {
    progress: Progress,
    task: Mutex<Option<Task>>,
    documents: AtomicU64,
}

impl FileProgress {
    /// A bar on `progress`.
    pub fn new(progress: &Progress) -> Self {
        Self { progress: progress.clone(), task: Mutex::new(None), documents: AtomicU64::new(0) }
    }

    fn with(&self, change: impl FnOnce(&mut Option<Task>)) {
        change(&mut self.task.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl PrepareProgress for FileProgress {
    fn begin(&self, step: &str, total_bytes: u64) {
        self.documents.store(0, Ordering::Relaxed);
        let total = (total_bytes > 0).then_some(total_bytes);
        self.with(|task| *task = Some(self.progress.task(step, total, ProgressUnit::Bytes)));
    }

    fn advance(&self, bytes: u64, documents: u64) {
        let documents = self.documents.fetch_add(documents, Ordering::Relaxed) + documents;
        self.with(|task| {
            if let Some(task) = task {
                if documents > 0 {
                    task.note(format!("{documents} documents"));
                }
                task.add(bytes);
            }
        });
    }

    fn end(&self) {
        self.with(|task| {
            if let Some(task) = task.take() {
                task.finish();
            }
        });
    }
}
