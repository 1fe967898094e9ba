//! The folder in which experiments work: prepared text, seed models and cells, each made once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use dipaco_config::RunConfig;
use dipaco_eval::Domains;
use dipaco_experiment::data_key;
use dipaco_shards::TokenSet;
use dipaco_telemetry::{Progress, human};
use tokio::runtime::Handle;

use super::options::{Cancel, ExperimentOptions};
use crate::error::PipelineError;
use crate::import::PretrainedModel;
use crate::imported_files::TOKENIZER;
use crate::run_directory::RunDirectory;
use crate::run_lock::RunLock;
use crate::{labels, prepare};

/// The folder in which experiments work. One process at a time may open it.
pub struct ExperimentFolder {
    pub(super) options: ExperimentOptions,
    pub(super) progress: Progress,
    pub(super) cancel: Cancel,
    /// Runs the asynchronous steps.
    pub(super) runtime: Handle,
    /// Absolute, because runs name the prepared text by it.
    out: PathBuf,
    begun: Instant,
    prepared: BTreeMap<String, PreparedText>,
    /// Hash of the label file.
    pub(super) labels_hash: Option<String>,
    /// Hash of the pretrained model.
    model_hash: Option<String>,
    /// Domains of the validation documents, by folder of prepared text.
    domains: BTreeMap<PathBuf, Arc<Domains>>,
    /// Held while this process works in the folder.
    _lock: RunLock,
}

/// Prepared text.
#[derive(Clone, Debug)]
pub(super) struct PreparedText {
    /// Its folder.
    pub(super) folder: PathBuf,
    /// Content hash of the training text, and of the pretrained model.
    pub(super) train: String,
    /// Content hashes of training and validation text, and of the pretrained model.
    pub(super) all: String,
}

impl ExperimentFolder {
    /// Creates or opens the folder `options.out` for this process alone. `runtime` runs the asynchronous steps.
    ///
    /// # Errors
    /// [`PipelineError::FolderBusy`] when another process works in the folder, [`PipelineError::Io`] when the folder or
    /// the label file can't be opened.
    pub fn open(
        options: ExperimentOptions,
        progress: &Progress,
        cancel: Cancel,
        runtime: Handle,
    ) -> Result<Self, PipelineError> {
        let folder = &options.out;
        let failed = |action| move |source| PipelineError::Io { action, path: folder.clone(), source };
        std::fs::create_dir_all(folder).map_err(failed("create"))?;
        let out = folder.canonicalize().map_err(failed("find"))?;
        let lock = RunLock::for_experiments(&out)?;
        let labels_hash = options.labels.as_deref().map(dipaco_files::file_hash).transpose()?;
        Ok(Self {
            progress: progress.clone(),
            cancel,
            runtime,
            out,
            begun: Instant::now(),
            prepared: BTreeMap::new(),
            labels_hash,
            model_hash: options.model.as_ref().map(PretrainedModel::content_hash).transpose()?,
            domains: BTreeMap::new(),
            _lock: lock,
            options,
        })
    }

    /// The folder, absolute.
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// A configuration with the tokenizer of the pretrained model, if there is one.
    pub(super) fn with_tokenizer(&self, config: &RunConfig) -> Result<RunConfig, PipelineError> {
        let mut config = config.clone();
        if let (Some(model), Some(hash)) = (&self.options.model, &self.model_hash) {
            let file = self.out.join("models").join(hash).join(TOKENIZER.name());
            config.prepare = model.tokenizer_settings(&config.prepare, file)?;
        }
        Ok(config)
    }

    /// True if some text could be used since the folder was opened.
    pub(super) fn has_texts(&self) -> bool {
        !self.prepared.is_empty()
    }

    /// True if the text was prepared before, as a configuration says.
    pub(super) fn has_text(&self, config: &RunConfig) -> bool {
        let key = data_key(config, &self.options.data, &self.options.validation);
        let run = RunDirectory::new(&self.out).with_data(Some(&self.out.join("data").join(key)));
        run.train_tokens().exists() && run.validation_tokens().exists()
    }

    /// The text, prepared as a configuration says.
    pub(super) fn text(&mut self, config: &RunConfig) -> Result<PreparedText, PipelineError> {
        let (inputs, validation) = (&self.options.data, &self.options.validation);
        let key = data_key(config, inputs, validation);
        if let Some(text) = self.prepared.get(&key) {
            return Ok(text.clone());
        }
        let folder = self.out.join("data").join(&key);
        let run = RunDirectory::new(&self.out).with_data(Some(&folder));
        let flag = &self.cancel.flag;
        let report = prepare::prepare(&run, config, inputs, validation, &self.progress, flag)?;
        self.progress.line(&prepare::summary(&report));
        let hash = |file: &Path| Ok::<_, PipelineError>(TokenSet::open(file)?.content_hash().to_owned());
        let model = self.model_hash.iter().map(|hash| format!(" {hash}")).collect::<String>();
        let train = hash(&run.train_tokens())?;
        let all = format!("{train} {}{model}", hash(&run.validation_tokens())?);
        let train = train + &model;
        let text = PreparedText { folder, train, all };
        self.prepared.insert(key, text.clone());
        Ok(text)
    }

    /// The domains of the validation documents of a text that was prepared as a configuration says; `None` without a label file.
    pub(super) fn domains(
        &mut self,
        config: &RunConfig,
        text: &PreparedText,
    ) -> Result<Option<Arc<Domains>>, PipelineError> {
        let Some(labels) = &self.options.labels else { return Ok(None) };
        if let Some(known) = self.domains.get(&text.folder) {
            return Ok(Some(known.clone()));
        }
        let run = RunDirectory::new(&self.out).with_data(Some(&text.folder));
        let flag = &self.cancel.flag;
        let found = Arc::new(labels::domains(&run, &config.prepare, labels, &[], &self.progress, flag)?);
        self.domains.insert(text.folder.clone(), found.clone());
        Ok(Some(found))
    }

    /// Shows a line with the time since the start, or ends the work when it is to stop.
    pub(super) fn say(&self, text: &str) -> Result<(), PipelineError> {
        if self.cancel.requested() {
            return Err(PipelineError::Interrupted);
        }
        self.progress.line(&format!("[{:>5}] {text}", human::duration(self.begun.elapsed())));
        Ok(())
    }
}
