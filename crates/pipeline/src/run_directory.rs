//! The directory of a run.

use std::path::{Path, PathBuf};

use dipaco_config::RunSection;
use dipaco_shards::PrepareConfig;

use crate::imported_files::{ImportedFolder, TOKENIZER};

/// Names the files of a run. `docs/run-directory.md` describes them.
#[derive(Clone, Debug)]
pub struct RunDirectory {
    root: PathBuf,
    data: PathBuf,
    store: String,
}

impl RunDirectory {
    /// The run in the folder `root`, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { data: root.join("data"), store: root.join("store").to_string_lossy().into_owned(), root }
    }

    /// The same run with its prepared text in another folder, for several runs on one text (`run.data`).
    pub fn with_data(self, data: Option<&Path>) -> Self {
        match data {
            Some(data) => Self { data: data.to_owned(), ..self },
            None => self,
        }
    }

    /// The same run with its weights and manifests at another address (`run.store`).
    pub fn with_store(self, store: Option<&str>) -> Self {
        match store {
            Some(store) => Self { store: store.to_owned(), ..self },
            None => self,
        }
    }

    /// The same run with the places that its configuration names.
    pub fn with_places(self, places: &RunSection) -> Self {
        self.with_data(places.data.as_deref()).with_store(places.store.as_deref())
    }

    /// The folder of the run.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// The folder of prepared text.
    pub fn data(&self) -> PathBuf {
        self.data.clone()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> PathBuf {
        self.data().join("tokenizer.json")
    }

    /// The token set of the training text.
    pub fn train_tokens(&self) -> PathBuf {
        self.data().join("train.json")
    }

    /// The token set of the validation text. A run without validation text has none.
    pub fn validation_tokens(&self) -> PathBuf {
        self.data().join("validation.json")
    }

    /// The folder of a phase of routing. `RunManifest::phase` is the current phase.
    pub fn routing(&self, phase: u32) -> RoutingFolder {
        let root = self.root.join("routing");
        RoutingFolder { root: if phase == 0 { root } else { root.join(format!("phase-{phase}")) } }
    }

    /// The folder of the files of an imported model. A run with a seed of its own has none.
    pub fn imported(&self) -> ImportedFolder {
        ImportedFolder::new(self.root.join("imported"))
    }

    /// The router whose paths a run keeps that extends a finished run. Other runs have none.
    pub fn kept_router(&self) -> PathBuf {
        self.root.join("extended").join("router.bin")
    }

    /// The tokenizer of the finished run that this run extends. Other runs have none.
    pub fn kept_tokenizer(&self) -> PathBuf {
        self.root.join("extended").join("tokenizer.json")
    }

    /// The configuration with which this run extended a finished run. Other runs have none.
    pub(crate) fn extended_config(&self) -> PathBuf {
        self.root.join("extended").join("config.toml")
    }

    /// The name of the folder of prepared text that a finished run lends to this run. Other runs have none.
    pub(crate) fn lent_text(&self) -> PathBuf {
        self.root.join("extended").join("text")
    }

    /// The name of a file of the run in its configuration: relative to the run's folder, so that a copy of the folder is a copy
    /// of the run.
    pub(crate) fn name_of(&self, file: PathBuf) -> PathBuf {
        file.strip_prefix(&self.root).map(Path::to_owned).unwrap_or(file)
    }

    /// Settings of `prepare` with the place of their tokenizer. The tokenizer of an imported model or of an extended run has a
    /// name relative to the run's folder. Every other one is where the settings say.
    pub fn located(&self, prepare: &PrepareConfig) -> PrepareConfig {
        let own = [self.imported().file(TOKENIZER), self.kept_tokenizer()];
        let place = |file: &PathBuf| {
            let inside = self.root.join(file);
            if own.contains(&inside) && inside.exists() { inside } else { file.clone() }
        };
        PrepareConfig { tokenizer: prepare.tokenizer.as_ref().map(place), ..prepare.clone() }
    }

    /// The address of the store of weights and manifests: a folder, or the URL of a remote store.
    pub fn store(&self) -> String {
        self.store.clone()
    }

    /// The event file.
    pub fn events(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// The folder of tokens. Only the owner may enter it. A copy of the run must not contain it.
    pub fn secrets(&self) -> PathBuf {
        self.root.join("secrets")
    }

    /// The join token of the workers.
    pub fn join_token(&self) -> PathBuf {
        self.secrets().join("join.token")
    }

    /// The token of the synchronizers.
    pub fn synchronizer_token(&self) -> PathBuf {
        self.secrets().join("synchronizer.token")
    }

    /// The lock that keeps trainings and rollbacks apart.
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// The names of revoked tokens.
    pub fn revoked(&self) -> PathBuf {
        self.root.join("revoked")
    }

    /// The folder of shards that a worker on this machine fetched.
    pub fn shard_cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// The log of a worker process on this machine.
    pub fn worker_log(&self, worker: &str) -> PathBuf {
        self.root.join("logs").join(format!("{worker}.log"))
    }
}

/// Names the files of a phase of routing. Phase 0 is the folder `routing`; each later phase has a folder inside it.
#[derive(Clone, Debug)]
pub struct RoutingFolder {
    root: PathBuf,
}

impl RoutingFolder {
    /// The folder of the phase.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The prefix router.
    pub fn router(&self) -> PathBuf {
        self.root.join("router.bin")
    }

    /// Features of the documents that the router is fitted on. Removed when it is fitted.
    pub fn features(&self) -> PathBuf {
        self.root.join("features")
    }

    /// The reserved documents: no path is trained on them, and the next router is fitted on them.
    pub fn reserved(&self) -> PathBuf {
        self.train().join("router.json")
    }

    /// One training shard per path, and the reserved documents.
    pub fn train(&self) -> PathBuf {
        self.root.join("train")
    }

    /// The validation documents by path.
    pub fn validation(&self) -> PathBuf {
        self.root.join("validation")
    }

    /// Scores that the paths of this phase give the reserved documents. The next phase's router is fitted on them.
    pub fn scores(&self) -> PathBuf {
        self.root.join("scores")
    }
}
