//! Where a run keeps what.

use std::path::{Path, PathBuf};

/// The folder of a run. Every step reads what the step before wrote there; `docs/run-directory.md` lists the files.
#[derive(Clone, Debug)]
pub struct RunDirectory {
    root: PathBuf,
    data: PathBuf,
}

impl RunDirectory {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { data: root.join("data"), root }
    }

    /// The same run with prepared text that lies elsewhere, as when several runs train on one text (`run.data`).
    pub fn with_data(self, data: Option<&Path>) -> Self {
        match data {
            Some(data) => Self { data: data.to_owned(), ..self },
            None => self,
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// What `prepare` wrote.
    pub fn data(&self) -> PathBuf {
        self.data.clone()
    }

    pub fn tokenizer(&self) -> PathBuf {
        self.data().join("tokenizer.json")
    }

    pub fn train_tokens(&self) -> PathBuf {
        self.data().join("train.h5")
    }

    pub fn validation_tokens(&self) -> PathBuf {
        self.data().join("validation.h5")
    }

    /// The router and the shards of a phase of routing; the current one is `RunManifest::phase`.
    pub fn routing(&self, phase: u32) -> RoutingFolder {
        let root = self.root.join("routing");
        RoutingFolder { root: if phase == 0 { root } else { root.join(format!("phase-{phase}")) } }
    }

    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    pub fn events(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// Key and certificate of the run's own authority; readable by its owner only.
    pub fn authority(&self) -> PathBuf {
        self.root.join("authority.pem")
    }

    /// What a worker needs to join; readable by its owner only.
    pub fn join_token(&self) -> PathBuf {
        self.root.join("join.token")
    }

    /// The names of tokens that have been revoked.
    pub fn revoked(&self) -> PathBuf {
        self.root.join("revoked")
    }

    /// Shards that a worker on this machine fetched.
    pub fn shard_cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    pub fn worker_log(&self, worker: &str) -> PathBuf {
        self.root.join("logs").join(format!("{worker}.log"))
    }
}

/// What a phase of routing keeps. The first phase is 0; each that is listed in the configuration has a folder of its
/// own below it.
#[derive(Clone, Debug)]
pub struct RoutingFolder {
    root: PathBuf,
}

impl RoutingFolder {
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn router(&self) -> PathBuf {
        self.root.join("router.bin")
    }

    /// Features of the documents that the router is fitted on, until it is.
    pub fn features(&self) -> PathBuf {
        self.root.join("features")
    }

    /// The documents that no path is trained on and the next router is fitted on.
    pub fn reserved(&self) -> PathBuf {
        self.train().join("router.h5")
    }

    /// One training shard per path, and the reserved documents.
    pub fn train(&self) -> PathBuf {
        self.root.join("train")
    }

    /// The validation documents by path.
    pub fn validation(&self) -> PathBuf {
        self.root.join("validation")
    }

    /// What the paths of this phase make of the reserved documents: the next phase's router is fitted on it.
    pub fn scores(&self) -> PathBuf {
        self.root.join("scores")
    }
}
