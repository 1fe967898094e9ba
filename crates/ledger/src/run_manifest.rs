//! The record of a run's current objects: the content of the manifest.
//!
//! All other objects of the store are immutable; this record lists the objects that make up the run now. It is
//! sufficient for serving, for evaluation, and for a coordinator that continues the run.

use dipaco_topology::{ModuleId, PathId};
use serde::{Deserialize, Serialize};

use crate::ObjectRef;

mod before_quarantine;
mod path_record;

pub use path_record::{
    CompletedLeaseRecord, ContributorRecord, CountRecord, EarlyStoppingBest, GradientRecord, PathRecord,
    QuarantineRecord,
};

/// The current state of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunManifest {
    /// Identity of the run, drawn at its start.
    pub run: String,
    /// Number of coordinators that the run has had. It makes the fencing numbers of each coordinator unique.
    pub incarnation: u32,
    /// The dense path from which every path starts; absent before its pretraining begins.
    pub seed: Option<SeedRecord>,
    /// The modules of another run from which this run begins; absent in a run that begins with its seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension: Option<ExtensionRecord>,
    /// The training of the paths; absent before it begins.
    pub training: Option<TrainingRecord>,
    /// Checkpoints of the training, the newest last. A run with a damaged object goes back to a checkpoint.
    pub checkpoints: Vec<CheckpointRecord>,
    /// The last times that an operator took the training back, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rollbacks: Vec<RollbackRecord>,
}

/// Number of rollbacks that the manifest remembers.
const REMEMBERED_ROLLBACKS: usize = 16;

/// The return of a training to an earlier round, on an operator's request or because the store was damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollbackRecord {
    /// Rounds that every path had completed before.
    pub from: u32,
    /// Rounds that every path had completed at the checkpoint.
    pub to: u32,
    /// Rounds of the later checkpoints, which are undone.
    pub undone: Vec<u32>,
}

/// A checkpoint of the training. The store keeps all objects that it refers to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRecord {
    /// Rounds that every path had completed.
    pub round: u32,
    /// The [`TrainingRecord`] as JSON.
    pub object: ObjectRef,
}

impl RunManifest {
    /// A run before its first step.
    #[must_use]
    pub fn new(run: String) -> Self {
        Self {
            run,
            incarnation: 0,
            seed: None,
            extension: None,
            training: None,
            checkpoints: Vec::new(),
            rollbacks: Vec::new(),
        }
    }

    /// Adds a rollback to the remembered ones.
    pub fn note_rollback(&mut self, rollback: RollbackRecord) {
        self.rollbacks.push(rollback);
        self.rollbacks.drain(..self.rollbacks.len().saturating_sub(REMEMBERED_ROLLBACKS));
    }

    /// Names the weights with which the training begins: the hash of the seed, followed by the hash of an extension. `None`
    /// without a finished seed.
    #[must_use]
    pub fn start_hash(&self) -> Option<String> {
        let seed = self.seed.as_ref().filter(|seed| seed.finished())?;
        let extension = self.extension.as_ref().map(|extension| extension.hash.as_str());
        Some(format!("{}{}", seed.weights.hash, extension.unwrap_or_default()))
    }

    /// Current phase of routing, from 0. It selects the router and the shards.
    #[must_use]
    pub fn phase(&self) -> u32 {
        self.training.as_ref().map_or(0, |training| training.phase)
    }
}

/// The modules of a finished run from which another run begins (`dipaco extend`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtensionRecord {
    /// Identity of the finished run.
    pub from: String,
    /// Hash over the topology and the weights of all modules.
    pub hash: String,
    /// All modules at version 0, level by level. Empty when the training has begun, because its record then lists them.
    pub modules: Vec<ModuleRecord>,
}

/// The seed model and the progress of its pretraining.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedRecord {
    /// Hash of the training data and of all configuration that the weights depend on.
    pub origin: String,
    /// Inner steps taken.
    pub step: u64,
    /// Inner steps planned.
    pub steps: u64,
    /// Weights of the whole path.
    pub weights: ObjectRef,
    /// State from which pretraining continues; absent in a seed from another run.
    pub state: Option<ObjectRef>,
    /// Mean loss on the validation data at this step, in nats per token.
    pub validation_loss: Option<f64>,
    /// The imported weights from which the pretraining began; absent in a seed that began with random weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<ObjectRef>,
}

impl SeedRecord {
    /// True if these are imported weights, without any step of this run.
    #[must_use]
    pub fn is_imported_as_is(&self) -> bool {
        self.step == 0 && self.imported.as_ref() == Some(&self.weights)
    }

    /// True if pretraining is complete.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.step >= self.steps
    }
}

/// The training of the paths.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingRecord {
    /// Hash of the configuration and the seed, on which the weights depend besides the shards.
    pub origin: String,
    /// Rounds of the whole run, of H inner steps of each path.
    pub rounds: u32,
    /// H: inner steps of a path in a round.
    pub inner_steps: u64,
    /// Rounds after which a new router divides the text, ascending: phase k + 1 begins after `boundaries[k]` rounds of
    /// every path.
    pub boundaries: Vec<u32>,
    /// Current phase, from 0.
    pub phase: u32,
    /// Shard of each path in this phase, in path order.
    pub shards: Vec<ShardRecord>,
    /// All modules, level by level.
    pub modules: Vec<ModuleRecord>,
    /// All paths, in order.
    pub paths: Vec<PathRecord>,
    /// Fingerprint of the arithmetic of the first device whose outer gradient counts; absent before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numerics: Option<String>,
    /// Name of the token with which that device contributed; absent in a manifest of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numerics_token: Option<String>,
}

/// The training data of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRecord {
    /// Path of the token set in the run's routing folder, such as `phase-1/train/path-000.json`.
    pub file: String,
    /// Content hash of the token set.
    pub hash: String,
    /// Documents in the shard.
    pub documents: u64,
    /// Tokens in the shard: the weight of the path's outer gradients.
    pub tokens: u64,
}

/// Current state of a module, by fragment. An uncut module has one fragment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleRecord {
    /// The module.
    pub module: ModuleId,
    /// Its fragments, in order.
    pub fragments: Vec<FragmentRecord>,
}

/// Current version of a fragment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FragmentRecord {
    /// Outer steps taken.
    pub version: u32,
    /// Global weights at this version.
    pub weights: ObjectRef,
    /// State of the outer optimizer: momentum, and further buffers that its configuration needs; absent before the
    /// first outer step.
    pub momentum: Option<ObjectRef>,
    /// The last changes of the weights, the newest last. Together they are shorter than the weights.
    pub changes: Vec<ChangeRecord>,
    /// Earlier versions that a path still needs: for training, or as its early-stopping best.
    pub kept: Vec<KeptVersion>,
    /// Norms of the last outer gradients that count, the newest last. New norms are compared with them.
    pub norms: Vec<f64>,
    /// The path of each norm. Norms without one are of an earlier version, and are forgotten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub norm_paths: Vec<PathId>,
}

/// Change of a fragment's weights from one version to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeRecord {
    /// Content hash of the weights before the change.
    pub from: String,
    /// Version after the change.
    pub version: u32,
    /// The change.
    pub object: ObjectRef,
}

impl FragmentRecord {
    /// A fragment before its first outer step.
    #[must_use]
    pub fn first(weights: ObjectRef) -> Self {
        Self {
            version: 0,
            weights,
            momentum: None,
            changes: Vec::new(),
            kept: Vec::new(),
            norms: Vec::new(),
            norm_paths: Vec::new(),
        }
    }

    /// Weights at a kept version.
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
    /// Global weights at this version.
    pub weights: ObjectRef,
}

impl TrainingRecord {
    /// Contributions of the bearer of a token, by path.
    pub fn contributions_of<'a>(
        &'a self,
        token: &'a str,
    ) -> impl Iterator<Item = (PathId, &'a ContributorRecord)> + 'a {
        let paths = (0..).map(PathId).zip(&self.paths);
        paths.filter_map(move |(path, record)| Some((path, record.contributors.get(token)?)))
    }

    /// First round of the current phase.
    #[must_use]
    pub fn phase_begin(&self) -> u32 {
        let before = self.phase.checked_sub(1).and_then(|index| self.boundaries.get(index as usize));
        before.copied().unwrap_or(0)
    }

    /// End of the current phase in rounds: the next boundary, or the end of the run.
    #[must_use]
    pub fn phase_end(&self) -> u32 {
        self.boundaries.get(self.phase as usize).copied().unwrap_or(self.rounds)
    }

    /// Inner steps of a path at the start of the current phase.
    #[must_use]
    pub fn phase_begin_step(&self) -> u64 {
        u64::from(self.phase_begin()).saturating_mul(self.inner_steps)
    }

    /// Complete rounds of a path. They go on while it rests or is in quarantine.
    #[must_use]
    pub fn rounds_of(&self, path: &PathRecord) -> u32 {
        self.rounds_in(path.steps)
    }

    fn rounds_in(&self, steps: u64) -> u32 {
        u32::try_from(steps / self.inner_steps.max(1)).unwrap_or(u32::MAX)
    }

    /// True if the run is complete. The last lease of a path measures its final weights, so all are merged by then.
    #[must_use]
    pub fn finished(&self) -> bool {
        !self.paths.is_empty() && self.paths.iter().all(|path| path.measured)
    }

    /// Rounds that every path has completed.
    #[must_use]
    pub fn rounds_done(&self) -> u32 {
        self.paths.iter().map(|path| self.rounds_of(path)).min().unwrap_or(0)
    }

    /// True if the current phase is over and another phase follows: all paths have reached its end, and all their
    /// contributions are merged.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        let end = u64::from(self.phase_end()).saturating_mul(self.inner_steps);
        (self.phase as usize) < self.boundaries.len()
            && self.paths.iter().all(|path| path.steps == end && path.gradients.is_empty())
    }

    /// All objects that the training refers to.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leases_to_replay_keep_their_json_key() {
        let lease =
            CompletedLeaseRecord { from: 3, to: 6, versions: vec![1, 2], received: vec![true, false] };
        let record = PathRecord { replay: vec![lease], ..PathRecord::default() };
        let json = serde_json::to_value(&record).unwrap();
        assert_eq!(json["tail"][0]["from"], 3);
        assert_eq!(json.get("replay"), None);
        assert_eq!(serde_json::from_value::<PathRecord>(json).unwrap(), record);
    }
}
