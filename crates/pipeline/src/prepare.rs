//! Preparing the text of a run: tokenizer and token files.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dipaco_config::RunConfig;
use dipaco_shards::{PrepareFolder, PrepareProgress, PrepareReport, PrepareWork, ShardsError};
use dipaco_telemetry::{Progress, ProgressUnit, Task, human};

use crate::error::PipelineError;
use crate::route::router;
use crate::run_directory::RunDirectory;
use crate::store::manifest;
use crate::stores_in_text::refuse_stores;

/// Looks whether the inputs exist, leave files to train on, and lie around no store of a run. Reads none of the text. A command
/// looks before its first change, so that a mistake leaves nothing behind. [`prepare`] does not look again.
///
/// # Errors
/// [`PipelineError::Shards`] when an input does not exist or can't be listed, or no file is left for training, and
/// [`PipelineError::StoreInText`].
pub fn check_inputs(inputs: &[PathBuf], validation: &[PathBuf]) -> Result<(), PipelineError> {
    dipaco_shards::check_inputs(inputs, validation)?;
    refuse_stores(inputs, validation)
}

/// Turns text into the run's tokenizer and token files. Finished work is kept. `inputs` and `validation` are files and
/// folders; without `validation`, a part of the inputs becomes the validation text. Call [`check_inputs`] before: the manifests
/// of a store among the inputs would be text. Blocks.
///
/// # Errors
/// [`PipelineError::Shards`] when the text can't be read, gives another tokenizer than that of the trained paths, the files
/// can't be written, or `cancel` was set.
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
    let (settings, watcher, data) = (run.located(&config.prepare), FileProgress::new(progress), run.data());
    let prepare = |keep: Option<&str>| {
        let into = PrepareFolder { path: &data, keep };
        dipaco_shards::prepare(&settings, inputs, validation, work, into, &watcher, cancel)
    };
    match prepare(known_tokenizer(run)?.as_deref()) {
        // The store is read last: a repeated step needs no access to it.
        Err(ShardsError::TokenizerInUse { .. }) if !tokenizer_in_use(run)? => Ok(prepare(None)?),
        prepared => Ok(prepared?),
    }
}

/// The hash of the tokenizer that a run was routed with, or else of the one that it has; `None` if it has neither.
fn known_tokenizer(run: &RunDirectory) -> Result<Option<String>, PipelineError> {
    // A damaged router says nothing here; the steps that need it report it.
    if let Ok(router) = router(&run.routing(0)) {
        return Ok(Some(router.fitted_on().tokenizer_hash.clone()));
    }
    let file = run.tokenizer();
    Ok(if file.exists() { Some(dipaco_files::file_hash(&file)?) } else { None })
}

/// True if the model of a run knows the tokens of one tokenizer only: its paths are trained, or its seed came from another run.
fn tokenizer_in_use(run: &RunDirectory) -> Result<bool, PipelineError> {
    let failed = |source| PipelineError::Io { action: "start", path: "the event loop".into(), source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let Some(manifest) = runtime.block_on(manifest(run))? else { return Ok(false) };
    let adopted = manifest.seed.is_some_and(|seed| seed.state.is_none() && seed.imported.is_none());
    Ok(manifest.training.is_some() || adopted)
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
