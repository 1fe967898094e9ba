//! The files of a pretrained model that a run keeps, and that an export writes out again.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use dipaco_files::read_regular;
use dipaco_model::{ImportError, PretrainedSettings};
use dipaco_server::ServerError;
use dipaco_shards::Tokenizer;
use serde_json::{Map, Value};

use crate::error::PipelineError;
use crate::files;
use crate::pretrained_error::PretrainedError;

/// A small file of a model in Hugging Face's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopiedFile(&'static str);

pub(crate) const CONFIG: CopiedFile = CopiedFile("config.json");
pub(crate) const TOKENIZER: CopiedFile = CopiedFile("tokenizer.json");
pub(crate) const TOKENIZER_CONFIG: CopiedFile = CopiedFile("tokenizer_config.json");
pub(crate) const SPECIAL_TOKENS: CopiedFile = CopiedFile("special_tokens_map.json");
pub(crate) const GENERATION: CopiedFile = CopiedFile("generation_config.json");
pub(crate) const CHAT_TEMPLATE: CopiedFile = CopiedFile("chat_template.jinja");

/// The weights of a model in one file.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// The list of the files that the weights of a model are in.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Largest index of tensors and files, in bytes. A model of 100,000 tensors has 10 MB.
pub(crate) const LARGEST_INDEX: u64 = 16 << 20;

/// The key of the tokens that end a text.
const END_TOKENS: &str = "eos_token_id";
/// The key of the deviation of random weights. A further training that adds tokens draws their rows with it.
const DEVIATION: &str = "initializer_range";
/// The chat template, among several with names, that chats without tools or documents have.
const DEFAULT_TEMPLATE: &str = "default";

impl CopiedFile {
    pub(crate) const ALL: [Self; 6] =
        [CONFIG, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, GENERATION, CHAT_TEMPLATE];

    /// The name in the folder.
    pub(crate) fn name(self) -> &'static str {
        self.0
    }

    /// The largest length in bytes. The settings of a tokenizer may list all of its added tokens, and other files have a few
    /// thousand bytes.
    pub(crate) fn largest(self) -> u64 {
        match self {
            TOKENIZER => Tokenizer::LARGEST_FILE,
            TOKENIZER_CONFIG | SPECIAL_TOKENS => 16 << 20,
            _ => 1 << 20,
        }
    }

    pub(crate) fn not_json(self) -> impl FnOnce(serde_json::Error) -> ImportError {
        move |source| ImportError::Json { file: self.0.to_owned(), source: Some(source) }
    }

    /// Checks that a file is what its name says.
    pub(crate) fn check(self, bytes: &[u8]) -> Result<(), PipelineError> {
        match self {
            // It is read by the tokenizers library.
            TOKENIZER => {}
            CHAT_TEMPLATE => {
                std::str::from_utf8(bytes).map_err(|_| ImportError::Value {
                    file: self.0.to_owned(),
                    key: "the template".to_owned(),
                    problem: "is not UTF-8".to_owned(),
                })?;
            }
            GENERATION => drop(PretrainedSettings::end_tokens_of(bytes, self.0)?),
            _ => {
                let value: Value = serde_json::from_slice(bytes).map_err(self.not_json())?;
                if !value.is_object() {
                    return Err(ImportError::Json { file: self.0.to_owned(), source: None }.into());
                }
                if self == TOKENIZER_CONFIG {
                    drop(named_templates(&value)?);
                }
            }
        }
        Ok(())
    }
}

/// The folder of a run with the files of the model that its seed began with.
#[derive(Clone, Debug)]
pub struct ImportedFolder {
    root: PathBuf,
}

impl ImportedFolder {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn file(&self, file: CopiedFile) -> PathBuf {
        self.root.join(file.name())
    }

    /// The content of a file, if the model has it. Every reader comes through here.
    pub(crate) fn read(&self, file: CopiedFile) -> Result<Option<Vec<u8>>, PipelineError> {
        self.check_whole()?;
        read_small(&self.file(file), file.largest())
    }

    /// The content of a file of JSON.
    pub(crate) fn json(&self, file: CopiedFile) -> Result<Option<Value>, PipelineError> {
        let Some(bytes) = self.read(file)? else { return Ok(None) };
        Ok(Some(serde_json::from_slice(&bytes).map_err(file.not_json())?))
    }

    /// The tokens that end a generated text: those of the model's generation settings, or else of its configuration. None in
    /// a run without an imported model.
    ///
    /// # Errors
    /// [`PipelineError::Io`] and [`PipelineError::Import`] when a file can't be read, and [`PipelineError::Pretrained`] after an
    /// import that was broken off.
    pub fn end_tokens(&self) -> Result<Vec<u32>, PipelineError> {
        for file in [GENERATION, CONFIG] {
            let Some(bytes) = self.read(file)? else { continue };
            let tokens = PretrainedSettings::end_tokens_of(&bytes, file.name())?;
            if !tokens.is_empty() {
                return Ok(tokens);
            }
        }
        Ok(Vec::new())
    }

    /// The keys of the model's generation settings. Empty in a run without an imported model, and for a model without such
    /// settings.
    ///
    /// # Errors
    /// As [`ImportedFolder::end_tokens`].
    pub fn generation_settings(&self) -> Result<Map<String, Value>, PipelineError> {
        match self.json(GENERATION)? {
            None => Ok(Map::new()),
            Some(Value::Object(settings)) => Ok(settings),
            Some(_) => Err(ImportError::Json { file: GENERATION.name().to_owned(), source: None }.into()),
        }
    }

    /// The chat template of the imported model, in Jinja: its own file, or else the key of `tokenizer_config.json`, which may
    /// have several. `None` in a run without an imported model, and for a model without a template for plain chats.
    ///
    /// # Errors
    /// As [`ImportedFolder::end_tokens`].
    pub fn chat_template(&self) -> Result<Option<String>, PipelineError> {
        if let Some(bytes) = self.read(CHAT_TEMPLATE)? {
            return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
        }
        let Some(config) = self.json(TOKENIZER_CONFIG)? else { return Ok(None) };
        let templates = named_templates(&config)?;
        // As in transformers, the last of two with one name counts.
        let default = templates.iter().rfind(|(name, _)| *name == DEFAULT_TEMPLATE);
        if let (None, Some((other, _))) = (default, templates.first()) {
            tracing::warn!(
                "the model has no chat template named {DEFAULT_TEMPLATE:?}, but others, such as {other:?}, in {}: to answer chats, \
                 write one of them into a file and name it in serve.chat_template",
                self.file(TOKENIZER_CONFIG).display()
            );
        }
        Ok(default.map(|&(_, template)| template.to_owned()))
    }

    /// The file that [`ImportedFolder::chat_template`] reads.
    pub fn chat_template_file(&self) -> PathBuf {
        let own = self.file(CHAT_TEMPLATE);
        if own.exists() { own } else { self.file(TOKENIZER_CONFIG) }
    }

    /// The files and the keys of `config.json` that an export takes over. `None` in a run without an imported model.
    /// `end_of_text`, with which the run's documents end, becomes an end token where it is none.
    ///
    /// # Errors
    /// As [`ImportedFolder::end_tokens`].
    pub fn exported(&self, end_of_text: u32) -> Result<Option<ExportedFiles>, PipelineError> {
        let Some(config) = self.read(CONFIG)? else { return Ok(None) };
        let config = self.with_end_token(CONFIG, config, end_of_text)?;
        let config: Value = serde_json::from_slice(&config).map_err(CONFIG.not_json())?;
        let special = ["bos_token_id", END_TOKENS, "pad_token_id", DEVIATION]
            .into_iter()
            .filter_map(|key| Some((key.to_owned(), config.get(key)?.clone())))
            .collect();
        let mut files = Vec::new();
        for file in [TOKENIZER_CONFIG, SPECIAL_TOKENS, GENERATION, CHAT_TEMPLATE] {
            let Some(mut bytes) = self.read(file)? else { continue };
            if file == GENERATION {
                bytes = self.with_end_token(file, bytes, end_of_text)?;
            }
            files.push((file.name().to_owned(), bytes));
        }
        Ok(Some(ExportedFiles { special, files }))
    }

    /// The content of a file whose end tokens have `end_of_text`. It stays as it is if they have it already.
    fn with_end_token(
        &self,
        file: CopiedFile,
        bytes: Vec<u8>,
        end_of_text: u32,
    ) -> Result<Vec<u8>, PipelineError> {
        let mut ends = PretrainedSettings::end_tokens_of(&bytes, file.name())?;
        if ends.contains(&end_of_text) {
            return Ok(bytes);
        }
        // A program that finds end tokens in one file does not look into the other.
        if ends.is_empty() {
            ends = self.end_tokens()?;
        }
        if !ends.contains(&end_of_text) {
            ends.push(end_of_text);
        }
        let mut settings: Map<String, Value> = serde_json::from_slice(&bytes).map_err(file.not_json())?;
        let ends = if let [end] = *ends { Value::from(end) } else { Value::from(ends) };
        settings.insert(END_TOKENS.to_owned(), ends);
        Ok(serde_json::to_vec_pretty(&settings).map_err(file.not_json())?)
    }

    /// Copies the small files of the imported model that another run began with. Other runs have none.
    pub(crate) fn copy_from(&self, other: &Self) -> Result<(), PipelineError> {
        self.replace(&copied_from_folder(other.root())?)
    }

    /// Marks the files as those of a broken-off import, until [`Self::replace`] has written all of them.
    pub(crate) fn begin(&self) -> Result<(), PipelineError> {
        let failed = |source| PipelineError::Io { action: "create", path: self.root.clone(), source };
        std::fs::create_dir_all(&self.root).map_err(failed)?;
        self.remove(CONFIG)
    }

    /// Takes the mark of [`Self::begin`] back when the import is refused, or the model has no files. Files that are there keep it.
    pub(crate) fn withdraw(&self) {
        let _ = std::fs::remove_dir(&self.root);
    }

    /// Makes these files the only ones of a model in the folder.
    pub(crate) fn replace(&self, model: &[(CopiedFile, Vec<u8>)]) -> Result<(), PipelineError> {
        let given = |file: CopiedFile| model.iter().find(|(one, _)| *one == file).map(|(_, bytes)| bytes);
        let is_there = |file| self.read(file).is_ok_and(|held| held.as_ref() == given(file));
        // A repeated import leaves no moment in which a reader finds the folder incomplete.
        if CopiedFile::ALL.into_iter().all(is_there) {
            return Ok(());
        }
        self.remove(CONFIG)?;
        // A folder without `config.json` is incomplete, so this file, the first of all, comes last.
        for file in CopiedFile::ALL.into_iter().rev() {
            match given(file) {
                Some(bytes) => files::write(&self.file(file), bytes)?,
                None => self.remove(file)?,
            }
        }
        if model.is_empty() {
            self.withdraw();
        }
        Ok(())
    }

    fn remove(&self, file: CopiedFile) -> Result<(), PipelineError> {
        let path = self.file(file);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(PipelineError::Io { action: "remove", path, source })
            }
            _ => Ok(()),
        }
    }

    /// Refuses the files of a broken-off import. They may be of another model than the weights.
    pub(crate) fn check_whole(&self) -> Result<(), PipelineError> {
        if self.root.exists() && !self.file(CONFIG).exists() {
            return Err(PretrainedError::BrokenOff { folder: self.root.clone() }.into());
        }
        Ok(())
    }
}

/// The small files of a folder, as far as it has them.
pub(crate) fn copied_from_folder(folder: &Path) -> Result<Vec<(CopiedFile, Vec<u8>)>, PipelineError> {
    let mut copied = Vec::new();
    for file in CopiedFile::ALL {
        copied.extend(read_small(&folder.join(file.name()), file.largest())?.map(|bytes| (file, bytes)));
    }
    Ok(copied)
}

/// The chat templates in the settings of a tokenizer, with their names: one without a name, or a list.
fn named_templates(settings: &Value) -> Result<Vec<(&str, &str)>, ImportError> {
    fn named(entry: &Value) -> Option<(&str, &str)> {
        Some((entry.get("name")?.as_str()?, entry.get("template")?.as_str()?))
    }
    let templates = match settings.get("chat_template") {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::String(template)) => Some(vec![(DEFAULT_TEMPLATE, template.as_str())]),
        Some(Value::Array(list)) => list.iter().map(named).collect(),
        Some(_) => None,
    };
    templates.ok_or_else(|| ImportError::Value {
        file: TOKENIZER_CONFIG.name().to_owned(),
        key: "chat_template".to_owned(),
        problem: "must be a text, or a list of objects with the texts `name` and `template`".to_owned(),
    })
}

/// What an export takes over from the imported model.
#[derive(Clone, Debug)]
pub struct ExportedFiles {
    /// Keys of `config.json` with their values: those that name special tokens, and `initializer_range`, as far as the model
    /// has them.
    pub special: Map<String, Value>,
    /// Names and contents of files.
    pub files: Vec<(String, Vec<u8>)>,
}

/// The chat template in a file that a configuration names, in Jinja.
///
/// # Errors
/// [`ServerError::ChatTemplateFile`] when the file can't be read or is no UTF-8, and [`PretrainedError::TooLarge`] above 1 MiB.
pub fn chat_template_in(file: &Path) -> Result<String, PipelineError> {
    let failed = |source| ServerError::ChatTemplateFile { path: file.to_owned(), source };
    let largest = CHAT_TEMPLATE.largest();
    let bytes = read_regular(file, largest).map_err(failed)?;
    let bytes = bytes.ok_or_else(|| PretrainedError::TooLarge { file: file.to_owned(), largest })?;
    Ok(String::from_utf8(bytes).map_err(|error| failed(io::Error::new(ErrorKind::InvalidData, error)))?)
}

/// Reads a file of at most `largest` bytes; `None` if it does not exist.
pub(crate) fn read_small(path: &Path, largest: u64) -> Result<Option<Vec<u8>>, PipelineError> {
    let failed = |source| PipelineError::Io { action: "read", path: path.to_owned(), source };
    match read_regular(path, largest) {
        Ok(Some(bytes)) => Ok(Some(bytes)),
        Ok(None) => Err(PretrainedError::TooLarge { file: path.to_owned(), largest }.into()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed(source)),
    }
}

#[cfg(test)]
mod tests;
