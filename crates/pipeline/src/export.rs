//! A path or the seed as files of other programs: a Hugging Face Llama checkpoint, or a GGUF file.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use dipaco_config::RunConfig;
use dipaco_model::{
    GgufVocabulary, ModelError, ModuleWeights, SpecialTokens, TensorIndex, WeightFormat, export_gguf,
    export_llama, export_model,
};
use dipaco_shards::Tokenizer;
use dipaco_topology::PathId;
use serde_json::{Map, Value};

use crate::error::PipelineError;
use crate::export_error::ExportError;
pub use crate::export_error::{ThereAlready, WrongPlace};
use crate::files;
use crate::imported_files::{
    CONFIG, CopiedFile, INDEX, LARGEST_INDEX, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS, read_small,
};
use crate::model_card::{CARD_FILE, model_card};
use crate::prepared::tokenizer;
use crate::run_directory::RunDirectory;
use crate::weights::Weights;

/// The key that makes a tokenizer write the begin token before each text.
const ADD_BEGIN_TOKEN: &str = "add_bos_token";

/// The files of a checkpoint, `config.json` first. An index names further files of weights.
fn checkpoint_files() -> impl Iterator<Item = &'static str> {
    CopiedFile::ALL.map(CopiedFile::name).into_iter().chain([WEIGHTS, INDEX, CARD_FILE])
}

/// Checks that a checkpoint does not have the name of a file, and a GGUF file not that of a folder. Nothing can be written over
/// these.
///
/// # Errors
/// [`WrongPlace`] names the file or the folder.
pub fn check_places(folder: Option<&Path>, gguf: Option<&Path>) -> Result<(), WrongPlace> {
    if let Some(file) = folder.filter(|folder| folder.exists() && !folder.is_dir()) {
        return Err(WrongPlace::File { file: file.to_owned() });
    }
    match gguf.filter(|file| file.is_dir()) {
        Some(folder) => Err(WrongPlace::Folder { folder: folder.to_owned() }),
        None => Ok(()),
    }
}

/// Checks that an export writes over nothing: the folder of a checkpoint has no file that belongs to one, and there is no
/// GGUF file of this name.
///
/// # Errors
/// [`ThereAlready`] names the first file that is there.
pub fn check_free(folder: Option<&Path>, gguf: Option<&Path>) -> Result<(), ThereAlready> {
    let of_folder =
        folder.into_iter().flat_map(|folder| checkpoint_files().map(move |name| folder.join(name)));
    // A link that leads nowhere is there, too.
    let there = of_folder.chain(gguf.map(Path::to_owned)).find(|file| file.symlink_metadata().is_ok());
    there.map_or(Ok(()), |file| Err(ThereAlready { file }))
}

/// The composed weights of a path, or of the seed for `None`, with a name for them.
#[derive(Debug)]
pub struct Exported {
    /// All weights of the path.
    pub weights: ModuleWeights,
    /// `path-2` or `seed`.
    pub name: String,
    /// The README of a checkpoint: run, modules, and round.
    pub card: String,
}

impl Exported {
    /// Composes a path, or the seed for `None`. Blocks on the store.
    ///
    /// # Errors
    /// [`PipelineError::NoSuchPath`], [`PipelineError::NotTrained`], [`PipelineError::NoSeed`], and the errors of the
    /// store.
    pub fn compose(weights: &Weights, path: Option<PathId>) -> Result<Self, PipelineError> {
        let composed = path.map_or_else(|| weights.seed(), |path| weights.path(path))?;
        let name = path.map_or_else(|| "seed".to_owned(), |path| format!("path-{path}"));
        Ok(Self { weights: composed.weights()?, name, card: model_card(weights, path)? })
    }

    /// Writes a checkpoint for transformers, vLLM and others into the folder `out`, in place of another one. Other files of
    /// the folder stay. `config` has its vocabulary.
    ///
    /// # Errors
    /// When a file of the run can't be read, or a file of the checkpoint can't be written. [`ExportError::OldWeights`]: then
    /// the folder is as it was.
    pub fn write_checkpoint(
        &self,
        run: &RunDirectory,
        config: &RunConfig,
        out: &Path,
    ) -> Result<(), PipelineError> {
        let tokenizer = tokenizer(run)?;
        let mut checkpoint = match run.imported().exported(tokenizer.end_of_text())? {
            Some(mut imported) => {
                let json = without_begin_token(&tokenizer, &mut imported.files)?;
                let tokenizer = (TOKENIZER.name().to_owned(), json);
                let mut checkpoint = export_model(&config.model, &self.weights, &imported.special)?;
                checkpoint.extend(imported.files.into_iter().chain([tokenizer]));
                checkpoint
            }
            None => {
                let special = SpecialTokens {
                    end_of_text: tokenizer.end_of_text(),
                    end_of_text_text: tokenizer.end_of_text_text(),
                };
                export_llama(&config.model, &self.weights, &special, tokenizer.to_json())?
            }
        };
        checkpoint.push((CARD_FILE.to_owned(), self.card.clone().into_bytes()));
        // Without `config.json` no reader takes the folder for a model. It goes first and comes last, so a crash leaves no mix
        // of two checkpoints.
        checkpoint.sort_by_key(|(name, _)| name == CONFIG.name());
        remove_checkpoint(out)?;
        checkpoint.iter().try_for_each(|(name, bytes)| files::write(&out.join(name), bytes))
    }

    /// Writes a GGUF file for llama.cpp, Ollama and others, over another one. `config` has its vocabulary.
    ///
    /// # Errors
    /// When a file of the run can't be read, the tokenizer has no form in GGUF, or the file can't be written.
    pub fn write_gguf(
        &self,
        run: &RunDirectory,
        config: &RunConfig,
        format: WeightFormat,
        file: &Path,
    ) -> Result<(), PipelineError> {
        let (tokenizer, imported) = (tokenizer(run)?, run.imported());
        let end_of_text = tokenizer.end_of_text();
        let vocabulary = GgufVocabulary::from_tokenizer_json(tokenizer.to_json(), end_of_text)
            .map_err(ModelError::from)?;
        let special = imported.special_tokens(&vocabulary, end_of_text, config.model.vocab_size)?;
        let vocabulary = vocabulary
            .with_special_tokens(special)
            .with_chat_template(imported.chat_template()?)
            .with_sampling(&imported.generation_settings()?)
            .map_err(ModelError::from)?;
        for token in vocabulary.lost_end_tokens() {
            tracing::warn!(
                "llama.cpp will not end a text at token {token}, an end token of the model: a GGUF file has keys for three of them"
            );
        }
        let name = format!("{}/{}", config.run.name, self.name);
        files::write_large(file, |out| {
            export_gguf(&config.model, &self.weights, &name, &vocabulary, format, out)
        })
    }
}

/// The `tokenizer.json` of a checkpoint, and in `files` the settings of the tokenizer, which write no special token around a
/// text: the paths have seen texts without it. Both stay as they are for a model whose texts begin without such a token.
fn without_begin_token(
    tokenizer: &Tokenizer,
    files: &mut Vec<(String, Vec<u8>)>,
) -> Result<Vec<u8>, PipelineError> {
    let place = files.iter().position(|(name, _)| name == TOKENIZER_CONFIG.name());
    let mut settings: Map<String, Value> = match place {
        Some(place) => serde_json::from_slice(&files[place].1).map_err(TOKENIZER_CONFIG.not_json())?,
        None => Map::new(),
    };
    let in_settings = settings.get(ADD_BEGIN_TOKEN).and_then(Value::as_bool) == Some(true);
    if !in_settings && tokenizer.first_token().is_none() {
        return Ok(tokenizer.to_json().to_vec());
    }
    settings.insert(ADD_BEGIN_TOKEN.to_owned(), false.into());
    let bytes = serde_json::to_vec_pretty(&settings).map_err(TOKENIZER_CONFIG.not_json())?;
    match place {
        Some(place) => files[place].1 = bytes,
        None => files.push((TOKENIZER_CONFIG.name().to_owned(), bytes)),
    }
    if tokenizer.first_token().is_none() {
        return Ok(tokenizer.to_json().to_vec());
    }
    let mut json: Value = serde_json::from_slice(tokenizer.to_json()).map_err(TOKENIZER.not_json())?;
    json.get_mut("post_processor").into_iter().for_each(remove_special_tokens);
    Ok(serde_json::to_vec(&json).map_err(TOKENIZER.not_json())?)
}

/// Takes the special tokens out of the templates of a post-processor, which may be a sequence of several.
fn remove_special_tokens(processor: &mut Value) {
    for template in ["single", "pair"] {
        if let Some(Value::Array(pieces)) = processor.get_mut(template) {
            pieces.retain(|piece| piece.get("SpecialToken").is_none());
        }
    }
    if let Some(Value::Array(processors)) = processor.get_mut("processors") {
        processors.iter_mut().for_each(remove_special_tokens);
    }
}

/// Removes the checkpoint in a folder, if there is one.
fn remove_checkpoint(folder: &Path) -> Result<(), PipelineError> {
    let file = folder.join(INDEX);
    let index = read_small(&file, LARGEST_INDEX)?.map(|bytes| TensorIndex::parse(&bytes, INDEX)).transpose();
    let index = index.map_err(|source| ExportError::OldWeights { index: file, source })?;
    let remove = |name: &str| match fs::remove_file(folder.join(name)) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(PipelineError::Io { action: "remove", path: folder.join(name), source })
        }
        _ => Ok(()),
    };
    remove(CONFIG.name())?;
    // Before the index, so that after a crash the next export finds the rest of them. A downloaded index may name any file of
    // the folder.
    let mut parts = index.iter().flat_map(TensorIndex::files).filter(|name| name.ends_with(".safetensors"));
    parts.try_for_each(&remove)?;
    checkpoint_files().try_for_each(&remove)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn names(folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_checkpoint_is_removed_with_its_weights_and_without_files_of_others() {
        let place = tempfile::tempdir().unwrap();
        let (elsewhere, folder) = (place.path().join("elsewhere.safetensors"), place.path().join("out"));
        fs::create_dir(&folder).unwrap();
        fs::write(&elsewhere, "mine").unwrap();
        let others = ["notes.txt", "other.safetensors"];
        for name in checkpoint_files().chain(["part.safetensors"]).chain(others) {
            fs::write(folder.join(name), "x").unwrap();
        }
        std::os::unix::fs::symlink(&elsewhere, folder.join("link.safetensors")).unwrap();
        let index = |third: &str| {
            let files = json!({"a": "part.safetensors", "b": "link.safetensors", "c": third});
            fs::write(folder.join(INDEX), json!({ "weight_map": files }).to_string()).unwrap();
        };
        let all = names(&folder);
        for outside in ["../elsewhere.safetensors", &elsewhere.display().to_string()] {
            index(outside);
            let error = remove_checkpoint(&folder).unwrap_err().to_string();
            assert!(error.contains(INDEX) && error.contains("give another folder"), "{error}");
            assert_eq!(names(&folder), all);
        }
        index("notes.txt");
        remove_checkpoint(&folder).unwrap();
        assert_eq!(names(&folder), BTreeSet::from(others.map(str::to_owned)));
        assert_eq!(fs::read(&elsewhere).unwrap(), b"mine");
        // There is nothing to remove.
        remove_checkpoint(&folder).unwrap();
        remove_checkpoint(&place.path().join("new")).unwrap();
    }

    #[test]
    fn a_file_is_no_place_for_a_checkpoint_and_a_folder_none_for_a_gguf_file() {
        let place = tempfile::tempdir().unwrap();
        let (folder, file, new) =
            (place.path().join("folder"), place.path().join("file"), place.path().join("new"));
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "mine").unwrap();
        for free in [&new, &folder] {
            check_places(Some(free), Some(&new)).unwrap();
        }
        check_places(None, Some(&file)).unwrap();
        let said = |error: WrongPlace| error.to_string();
        let error = said(check_places(Some(&file), None).unwrap_err());
        assert!(error.contains("file is a file: give a folder"), "{error}");
        let error = said(check_places(Some(&new), Some(&folder)).unwrap_err());
        assert!(error.contains("folder is a folder: give the name of a file"), "{error}");
    }

    #[test]
    fn files_of_a_checkpoint_are_not_free() {
        let place = tempfile::tempdir().unwrap();
        let (folder, gguf) = (place.path().join("out"), place.path().join("out.gguf"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("notes.txt"), "mine").unwrap();
        check_free(Some(&folder), Some(&gguf)).unwrap();
        for name in checkpoint_files() {
            let file = folder.join(name);
            std::os::unix::fs::symlink("nowhere", &file).unwrap();
            assert_eq!(check_free(Some(&folder), None).unwrap_err().file, file);
            fs::remove_file(&file).unwrap();
        }
        fs::write(&gguf, "mine").unwrap();
        assert_eq!(check_free(Some(&folder), Some(&gguf)).unwrap_err().file, gguf);
    }
}
