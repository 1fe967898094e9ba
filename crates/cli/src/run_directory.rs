//! Where a run keeps what.

use std::path::{Path, PathBuf};

/// The folder of a run. Every step reads what the step before wrote there; `docs/run-directory.md` lists the files.
#[derive(Clone, Debug)]
pub(crate) struct RunDirectory {
    root: PathBuf,
    data: PathBuf,
}

impl RunDirectory {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { data: root.join("data"), root }
    }

    /// The same run with prepared text that lies elsewhere, as when several runs train on one text (`run.data`).
    pub(crate) fn with_data(self, data: Option<&Path>) -> Self {
        match data {
            Some(data) => Self { data: data.to_owned(), ..self },
            None => self,
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The resolved configuration.
    pub(crate) fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// What `prepare` wrote.
    pub(crate) fn data(&self) -> PathBuf {
        self.data.clone()
    }

    pub(crate) fn tokenizer(&self) -> PathBuf {
        self.data().join("tokenizer.json")
    }

    pub(crate) fn train_tokens(&self) -> PathBuf {
        self.data().join("train.h5")
    }

    pub(crate) fn validation_tokens(&self) -> PathBuf {
        self.data().join("validation.h5")
    }

    /// The router and the shards of a phase of routing; the current one is `RunManifest::phase`.
    pub(crate) fn routing(&self, phase: u32) -> RoutingFolder {
        let root = self.root.join("routing");
        RoutingFolder { root: if phase == 0 { root } else { root.join(format!("phase-{phase}")) } }
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    pub(crate) fn events(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// Key and certificate of the run's own authority; readable by its owner only.
    pub(crate) fn authority(&self) -> PathBuf {
        self.root.join("authority.pem")
    }

    /// What a worker needs to join; readable by its owner only.
    pub(crate) fn join_token(&self) -> PathBuf {
        self.root.join("join.token")
    }

    /// The names of tokens that have been revoked.
    pub(crate) fn revoked(&self) -> PathBuf {
        self.root.join("revoked")
    }

    /// Shards that a worker on this machine fetched.
    pub(crate) fn shard_cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    pub(crate) fn worker_log(&self, worker: &str) -> PathBuf {
        self.root.join("logs").join(format!("{worker}.log"))
    }
}

/// What a phase of routing keeps. The first phase is 0; each that is listed in the configuration has a folder of its
/// own below it.
#[derive(Clone, Debug)]
pub(crate) struct RoutingFolder {
    root: PathBuf,
}

impl RoutingFolder {
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn router(&self) -> PathBuf {
        self.root.join("router.bin")
    }

    /// Features of the documents that the router is fitted on, until it is.
    pub(crate) fn features(&self) -> PathBuf {
        self.root.join("features")
    }

    /// The documents that no path is trained on and the next router is fitted on.
    pub(crate) fn reserved(&self) -> PathBuf {
        self.train().join("router.h5")
    }

    /// One training shard per path, and the reserved documents.
    pub(crate) fn train(&self) -> PathBuf {
        self.root.join("train")
    }

    /// The validation documents by path.
    pub(crate) fn validation(&self) -> PathBuf {
        self.root.join("validation")
    }

    /// What the paths of this phase make of the reserved documents: the next phase's router is fitted on it.
    pub(crate) fn scores(&self) -> PathBuf {
        self.root.join("scores")
    }
}
