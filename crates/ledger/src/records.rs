//! The objects of a training in the coordinator's memory, and the record of the training in the manifest.
//!
//! [`TrainingProgress`] says how far the training is, and only [`dipaco_sync::RunState`] changes it. [`TrainingObjects`]
//! holds everything else. The manifest's [`TrainingRecord`] is made of a [`TrainingSnapshot`] of both when it is written,
//! so no number is kept twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dipaco_sync::{Contribution, CountedNorms, FragmentId, PathProgress, SharedMap, TrainingProgress};
use dipaco_topology::PathId;

use crate::names::{self, Owner};
use crate::{
    ChangeRecord, CompletedLeaseRecord, ContributorRecord, CountRecord, EarlyStoppingBest, FragmentRecord,
    GradientRecord, KeptVersion, LedgerError, ModuleRecord, ObjectRef, PathRecord, QuarantineRecord,
    ShardRecord, TrainingRecord,
};

/// The objects of a training, and everything of its record that is not progress. A clone shares the records.
#[derive(Clone, Debug)]
pub(crate) struct TrainingObjects {
    origin: String,
    pub(crate) rounds: u32,
    pub(crate) inner_steps: u64,
    pub(crate) boundaries: Vec<u32>,
    pub(crate) shards: Arc<[ShardRecord]>,
    pub(crate) fragments: SharedMap<FragmentId, Arc<FragmentObjects>>,
    pub(crate) paths: SharedMap<PathId, Arc<PathObjects>>,
    pub(crate) numerics: Option<String>,
    pub(crate) numerics_token: Option<String>,
}

/// The objects of a fragment. [`FragmentRecord`] describes the fields.
#[derive(Clone, Debug)]
pub(crate) struct FragmentObjects {
    pub(crate) weights: ObjectRef,
    pub(crate) momentum: Option<ObjectRef>,
    pub(crate) changes: Vec<ChangeRecord>,
    pub(crate) kept: Vec<KeptVersion>,
    pub(crate) norms: CountedNorms,
    /// Outer gradients that wait for an outer step.
    pub(crate) gradients: SharedMap<Contribution, Arc<CountedGradient>>,
}

/// The object of an outer gradient that counts.
#[derive(Clone, Debug)]
pub(crate) struct CountedGradient {
    pub(crate) object: ObjectRef,
    pub(crate) norm: f64,
    pub(crate) token: String,
}

/// The objects and accounts of a path. [`PathRecord`] describes the fields.
#[derive(Clone, Debug)]
pub(crate) struct PathObjects {
    pub(crate) counted: Vec<CountRecord>,
    pub(crate) state: Option<ObjectRef>,
    pub(crate) fence: Option<u64>,
    pub(crate) completed_by: Option<String>,
    pub(crate) replay: Vec<CompletedLeaseRecord>,
    pub(crate) best: Option<EarlyStoppingBest>,
    pub(crate) last: Option<EarlyStoppingBest>,
    pub(crate) contributors: BTreeMap<String, ContributorRecord>,
    pub(crate) quarantine: Option<QuarantineRecord>,
}

/// A manifest's training, divided into progress and objects.
pub(crate) struct Divided {
    pub(crate) progress: TrainingProgress,
    pub(crate) phase: usize,
    pub(crate) objects: TrainingObjects,
}

/// A training at one time. It shares its records with the ledger, which goes on changing: the ledger copies the records that
/// it changes.
#[derive(Clone, Debug)]
pub(crate) struct TrainingSnapshot {
    pub(crate) objects: TrainingObjects,
    versions: SharedMap<FragmentId, u32>,
    progress: SharedMap<PathId, PathProgress>,
    phase: usize,
}

impl FragmentObjects {
    /// Weights of a kept version, or of the newest version `newest`.
    pub(crate) fn weights_at(&self, version: u32, newest: u32) -> Option<&ObjectRef> {
        if version == newest {
            return Some(&self.weights);
        }
        self.kept.iter().find(|kept| kept.version == version).map(|kept| &kept.weights)
    }

    /// The objects that a worker may fetch: weights and changes of weights.
    pub(crate) fn for_workers(&self) -> impl Iterator<Item = &ObjectRef> {
        let changes = self.changes.iter().map(|change| &change.object);
        [&self.weights].into_iter().chain(self.kept.iter().map(|kept| &kept.weights)).chain(changes)
    }

    /// The objects besides the outer gradients.
    fn of_versions(&self) -> impl Iterator<Item = &ObjectRef> {
        self.for_workers().chain(&self.momentum)
    }

    fn all(&self) -> impl Iterator<Item = &ObjectRef> {
        self.of_versions().chain(self.gradients.values().map(|gradient| &gradient.object))
    }

    /// The outer gradients of a path with a sequence number.
    fn gradients_of(&self, path: PathId, number: u32) -> impl Iterator<Item = &ObjectRef> {
        let first = Contribution { path, number, base: 0, steps: 0, tokens: 0 };
        let from = self.gradients.iter_from(&first);
        let of_path = from.take_while(move |(other, _)| (other.path, other.number) == (path, number));
        of_path.map(|(_, gradient)| &gradient.object)
    }
}

impl TrainingObjects {
    /// Tokens in the shard of each path.
    pub(crate) fn shard_tokens(&self) -> Vec<u64> {
        self.shards.iter().map(|shard| shard.tokens).collect()
    }

    /// True if the training refers to an object of this name.
    pub(crate) fn holds(&self, name: &str) -> bool {
        let is = |object: &ObjectRef| object.name == name;
        match names::owner(name) {
            Some(Owner::Fragment(fragment)) => {
                self.fragments.get(&fragment).is_some_and(|objects| objects.of_versions().any(is))
            }
            Some(Owner::OuterGradient(fragment, number, path)) => self
                .fragments
                .get(&fragment)
                .is_some_and(|objects| objects.gradients_of(path, number).any(is)),
            Some(Owner::Path(path)) => {
                self.paths.get(&path).and_then(|path| path.state.as_ref()).is_some_and(is)
            }
            // A name of another form, such as that of weights that the run began with.
            None => self.all().any(is),
        }
    }

    /// All objects of the training.
    pub(crate) fn all(&self) -> impl Iterator<Item = &ObjectRef> {
        let of_fragments = self.fragments.values().flat_map(|objects| objects.all());
        of_fragments.chain(self.paths.values().filter_map(|path| path.state.as_ref()))
    }

    pub(crate) fn fragment(&self, fragment: FragmentId) -> Result<&FragmentObjects, LedgerError> {
        self.fragments.get(&fragment).map(Arc::as_ref).ok_or_else(|| lacks_fragment(fragment))
    }

    /// The objects of a fragment, to change them. Copies them if a snapshot shares them.
    pub(crate) fn fragment_mut(&mut self, fragment: FragmentId) -> Result<&mut FragmentObjects, LedgerError> {
        self.fragments.get_mut(&fragment).map(Arc::make_mut).ok_or_else(|| lacks_fragment(fragment))
    }

    pub(crate) fn path(&self, path: PathId) -> Result<&PathObjects, LedgerError> {
        self.paths.get(&path).map(Arc::as_ref).ok_or_else(|| lacks_path(path))
    }

    /// The objects of a path, to change them. Copies them if a snapshot shares them.
    pub(crate) fn path_mut(&mut self, path: PathId) -> Result<&mut PathObjects, LedgerError> {
        self.paths.get_mut(&path).map(Arc::make_mut).ok_or_else(|| lacks_path(path))
    }
}

impl TrainingSnapshot {
    /// The training with these objects and this progress in a phase. Copies no records.
    pub(crate) fn new(objects: &TrainingObjects, progress: &TrainingProgress, phase: usize) -> Self {
        let TrainingProgress { versions, paths, pending: _, quarantined: _ } = progress;
        Self { objects: objects.clone(), versions: versions.clone(), progress: paths.clone(), phase }
    }

    /// The record of the training for the manifest. Looks at all fragments and paths: a manifest is written whole, once for
    /// all changes since the previous write.
    pub(crate) fn record(&self) -> Result<TrainingRecord, LedgerError> {
        let Self { objects, versions, progress, phase } = self;
        let mut modules: Vec<ModuleRecord> = Vec::new();
        let mut gradients: BTreeMap<PathId, Vec<GradientRecord>> = BTreeMap::new();
        for (&fragment, objects) in objects.fragments.iter() {
            let version = versions.get(&fragment).copied();
            let version = version.ok_or_else(|| lacks_fragment(fragment))?;
            for (contribution, gradient) in objects.gradients.iter() {
                let CountedGradient { object, norm, token } = gradient.as_ref().clone();
                let Contribution { path, number, base, steps, tokens } = *contribution;
                let FragmentId { module, index: fragment } = fragment;
                gradients.entry(path).or_default().push(GradientRecord {
                    module,
                    fragment,
                    number,
                    base,
                    steps,
                    tokens,
                    norm,
                    token,
                    object,
                });
            }
            if modules.last().is_none_or(|module| module.module != fragment.module) {
                modules.push(ModuleRecord { module: fragment.module, fragments: Vec::new() });
            }
            // Fragments come in order, so the last module is the fragment's.
            if let Some(module) = modules.last_mut() {
                let FragmentObjects { weights, momentum, changes, kept, norms, gradients: _ } =
                    objects.as_ref().clone();
                let (norm_paths, norms) = norms.iter().unzip();
                let record = FragmentRecord { version, weights, momentum, changes, kept, norms, norm_paths };
                module.fragments.push(record);
            }
        }
        let path = |((path, objects), progress): ((&PathId, &Arc<PathObjects>), &PathProgress)| {
            let PathObjects {
                counted,
                state,
                fence,
                completed_by,
                replay,
                best,
                last,
                contributors,
                quarantine,
            } = objects.as_ref().clone();
            let PathProgress { steps, measured, sent, adopted } = progress.clone();
            let gradients = gradients.remove(path).unwrap_or_default();
            PathRecord {
                steps,
                measured,
                sent,
                adopted,
                counted,
                state,
                fence,
                completed_by,
                replay,
                best,
                last,
                gradients,
                contributors,
                quarantine,
            }
        };
        Ok(TrainingRecord {
            origin: objects.origin.clone(),
            rounds: objects.rounds,
            inner_steps: objects.inner_steps,
            boundaries: objects.boundaries.clone(),
            phase: u32::try_from(*phase).unwrap_or(u32::MAX),
            shards: objects.shards.to_vec(),
            modules,
            paths: objects.paths.iter().zip(progress.values()).map(path).collect(),
            numerics: objects.numerics.clone(),
            numerics_token: objects.numerics_token.clone(),
        })
    }
}

impl TrainingRecord {
    /// Divides the record into progress and objects.
    pub(crate) fn divide(self) -> Result<Divided, LedgerError> {
        let mut progress = TrainingProgress {
            versions: SharedMap::default(),
            paths: SharedMap::default(),
            pending: BTreeMap::new(),
            quarantined: BTreeSet::new(),
        };
        let mut fragments: SharedMap<_, Arc<FragmentObjects>> = SharedMap::default();
        for ModuleRecord { module, fragments: records } in self.modules {
            for (index, record) in (0..).zip(records) {
                let FragmentRecord { version, weights, momentum, changes, kept, norms, norm_paths } = record;
                let norms = norm_paths.into_iter().zip(norms).collect();
                let fragment = FragmentId { module, index };
                progress.versions.insert(fragment, version);
                let gradients = SharedMap::default();
                let objects = FragmentObjects { weights, momentum, changes, kept, norms, gradients };
                fragments.insert(fragment, Arc::new(objects));
            }
        }
        let mut paths = SharedMap::default();
        for (path, record) in (0..).map(PathId).zip(self.paths) {
            let PathRecord { steps, measured, sent, adopted, counted, state, fence, replay, .. } = record;
            let PathRecord { completed_by, best, last, gradients, contributors, quarantine, .. } = record;
            progress.paths.insert(path, PathProgress { steps, measured, sent, adopted });
            if quarantine.is_some() {
                progress.quarantined.insert(path);
            }
            let objects = PathObjects {
                counted,
                state,
                fence,
                completed_by,
                replay,
                best,
                last,
                contributors,
                quarantine,
            };
            paths.insert(path, Arc::new(objects));
            for record in gradients {
                let GradientRecord { module, fragment: index, number, base, steps, tokens, .. } = record;
                let fragment = FragmentId { module, index };
                let contribution = Contribution { path, number, base, steps, tokens };
                progress.pending.entry(fragment).or_default().push(contribution);
                let GradientRecord { norm, token, object, .. } = record;
                let objects = fragments.get_mut(&fragment).ok_or_else(|| lacks_fragment(fragment))?;
                let gradient = Arc::new(CountedGradient { object, norm, token });
                Arc::make_mut(objects).gradients.insert(contribution, gradient);
            }
        }
        progress.pending.values_mut().for_each(|pending| pending.sort_unstable());
        let Self { origin, rounds, inner_steps, boundaries, phase, shards, numerics, numerics_token, .. } =
            self;
        let objects = TrainingObjects {
            origin,
            rounds,
            inner_steps,
            boundaries,
            shards: shards.into(),
            fragments,
            paths,
            numerics,
            numerics_token,
        };
        Ok(Divided { progress, phase: phase as usize, objects })
    }
}

fn lacks_fragment(fragment: FragmentId) -> LedgerError {
    LedgerError::Lacks { what: format!("fragment {fragment}") }
}

fn lacks_path(path: PathId) -> LedgerError {
    LedgerError::Lacks { what: format!("path {path}") }
}

/// The ledger records a contribution and its object together, so this is a fault of the program.
pub(crate) fn lacks_gradient(fragment: FragmentId, contribution: &Contribution) -> LedgerError {
    let Contribution { number, path, .. } = contribution;
    LedgerError::internal(format!("no object of outer gradient {number} of path {path} to {fragment}"))
}
