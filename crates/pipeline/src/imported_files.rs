//! The files of a pretrained model that a run keeps, and that an export writes out again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use dipaco_files::read_regular;
use dipaco_model::{ImportError, PretrainedSettings};
use dipaco_shards::Tokenizer;
use serde_json::Value;

use crate::error::PipelineError;
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

    /// Checks that a file is what its name says.
    pub(crate) fn check(self, bytes: &[u8]) -> Result<(), PipelineError> {
        let not_json = |source| ImportError::Json { file: self.0.to_owned(), source };
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
                let value: Value = serde_json::from_slice(bytes).map_err(|source| not_json(Some(source)))?;
                if !value.is_object() {
                    return Err(not_json(None).into());
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

    pub(crate) fn read(&self, file: CopiedFile) -> Result<Option<Vec<u8>>, PipelineError> {
        read_small(&self.file(file), file.largest())
    }

    /// The content of a file of JSON.
    pub(crate) fn json(&self, file: CopiedFile) -> Result<Option<Value>, PipelineError> {
        let Some(bytes) = self.read(file)? else { return Ok(None) };
        let not_json = |source| ImportError::Json { file: file.name().to_owned(), source: Some(source) };
        Ok(Some(serde_json::from_slice(&bytes).map_err(not_json)?))
    }

    /// The tokens that end a generated text: those of the model's generation settings, or else of its configuration. None in
    /// a run without an imported model.
    ///
    /// # Errors
    /// [`PipelineError::Io`] and [`PipelineError::Import`] when a file can't be read.
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
    pub fn generation_settings(&self) -> Result<serde_json::Map<String, Value>, PipelineError> {
        match self.json(GENERATION)? {
            None => Ok(serde_json::Map::new()),
            Some(Value::Object(settings)) => Ok(settings),
            Some(_) => Err(ImportError::Json { file: GENERATION.name().to_owned(), source: None }.into()),
        }
    }

    /// The chat template of the imported model, in Jinja: its own file, or else the key of `tokenizer_config.json`. `None` in a
    /// run without an imported model, and for a model without a template.
    ///
    /// # Errors
    /// [`PipelineError::Io`] and [`PipelineError::Import`] when a file can't be read.
    pub fn chat_template(&self) -> Result<Option<String>, PipelineError> {
        if let Some(bytes) = self.read(CHAT_TEMPLATE)? {
            return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
        }
        let Some(config) = self.json(TOKENIZER_CONFIG)? else { return Ok(None) };
        Ok(config["chat_template"].as_str().map(ToOwned::to_owned))
    }

    /// The files that an export takes over as they are, and the keys of `config.json` that name special tokens. `None` in a
    /// run without an imported model.
    ///
    /// # Errors
    /// As [`ImportedFolder::end_tokens`].
    pub fn exported(&self) -> Result<Option<ExportedFiles>, PipelineError> {
        let Some(config) = self.json(CONFIG)? else { return Ok(None) };
        let special = ["bos_token_id", "eos_token_id", "pad_token_id"]
            .into_iter()
            .filter_map(|key| Some((key.to_owned(), config.get(key)?.clone())))
            .collect();
        let mut files = Vec::new();
        for file in [TOKENIZER_CONFIG, SPECIAL_TOKENS, GENERATION, CHAT_TEMPLATE] {
            files.extend(self.read(file)?.map(|bytes| (file.name().to_owned(), bytes)));
        }
        Ok(Some(ExportedFiles { special, files }))
    }
}

/// What an export takes over from the imported model.
#[derive(Clone, Debug)]
pub struct ExportedFiles {
    /// Keys of `config.json` that name special tokens, with their values.
    pub special: serde_json::Map<String, Value>,
    /// Names and contents of files.
    pub files: Vec<(String, Vec<u8>)>,
}

/// The chat template in a file that a configuration names, in Jinja.
///
/// # Errors
/// [`PipelineError::Io`] when the file can't be read or is no UTF-8, and [`PretrainedError::TooLarge`] above 1 MiB.
pub fn chat_template_in(file: &Path) -> Result<String, PipelineError> {
    let failed = |source| PipelineError::Io { action: "read", path: file.to_owned(), source };
    let bytes =
        read_small(file, CHAT_TEMPLATE.largest())?.ok_or_else(|| failed(ErrorKind::NotFound.into()))?;
    String::from_utf8(bytes).map_err(|error| failed(std::io::Error::new(ErrorKind::InvalidData, error)))
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
