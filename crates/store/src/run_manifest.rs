//! What is current in a run: the content of the manifest.
//!
//! Everything else in the store is immutable; this one record says which objects make up the run now. Readers that
//! serve or evaluate need nothing else, and a coordinator that continues the run needs nothing else either.

use dipaco_topology::{ModuleId, PathId};
use serde::{Deserialize, Serialize};

use crate::{ManifestSchema, ObjectRef};

/// The current state of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunManifest {
    /// The run's identity: made once, at its start.
    pub run: String,
    /// How often a coordinator has taken the run over. Makes the fencing numbers of each one new.
    pub incarnation: u32,
    /// The dense path that every path starts from, once its pretraining has begun.
    pub seed: Option<SeedRecord>,
    /// The training of the paths, once it has begun.
    pub training: Option<TrainingRecord>,
}

impl ManifestSchema for RunManifest {
    const SCHEMA: &'static str = "dipaco-run";
    const VERSION: u32 = 2;
}

impl RunManifest {
    /// A run in which nothing has happened yet.
    #[must_use]
    pub fn new(run: String) -> Self {
        Self { run, incarnation: 0, seed: None, training: None }
    }

    /// The phase of routing that the run is in, counted from 0: which router and which shards are its own.
    #[must_use]
    pub fn phase(&self) -> u32 {
        self.training.as_ref().map_or(0, |training| training.phase)
    }
}

/// The seed model and how far its pretraining is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedRecord {
    /// Hash of the part of the configuration that its weights depend on, and of its training data.
    pub origin: String,
    /// Inner steps taken.
    pub step: u64,
    /// Inner steps planned.
    pub steps: u64,
    /// The weights of the whole path.
    pub weights: ObjectRef,
    /// What it needs to continue; absent in a seed that was taken over from another run.
    pub state: Option<ObjectRef>,
    /// Mean loss on the validation data at this step, in nats per token.
    pub validation_loss: Option<f64>,
}

impl SeedRecord {
    /// Whether pretraining is complete.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.step >= self.steps
    }
}

/// The training of the paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingRecord {
    /// Hash of everything that the weights depend on besides the shards: configuration and seed.
    pub origin: String,
    /// Outer steps that each module takes in all.
    pub rounds: u32,
    /// The rounds after which the text is divided anew, ascending: phase k + 1 begins at version `boundaries[k]` of
    /// every module.
    pub boundaries: Vec<u32>,
    /// The phase that the run is in, counted from 0.
    pub phase: u32,
    /// The shard of each path in this phase, in path order.
    pub shards: Vec<ShardRecord>,
    /// Every module, level by level.
    pub modules: Vec<ModuleRecord>,
    /// Every path, in order.
    pub paths: Vec<PathRecord>,
}

/// The training data of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRecord {
    /// The token file's place in the run's routing folder, as in `phase-1/train/path-000.h5`.
    pub file: String,
    /// The token file's content hash.
    pub hash: String,
    /// Documents in it.
    pub documents: u64,
    /// Tokens in it: what outer gradients are weighted by.
    pub tokens: u64,
}

/// A module's current version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleRecord {
    /// Which module.
    pub module: ModuleId,
    /// Outer steps taken.
    pub version: u32,
    /// The global weights at this version.
    pub weights: ObjectRef,
    /// The outer optimizer's momentum; absent before the first outer step.
    pub momentum: Option<ObjectRef>,
    /// Earlier versions that some path's early-stopping best still needs.
    pub kept: Vec<KeptVersion>,
}

/// An earlier version of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptVersion {
    /// Outer steps taken at this version.
    pub version: u32,
    /// The global weights at this version.
    pub weights: ObjectRef,
}

/// How far a path is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathRecord {
    /// Rounds that the path has contributed to.
    pub rounds: u32,
    /// Whether its final weights have been measured on its held-out documents.
    pub measured: bool,
    /// Moments, step and data position at the end of its last round; absent before the first.
    pub state: Option<ObjectRef>,
    /// The version of its modules with the lowest loss on its held-out documents in this phase.
    pub best: Option<Best>,
    /// The version that was measured last in this phase.
    pub last: Option<Best>,
    /// Outer gradients that wait for the outer step of their module.
    pub contribution: Option<Contribution>,
}

/// A loss on a path's held-out documents; the lowest is its early-stopping best (arXiv:2403.10616 §2.7).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The version of the path's modules.
    pub version: u32,
    /// Mean loss on the path's held-out documents, in nats per token.
    pub loss: f64,
}

/// What a path has contributed to a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contribution {
    /// The round, counted from 0.
    pub round: u32,
    /// The outer gradients of the modules that have not stepped yet.
    pub gradients: Vec<ModuleGradient>,
}

/// One module's outer gradient from one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleGradient {
    /// Which module.
    pub module: ModuleId,
    /// The gradient.
    pub object: ObjectRef,
}

impl TrainingRecord {
    /// The round with which the current phase began.
    #[must_use]
    pub fn phase_begin(&self) -> u32 {
        let before = self.phase.checked_sub(1).and_then(|index| self.boundaries.get(index as usize));
        before.copied().unwrap_or(0)
    }

    /// The round with which the current phase ends: the next boundary, or the end of the run.
    #[must_use]
    pub fn phase_end(&self) -> u32 {
        self.boundaries.get(self.phase as usize).copied().unwrap_or(self.rounds)
    }

    /// Whether the current phase is over and another one is to begin: all paths have contributed to its last round and
    /// every module has stepped.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        let end = self.phase_end();
        (self.phase as usize) < self.boundaries.len()
            && self.modules.iter().all(|module| module.version == end)
    }

    /// The record of a module.
    #[must_use]
    pub fn module(&self, module: ModuleId) -> Option<&ModuleRecord> {
        self.modules.iter().find(|record| record.module == module)
    }

    /// The weights of a module at a version that is still kept.
    #[must_use]
    pub fn weights(&self, module: ModuleId, version: u32) -> Option<&ObjectRef> {
        let record = self.module(module)?;
        if record.version == version {
            return Some(&record.weights);
        }
        record.kept.iter().find(|kept| kept.version == version).map(|kept| &kept.weights)
    }

    /// The record of a path.
    #[must_use]
    pub fn path(&self, path: PathId) -> Option<&PathRecord> {
        self.paths.get(path.index())
    }
}
