//! Stores of runs among the text of a preparation.

use std::io::Read;
use std::path::{Path, PathBuf};

use dipaco_shards::list_inputs;
use dipaco_store::{ManifestSchema, RunManifest};

use crate::error::PipelineError;

/// The folder of a store with its manifests, `<20-digit sequence>.json`.
const MANIFESTS: &str = "manifest";
/// Digits of a sequence.
const DIGITS: usize = 20;
/// Bytes at the start of a manifest that name its schema.
const HEAD: u64 = 1024;

/// Refuses text in whose folders the store of a run lies. The folder of a run is left out of the text, and its store with it.
/// A store that lies elsewhere (`run.store`) has no configuration beside it, so its manifests would be read as text, and each
/// new one would change the text.
///
/// # Errors
/// [`PipelineError::StoreInText`] for the first store, [`PipelineError::Shards`] when the inputs can't be listed.
pub(crate) fn refuse_stores(inputs: &[PathBuf], validation: &[PathBuf]) -> Result<(), PipelineError> {
    let all: Vec<PathBuf> = inputs.iter().chain(validation).cloned().collect();
    for file in list_inputs(&all)?.files {
        // A file that is an input itself is read, whatever it is. Few files are manifests, and the inputs may be many.
        if let Some(store) = store_of(&file.path)
            && !all.contains(&file.path)
        {
            return Err(PipelineError::StoreInText { store });
        }
    }
    Ok(())
}

/// The store that a file is the manifest of; `None` for another file, and for one that can't be read.
fn store_of(file: &Path) -> Option<PathBuf> {
    let sequence = file.file_name()?.to_str()?.strip_suffix(".json")?;
    if sequence.len() != DIGITS || !sequence.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    // The input may be the folder of the manifests itself, by any name.
    let folder = file.parent()?.canonicalize().ok()?;
    if folder.file_name()? != MANIFESTS {
        return None;
    }
    let mut head = Vec::new();
    dipaco_files::open_regular(file).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    let schema = format!(r#""schema":"{}""#, RunManifest::SCHEMA);
    if !String::from_utf8_lossy(&head).contains(&schema) {
        return None;
    }
    folder.parent().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::AtomicBool;

    use dipaco_config::RunConfig;
    use dipaco_shards::PrepareReport;
    use dipaco_store::{ManifestSequence, RunStore};
    use dipaco_telemetry::Progress;

    use super::*;
    use crate::prepare::{check_inputs, prepare};
    use crate::{RunDirectory, save_config};

    /// A run beside a folder of text.
    struct Corpus {
        folder: tempfile::TempDir,
        config: RunConfig,
    }

    impl Corpus {
        fn new() -> Self {
            let corpus = Self { folder: tempfile::tempdir().unwrap(), config: RunConfig::default() };
            fs::create_dir(corpus.text()).unwrap();
            let line = |i: usize| {
                let text = format!("Document {i} speaks of {}. ", i * 31 % 17).repeat(3);
                format!("{}\n", serde_json::json!({ "text": text }))
            };
            fs::write(corpus.file(), (0..300).map(line).collect::<String>()).unwrap();
            corpus
        }

        fn text(&self) -> PathBuf {
            self.folder.path().join("text")
        }

        fn file(&self) -> PathBuf {
            self.text().join("corpus.jsonl")
        }

        /// Prepares text as the commands do.
        fn prepare(&self, inputs: &[PathBuf]) -> Result<PrepareReport, PipelineError> {
            check_inputs(inputs, &[])?;
            let mut config = self.config.clone();
            (config.prepare.vocab_size, config.prepare.validation_fraction) = (280, 0.2);
            let run = RunDirectory::new(self.folder.path().join("run"));
            prepare(&run, &config, inputs, &[], &Progress::hidden(), &AtomicBool::new(false))
        }
    }

    /// Makes the store of a run that has begun.
    fn begin_store(folder: &Path) {
        let store = RunStore::create(&folder.to_string_lossy()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let first = RunManifest::new("some-run".to_owned());
        runtime.block_on(store.replace(&first, ManifestSequence::NONE)).unwrap();
    }

    #[test]
    fn a_store_among_the_text_is_refused_before_anything_is_read() {
        let corpus = Corpus::new();
        let store = corpus.text().join("weights/of-mine");
        begin_store(&store);
        // By whatever folder the text is named.
        for inputs in [corpus.text(), corpus.text().join("weights"), store.join("manifest")] {
            let error = corpus.prepare(&[corpus.file(), inputs]).unwrap_err();
            let PipelineError::StoreInText { store: found } = &error else { panic!("{error}") };
            assert_eq!(*found, store.canonicalize().unwrap());
            assert!(error.is_configuration() && error.to_string().contains("run.store"), "{error}");
        }
        assert!(!corpus.folder.path().join("run").exists(), "nothing is prepared");
        // The text without the store, as the error advises, and a file that the user names.
        assert_eq!(corpus.prepare(&[corpus.file()]).unwrap().files.len(), 1);
        let manifest = store.join("manifest/00000000000000000001.json");
        assert_eq!(corpus.prepare(&[corpus.file(), manifest]).unwrap().files.len(), 2);
    }

    #[test]
    fn a_store_in_the_folder_of_its_run_is_left_out_with_it() {
        let corpus = Corpus::new();
        let other = RunDirectory::new(corpus.text().join("runs/other"));
        save_config(&other, &corpus.config).unwrap();
        begin_store(Path::new(&other.store()));
        // Text that only has the name of a manifest.
        let named = corpus.text().join("manifest");
        fs::create_dir(&named).unwrap();
        fs::write(named.join("00000000000000000001.json"), "{\"text\": \"a document\"}\n").unwrap();
        assert_eq!(corpus.prepare(&[corpus.text()]).unwrap().files.len(), 2);
    }
}
