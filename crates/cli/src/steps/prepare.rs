//! Preparing the text of a run.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dipaco_config::RunConfig;
use dipaco_shards::{PrepareReport, PrepareWork, Progress as Watcher};
use dipaco_telemetry::{Progress, ProgressUnit, Task};

use crate::run_directory::RunDirectory;
use crate::steps::error::StepError;

/// Turns text into the run's tokenizer and token files.
pub(crate) fn prepare(
    run: &RunDirectory,
    config: &RunConfig,
    inputs: &[PathBuf],
    validation: &[PathBuf],
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<PrepareReport, StepError> {
    some(run, config, inputs, validation, PrepareWork::All, progress, cancel)
}

/// Does some of the work, when machines share it.
pub(crate) fn some(
    run: &RunDirectory,
    config: &RunConfig,
    inputs: &[PathBuf],
    validation: &[PathBuf],
    work: PrepareWork,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<PrepareReport, StepError> {
    let watcher = Shown::new(progress);
    Ok(dipaco_shards::prepare(&config.prepare, inputs, validation, work, &run.data(), &watcher, cancel)?)
}

/// The progress of a step over files as a bar.
pub(crate) struct Shown {
    progress: Progress,
    task: Mutex<Option<Task>>,
    documents: AtomicU64,
}

impl Shown {
    pub(crate) fn new(progress: &Progress) -> Self {
        Self { progress: progress.clone(), task: Mutex::new(None), documents: AtomicU64::new(0) }
    }

    fn with(&self, change: impl FnOnce(&mut Option<Task>)) {
        change(&mut self.task.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Watcher for Shown {
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
