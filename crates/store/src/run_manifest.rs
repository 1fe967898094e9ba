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
    /// What the training has been before, the newest at the end: it goes back there when something of it is damaged.
    pub checkpoints: Vec<CheckpointRecord>,
}

/// The training as it was at some time. All objects that it refers to are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRecord {
    /// Rounds that every path had been trained for.
    pub round: u32,
    /// The [`TrainingRecord`] as JSON.
    pub object: ObjectRef,
}

impl ManifestSchema for RunManifest {
    const SCHEMA: &'static str = "dipaco-run";
    const VERSION: u32 = 4;
}

impl RunManifest {
    /// A run in which nothing has happened yet.
    #[must_use]
    pub fn new(run: String) -> Self {
        Self { run, incarnation: 0, seed: None, training: None, checkpoints: Vec::new() }
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
    /// Rounds of H inner steps that each path takes in all.
    pub rounds: u32,
    /// H, the inner steps of a round.
    pub inner_steps: u64,
    /// The rounds after which the text is divided anew, ascending: phase k + 1 begins after `boundaries[k]` rounds of
    /// every path.
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

/// A module's current state: that of each of its fragments, of which an uncut module has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleRecord {
    /// Which module.
    pub module: ModuleId,
    /// Its fragments, in order.
    pub fragments: Vec<FragmentRecord>,
}

/// A fragment's current version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FragmentRecord {
    /// Outer steps taken.
    pub version: u32,
    /// The global weights at this version.
    pub weights: ObjectRef,
    /// What the outer optimizer remembers: momentum, and what its configuration needs besides; absent before the first
    /// outer step.
    pub momentum: Option<ObjectRef>,
    /// How the weights came to be what they are, as far as that is shorter than they are, the newest at the end.
    pub changes: Vec<ChangeRecord>,
    /// Earlier versions that some path still needs: to train on, or as its early-stopping best.
    pub kept: Vec<KeptVersion>,
}

/// The change of a fragment's weights from one version to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeRecord {
    /// Content hash of the weights that it is added to.
    pub from: String,
    /// The version that it makes.
    pub version: u32,
    /// The change.
    pub object: ObjectRef,
}

impl FragmentRecord {
    /// The weights at a version that is still kept.
    #[must_use]
    pub fn weights_at(&self, version: u32) -> Option<&ObjectRef> {
        if self.version == version {
            return Some(&self.weights);
        }
        self.kept.iter().find(|kept| kept.version == version).map(|kept| &kept.weights)
    }
}

/// An earlier version of a fragment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptVersion {
    /// Outer steps taken at this version.
    pub version: u32,
    /// The global weights at this version.
    pub weights: ObjectRef,
}

/// How far a path is. Lists are over the path's fragments, level by level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathRecord {
    /// Inner steps taken, up to the end of the path's last complete lease.
    pub steps: u64,
    /// Whether its final weights have been measured on its held-out documents.
    pub measured: bool,
    /// How many of its outer gradients count, for each fragment.
    pub sent: Vec<u32>,
    /// The version that it took over last, of each fragment.
    pub adopted: Vec<u32>,
    /// What the outer gradients that count hold together, for each fragment.
    pub counted: Vec<CountRecord>,
    /// What it needs to train on besides global weights; absent before its first lease is complete.
    pub state: Option<ObjectRef>,
    /// The fencing number of its last complete lease, under which what its worker holds of it was made.
    pub fence: Option<u64>,
    /// Complete leases since `state`. A worker that takes the path over without their state trains them again.
    #[serde(rename = "tail")]
    pub replay: Vec<CompletedLeaseRecord>,
    /// The versions of its fragments with the lowest loss on its held-out documents in this phase.
    pub best: Option<Best>,
    /// The versions that were measured last in this phase.
    pub last: Option<Best>,
    /// Outer gradients that wait for the outer step of their fragment.
    pub gradients: Vec<GradientRecord>,
}

/// What outer gradients hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountRecord {
    /// Inner steps.
    pub steps: u64,
    /// Tokens trained on, padding not counted.
    pub tokens: u64,
}

/// A complete lease of a path. Lists are over the path's fragments, level by level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompletedLeaseRecord {
    /// Inner steps that the path had taken before it.
    pub from: u64,
    /// Inner steps that it had taken after it.
    pub to: u64,
    /// The version of each fragment that the path had taken over.
    pub versions: Vec<u32>,
    /// Whether it took the fragment over when the lease began.
    pub received: Vec<bool>,
}

/// A loss on a path's held-out documents; the lowest is its early-stopping best (arXiv:2403.10616 §2.7).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The round of the path that began with these weights, counted from 0.
    pub round: u32,
    /// The versions of the path's fragments, level by level.
    pub versions: Vec<u32>,
    /// Mean loss on the path's held-out documents, in nats per token.
    pub loss: f64,
}

/// A fragment's outer gradient from one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GradientRecord {
    /// Which module.
    pub module: ModuleId,
    /// Which fragment of it.
    pub fragment: u32,
    /// The how manieth it is of the path to this fragment, from 1.
    pub number: u32,
    /// The version of the fragment that the path had taken over.
    pub base: u32,
    /// Inner steps in it.
    pub steps: u64,
    /// Tokens in it.
    pub tokens: u64,
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

    /// Inner steps of a path with which the current phase began.
    #[must_use]
    pub fn phase_begin_step(&self) -> u64 {
        u64::from(self.phase_begin()) * self.inner_steps
    }

    /// Rounds that a path has been trained for to their end.
    #[must_use]
    pub fn rounds_of(&self, path: &PathRecord) -> u32 {
        u32::try_from(path.steps / self.inner_steps.max(1)).unwrap_or(u32::MAX)
    }

    /// Rounds that every path has been trained for to their end.
    #[must_use]
    pub fn rounds_done(&self) -> u32 {
        self.paths.iter().map(|path| self.rounds_of(path)).min().unwrap_or(0)
    }

    /// Whether the current phase is over and another one is to begin: all paths have been trained to its end, and what
    /// they contributed has been merged.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        let end = u64::from(self.phase_end()) * self.inner_steps;
        (self.phase as usize) < self.boundaries.len()
            && self.paths.iter().all(|path| path.steps == end && path.gradients.is_empty())
    }

    /// Every object that the training refers to.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        let fragments = self.modules.iter().flat_map(|module| &module.fragments);
        let of_fragments = fragments.flat_map(|fragment| {
            let changes = fragment.changes.iter().map(|change| &change.object);
            let kept = fragment.kept.iter().map(|kept| &kept.weights);
            [&fragment.weights].into_iter().chain(&fragment.momentum).chain(kept).chain(changes)
        });
        let of_paths = self
            .paths
            .iter()
            .flat_map(|path| path.state.iter().chain(path.gradients.iter().map(|gradient| &gradient.object)));
        of_fragments.chain(of_paths)
    }

    /// The record of a module.
    #[must_use]
    pub fn module(&self, module: ModuleId) -> Option<&ModuleRecord> {
        self.modules.iter().find(|record| record.module == module)
    }

    /// The record of a fragment.
    #[must_use]
    pub fn fragment(&self, module: ModuleId, fragment: u32) -> Option<&FragmentRecord> {
        self.module(module)?.fragments.get(fragment as usize)
    }

    /// The record of a path.
    #[must_use]
    pub fn path(&self, path: PathId) -> Option<&PathRecord> {
        self.paths.get(path.index())
    }
}
