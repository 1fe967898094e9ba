//! Beginning a run with a pretrained model: a folder in Hugging Face's format or a GGUF file becomes the run's seed, tokenizer
//! and settings.

use std::path::{Path, PathBuf};

use dipaco_config::{Pretrained, RunConfig};
use dipaco_model::{
    GgufModel, ModelConfig, ModuleWeights, PretrainedSettings, PretrainedWeights, TensorIndex, untie,
};
use dipaco_shards::{PrepareConfig, Tokenizer};
use dipaco_train::{import_seed, open_run};
use serde::Serialize;
use serde_json::Value;

use crate::error::PipelineError;
use crate::import_memory::ImportMemory;
use crate::imported_files::{
    CONFIG, CopiedFile, GENERATION, INDEX, LARGEST_INDEX, SPECIAL_TOKENS, TOKENIZER, TOKENIZER_CONFIG,
    WEIGHTS, copied_from_folder, read_small,
};
use crate::imported_tokens::{added_token, named_token};
use crate::pretrained_error::PretrainedError;
use crate::run_directory::RunDirectory;
use crate::seed::run_id;
use crate::store::open_store;
use crate::train::check_settings;
use crate::{files, prepared};

/// A pretrained model, before its large files are read.
#[derive(Clone, Debug)]
pub struct PretrainedModel {
    /// The folder in Hugging Face's format, or the GGUF file.
    path: PathBuf,
    /// The bytes of a GGUF file.
    gguf: Option<Vec<u8>>,
    settings: PretrainedSettings,
    copied: Vec<(CopiedFile, Vec<u8>)>,
    /// True if texts in training began with the model's begin token, as far as a GGUF file says. A folder says it in its
    /// small files.
    begin_token: Option<bool>,
    memory: ImportMemory,
}

impl PretrainedModel {
    /// Reads a GGUF file, or the small files of a folder in Hugging Face's format.
    ///
    /// # Errors
    /// [`PipelineError::Io`] when a file can't be read, [`PipelineError::Pretrained`] when there is no model, a file
    /// is larger than such a file can be, or this machine can't hold it, and [`PipelineError::Import`] when the model is not
    /// one that this program computes.
    pub fn open(path: &Path) -> Result<Self, PipelineError> {
        Self::open_within(path, ImportMemory::of_this_machine())
    }

    fn open_within(path: &Path, memory: ImportMemory) -> Result<Self, PipelineError> {
        let missing = |file: &str| PretrainedError::NoFile { path: path.to_owned(), file: file.to_owned() };
        let (gguf, begin_token, mut copied) = if path.is_dir() {
            (None, None, copied_from_folder(path)?)
        } else if path.exists() {
            let name = path.display().to_string();
            // The error names what is wrong with the first bytes. Any other file may have any length.
            let first = ImportMemory::read_first(path, 4)?;
            if !GgufModel::begins(&first) {
                GgufModel::parse(&first, &name)?;
            }
            let bytes = memory.read(path)?;
            let model = GgufModel::parse(&bytes, &name)?;
            let (begin_token, copied) = (model.adds_begin_token()?, copied_from_gguf(&model)?);
            (Some(bytes), Some(begin_token), copied)
        } else {
            return Err(PretrainedError::NoModel { path: path.to_owned() }.into());
        };
        for (file, bytes) in &copied {
            if bytes.len() as u64 > file.largest() {
                return Err(PretrainedError::TooLarge {
                    file: path.join(file.name()),
                    largest: file.largest(),
                }
                .into());
            }
            file.check(bytes)?;
        }
        copied.sort_by_key(|(file, _)| CopiedFile::ALL.iter().position(|other| other == file));
        let of = |wanted: CopiedFile| {
            copied.iter().find(|(file, _)| *file == wanted).map(|(_, bytes)| bytes.as_slice())
        };
        let config = of(CONFIG).ok_or_else(|| missing(CONFIG.name()))?;
        let settings = PretrainedSettings::parse(config, CONFIG.name())?;
        of(TOKENIZER).ok_or_else(|| missing(TOKENIZER.name()))?;
        Ok(Self { path: path.to_owned(), gguf, settings, copied, begin_token, memory })
    }

    /// The shape that the model gives a run's configuration.
    pub fn pretrained(&self) -> Pretrained {
        Pretrained { path: self.path.clone(), model: self.settings.model.clone() }
    }

    /// The content hash of the model: of its small files and of its weights, which are read.
    ///
    /// # Errors
    /// When a file of the model can't be used.
    pub fn content_hash(&self) -> Result<String, PipelineError> {
        let mut hasher = blake3::Hasher::new();
        for (file, bytes) in &self.copied {
            hasher.update(file.name().as_bytes()).update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        }
        let weights = self.weights()?;
        for value in weights.values {
            hasher.update(&value.to_le_bytes());
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Writes the tokenizer to `file`, and returns the settings of [`prepare`](crate::prepare::prepare) for it.
    ///
    /// # Errors
    /// When the tokenizer can't be used, or the file can't be written.
    pub(crate) fn tokenizer_settings(
        &self,
        prepare: &PrepareConfig,
        file: PathBuf,
    ) -> Result<PrepareConfig, PipelineError> {
        let tokenizer = self.tokenizer(prepare.end_of_text.as_deref())?;
        files::write(&file, self.bytes(TOKENIZER))?;
        let end_of_text = Some(tokenizer.end_of_text_text());
        Ok(PrepareConfig { tokenizer: Some(file), end_of_text, ..prepare.clone() })
    }

    fn bytes(&self, wanted: CopiedFile) -> &[u8] {
        self.copied.iter().find(|(file, _)| *file == wanted).map_or(&[], |(_, bytes)| bytes)
    }

    /// The tokenizer, whose end-of-text token is `end_of_text`, or one of the usual names, or the token that ends the
    /// model's texts.
    fn tokenizer(&self, end_of_text: Option<&str>) -> Result<Tokenizer, PipelineError> {
        let (json, name) = (self.bytes(TOKENIZER), self.path.join(TOKENIZER.name()));
        self.memory.check(&name, (json.len() as u64).saturating_mul(Tokenizer::MEMORY_OF_A_BYTE))?;
        let name = name.display().to_string();
        let usual = Tokenizer::from_bytes(json, end_of_text, &name);
        match (usual, self.eos_token()) {
            (Err(_), Some(token)) if end_of_text.is_none() => {
                Ok(Tokenizer::from_bytes(json, Some(&token), &name)?)
            }
            (usual, _) => Ok(usual?),
        }
    }

    /// The text of the token that ends a text: the one that the settings of the tokenizer name, or else the first end token
    /// of the settings.
    fn eos_token(&self) -> Option<String> {
        self.named_token("eos_token").or_else(|| {
            let ends = |file: CopiedFile| PretrainedSettings::end_tokens_of(self.bytes(file), file.name());
            let end = [GENERATION, CONFIG].into_iter().find_map(|file| ends(file).ok()?.first().copied())?;
            added_token(self.bytes(TOKENIZER), end)
        })
    }

    /// The text of a special token that the settings of the tokenizer name.
    fn named_token(&self, key: &str) -> Option<String> {
        named_token(&self.json(TOKENIZER_CONFIG), &self.json(SPECIAL_TOKENS), key)
    }

    /// The text of the token that stood before each text when the model was trained.
    fn first_token(&self, tokenizer: &Tokenizer) -> Option<String> {
        match self.begin_token.or_else(|| self.json(TOKENIZER_CONFIG).get("add_bos_token")?.as_bool()) {
            Some(true) => self.named_token("bos_token"),
            Some(false) => None,
            None => tokenizer.first_token(),
        }
    }

    /// The content of a file of JSON, null if the model has none.
    fn json(&self, file: CopiedFile) -> Value {
        serde_json::from_slice(self.bytes(file)).unwrap_or_default()
    }

    /// Reads the weights, and returns them with the shape of the model and its tokenizer, whose end-of-text token is found as in
    /// an import with this `prepare.end_of_text`.
    ///
    /// # Errors
    /// When a file of the model can't be used.
    pub fn read(&self, end_of_text: Option<&str>) -> Result<(ModelConfig, ModuleWeights), PipelineError> {
        let tokenizer = self.tokenizer(end_of_text)?;
        Ok((self.settings.model.with_vocabulary(tokenizer.vocab_size() as usize)?, self.weights()?))
    }

    /// Reads the weights, one file at a time.
    fn weights(&self) -> Result<ModuleWeights, PipelineError> {
        if let Some(bytes) = &self.gguf {
            let name = self.path.display().to_string();
            let model = GgufModel::parse(bytes, &name)?;
            let expected = PretrainedWeights::new(&self.settings, model.tensors(), None)?;
            self.memory
                .beside(&self.path, expected.values_in_memory())?
                .check(&self.path, bytes.len() as u64)?;
            return Ok(model.weights(&self.settings)?);
        }
        // As in transformers, one file counts before an index.
        let (one, index) = (self.path.join(WEIGHTS), self.path.join(INDEX));
        let index = if one.exists() { None } else { read_small(&index, LARGEST_INDEX)? };
        let Some(index) = index else {
            let bytes = self.memory.read(&one)?;
            let tensors = PretrainedWeights::tensors_of(&bytes, WEIGHTS)?;
            let mut weights = PretrainedWeights::new(&self.settings, tensors, None)?;
            self.memory
                .beside(&self.path, weights.values_in_memory())?
                .check(&self.path, bytes.len() as u64)?;
            weights.read(&bytes, WEIGHTS)?;
            // Joining the tensors takes memory, too.
            drop(bytes);
            return Ok(weights.finish()?);
        };
        let index = TensorIndex::parse(&index, INDEX)?;
        let mut weights = PretrainedWeights::new(&self.settings, index.tensors(), Some(index.clone()))?;
        let memory = self.memory.beside(&self.path, weights.values_in_memory())?;
        for file in index.files() {
            weights.read(&memory.read(&self.path.join(file))?, file)?;
        }
        Ok(weights.finish()?)
    }
}

/// The same files, made of the keys of a GGUF file.
fn copied_from_gguf(model: &GgufModel<'_>) -> Result<Vec<(CopiedFile, Vec<u8>)>, PipelineError> {
    let known = |name: &str| CopiedFile::ALL.into_iter().find(|file| file.name() == name);
    Ok(model.files()?.into_iter().filter_map(|(name, bytes)| Some((known(name)?, bytes))).collect())
}

/// A model that became a run's seed.
#[derive(Clone, Debug, Serialize)]
pub struct ImportedModel {
    /// Number of parameters of the seed.
    pub parameters: usize,
    /// True if the run has prepared text.
    pub prepared: bool,
    /// True if the run had another seed before, or none.
    #[serde(skip)]
    pub new: bool,
    /// The run's configuration with the model's tokenizer.
    #[serde(skip)]
    pub config: RunConfig,
}

/// Makes a pretrained model the seed of a run, and its tokenizer the tokenizer of the run. `config` is the run's
/// configuration with the shape of the model ([`PretrainedModel::pretrained`]). With `restart` it replaces another seed.
///
/// The configuration is not saved, because a later step of the same command may refuse it. The caller saves
/// [`ImportedModel::config`]: without the tokenizer that it names, the preparation of text would train another one.
///
/// # Errors
/// When a file of the model can't be used, the run was prepared with another tokenizer, the run has another seed or a training
/// with other settings, or a file can't be written.
pub async fn import(
    run: &RunDirectory,
    config: &RunConfig,
    model: &PretrainedModel,
    restart: bool,
) -> Result<ImportedModel, PipelineError> {
    let tokenizer = model.tokenizer(config.prepare.end_of_text.as_deref())?;
    if let Some(token) = model.first_token(&tokenizer) {
        tracing::warn!(
            "the model in {} has seen {token:?} before each text; here texts begin without such a token, and the model adapts in \
             training",
            model.path.display()
        );
    }
    let prepared = run.tokenizer().exists();
    let same = |file: &Path, found: &Tokenizer| -> Result<(), PipelineError> {
        if found.hash() == tokenizer.hash() {
            return Ok(());
        }
        let (file, model) = (file.to_owned(), model.path.clone());
        Err(PretrainedError::Tokenizer { file, model }.into())
    };
    if prepared {
        same(&run.tokenizer(), &prepared::tokenizer(run)?)?;
    }
    let mut config = config.clone();
    let own = run.imported().file(TOKENIZER);
    match run.located(&config.prepare).tokenizer.filter(|file| *file != own) {
        Some(file) => {
            same(&file, &Tokenizer::from_file(&file, config.prepare.end_of_text.as_deref())?)?;
        }
        None => config.prepare.tokenizer = Some(run.name_of(own)),
    }
    config.prepare.end_of_text = Some(tokenizer.end_of_text_text());
    // Before the first write, which a refused import must not do.
    check_settings(run, &config).await?;
    let sized = config.model.with_vocabulary(tokenizer.vocab_size() as usize)?;
    let mut weights = model.weights()?;
    if model.settings.model.tie_embeddings && !sized.tie_embeddings {
        weights = untie(&sized, weights)?;
    }
    let store = open_store(run).await?;
    let started = open_run(&store, || run_id(&config.run.name)).await?;
    let parameters = weights.values.len();
    let before = started.manifest.seed.clone();
    let in_use = started.manifest.training.is_some() || started.manifest.extension.is_some();
    // From the new seed to the last of its files the run has parts of two models.
    if before.is_none() || restart && !in_use {
        run.imported().begin()?;
    }
    // First the seed: it may be refused, and then nothing of the run has changed.
    let seeded = import_seed(&store, started, weights, config.seed_model.steps, restart).await?;
    let new = seeded.manifest.seed != before;
    run.imported().replace(&model.copied)?;
    Ok(ImportedModel { parameters, prepared, new, config })
}

#[cfg(test)]
mod tests;
