//! Preparing the text of a run: tokenizer and token files.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dipaco_config::RunConfig;
use dipaco_routing::shard_file_name;
use dipaco_shards::{
    PrepareFolder, PrepareProgress, PrepareReport, PrepareWork, ShardsError, TokenSetManifest,
    prepared_tokenizer,
};
use dipaco_telemetry::{Progress, ProgressUnit, Task, human};
use dipaco_topology::PathId;

use crate::error::PipelineError;
use crate::extend::shows_lent_text;
use crate::extend_error::ExtendError;
use crate::prepared::tokenizer_file;
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
    check_inputs_beside(&[], inputs, validation)
}

/// The same for the text of a run that may not have begun. As soon as it begins, its folders are no text, so an input that is one
/// of them is refused before.
///
/// # Errors
/// As [`check_inputs`].
pub fn check_inputs_of(
    run: &RunDirectory,
    inputs: &[PathBuf],
    validation: &[PathBuf],
) -> Result<(), PipelineError> {
    check_inputs_beside(&[run.root().to_owned(), run.data()], inputs, validation)
}

/// Checks inputs of which the files in some folders are no text.
fn check_inputs_beside(
    folders: &[PathBuf],
    inputs: &[PathBuf],
    validation: &[PathBuf],
) -> Result<(), PipelineError> {
    dipaco_shards::check_inputs(inputs, validation, folders)?;
    refuse_stores(inputs, validation)
}

/// Turns text into the run's tokenizer and token files. Finished work is kept. `inputs` and `validation` are files and
/// folders; without `validation`, a part of the inputs becomes the validation text. Call [`check_inputs_of`] before: the manifests
/// of a store among the inputs would be text. Blocks.
///
/// # Errors
/// [`PipelineError::Shards`] when the text can't be read, gives another tokenizer or end-of-text token than that of the trained
/// paths, the files can't be written, or `cancel` was set; [`PipelineError::Pretrained`] after an import that was broken off;
/// [`PipelineError::Extend`] when the run shows the text of a finished run, and this is another text.
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
    run.imported().check_whole()?;
    // Labels are looked up in the text again, by a command that may run in another folder.
    let (inputs, validation) = (absolute(inputs)?, absolute(validation)?);
    let (settings, watcher, data) = (run.located(&config.prepare), FileProgress::new(progress), run.data());
    let lent = shows_lent_text(run)?;
    // No tokenizer has an empty hash, so another text is refused before a file changes.
    let known = if lent { Some(String::new()) } else { known_tokenizer(run)? };
    let keep = known.as_deref();
    let keep_end_of_text = keep.and_then(|hash| known_end_of_text(run, hash));
    // The store is read last: a repeated step needs no access to it.
    let unread = RefCell::new(None);
    let may_replace: &dyn Fn() -> bool = &|| match tokenizer_in_use(run) {
        Ok(in_use) => !in_use,
        Err(error) => {
            *unread.borrow_mut() = Some(error);
            false
        }
    };
    let may_replace = (!lent).then_some(may_replace);
    let into = PrepareFolder { path: &data, keep, keep_end_of_text, may_replace };
    let prepared = dipaco_shards::prepare(&settings, &inputs, &validation, work, into, &watcher, cancel);
    if let Some(error) = unread.take() {
        return Err(error);
    }
    match prepared {
        Err(ShardsError::TokenizerInUse { .. }) if lent => {
            Err(ExtendError::LentText { run: run.root().to_owned(), folder: run.data() }.into())
        }
        prepared => Ok(prepared?),
    }
}

/// Names that are the same in every folder.
fn absolute(paths: &[PathBuf]) -> Result<Vec<PathBuf>, PipelineError> {
    let absolute = |path: &PathBuf| {
        let failed = |source| PipelineError::Io { action: "resolve", path: path.clone(), source };
        std::path::absolute(path).map_err(failed)
    };
    paths.iter().map(absolute).collect()
}

/// The hash of the tokenizer that a run was routed with, or else of the one that its text or the run that it extends has; `None`
/// if there is none.
fn known_tokenizer(run: &RunDirectory) -> Result<Option<String>, PipelineError> {
    // A damaged router says nothing here; the steps that need it report it.
    if let Ok(router) = router(&run.routing(0)) {
        return Ok(Some(router.fitted_on().tokenizer_hash.clone()));
    }
    let Some(file) = tokenizer_file(run) else { return Ok(None) };
    Ok(Some(dipaco_files::file_hash(&file)?))
}

/// The end-of-text token of the documents that a run was routed with, or else of its prepared text, or of the run that it extends.
/// A list that another tokenizer made says nothing, and a list that can't be read is reported by the steps that need it.
fn known_end_of_text(run: &RunDirectory, tokenizer_hash: &str) -> Option<u32> {
    let shard = run.routing(0).train().join(shard_file_name(PathId(0)));
    let mut lists =
        [shard, run.train_tokens()].into_iter().filter_map(|list| TokenSetManifest::read(&list).ok());
    let kept = || {
        let kept = prepared_tokenizer(run.kept_tokenizer().parent()?).ok()?;
        (kept.hash() == tokenizer_hash).then(|| kept.end_of_text())
    };
    lists.find(|list| list.tokenizer_hash == tokenizer_hash).map(|list| list.end_of_text).or_else(kept)
}

/// True if the model of a run knows the tokens of one tokenizer only: its paths are trained, or its seed or its modules came from
/// another run.
fn tokenizer_in_use(run: &RunDirectory) -> Result<bool, PipelineError> {
    let failed = |source| PipelineError::Io { action: "start", path: "the event loop".into(), source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let Some(manifest) = runtime.block_on(manifest(run))? else { return Ok(false) };
    let adopted = manifest.seed.is_some_and(|seed| seed.state.is_none() && seed.imported.is_none());
    Ok(manifest.training.is_some() || manifest.extension.is_some() || adopted)
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dipaco_shards::TokenFileInfo;

    use super::*;

    #[test]
    fn other_text_of_an_untrained_run_is_prepared_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path().join("run"));
        let mut config = RunConfig::default();
        (config.prepare.vocab_size, config.prepare.validation_fraction) = (280, 0.2);
        let prepare = |word: &str| {
            let line = |i: usize| {
                let text = format!("A {word} of a {word} and a {word} of document {i}. ").repeat(3);
                format!("{}\n", serde_json::json!({ "text": text }))
            };
            let file = folder.path().join(format!("{word}.jsonl"));
            std::fs::write(&file, (0..300).map(line).collect::<String>()).unwrap();
            check_inputs_of(&run, std::slice::from_ref(&file), &[]).unwrap();
            prepare(&run, &config, &[file], &[], &Progress::hidden(), &AtomicBool::new(false)).unwrap()
        };
        let (first, second) = (prepare("story"), prepare("quantity"));
        assert_ne!(first.tokenizer.hash, second.tokenizer.hash);
        // The command counts the training of the tokenizer, which replaces the one before.
        assert!(!second.tokenizer.trained_before && second.seconds >= second.tokenizer.seconds, "{second}");
    }

    #[test]
    fn the_end_of_text_token_to_keep_is_that_of_the_shards_or_else_of_the_text() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path());
        let list = |path: &Path, tokenizer: &str, end_of_text: u32| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let tokenizer_hash = tokenizer.to_owned();
            let info =
                TokenFileInfo { tokenizer_hash, end_of_text, vocab_size: 10, ..TokenFileInfo::default() };
            TokenSetManifest::new(&info).publish(path).unwrap();
        };
        assert_eq!(known_end_of_text(&run, "own"), None);
        list(&run.train_tokens(), "own", 3);
        assert_eq!(known_end_of_text(&run, "own"), Some(3));
        let shard = run.routing(0).train().join(shard_file_name(PathId(0)));
        list(&shard, "other", 4);
        assert_eq!(known_end_of_text(&run, "own"), Some(3));
        // A stopped preparation has removed the list of the text.
        list(&shard, "own", 5);
        std::fs::remove_file(run.train_tokens()).unwrap();
        assert_eq!(known_end_of_text(&run, "own"), Some(5));
    }
}
