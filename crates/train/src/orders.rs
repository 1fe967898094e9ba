//! What synchronizers are asked to do.

use std::collections::BTreeMap;

use dipaco_config::OuterConfig;
use dipaco_store::ObjectRef;
use dipaco_sync::{Contribution, OuterStep, Schedule, Unit, Weighting, merge_weights};
use dipaco_topology::{PathId, Topology};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::intake::Intake;
use crate::ledger::{Ledger, shard_tokens};

/// An outer step, as far as what it merges is there: it names everything that it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OuterOrder {
    /// The fragment.
    pub unit: Unit,
    /// The version that the step makes.
    pub version: u32,
    /// The fencing number of the synchronizer that takes it.
    pub fence: u64,
    /// The global weights before it.
    pub weights: ObjectRef,
    /// What the outer optimizer remembers; absent before the first step.
    pub momentum: Option<ObjectRef>,
    /// What is merged, in this order.
    pub shares: Vec<Share>,
    /// How many contributions have been applied before these.
    pub applied: u64,
    /// Whether the step can be taken. Before that, what is there may be merged beforehand.
    pub due: bool,
}

/// A contribution to an outer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Whose it is.
    pub path: PathId,
    /// Its factor in the mean.
    pub weight: f32,
    /// The outer gradient, when it is there.
    pub gradient: Option<ObjectRef>,
}

/// An outer step that has been taken; what it made is in the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OuterDone {
    /// The fragment.
    pub unit: Unit,
    /// Its version now.
    pub version: u32,
    /// The fencing number of the synchronizer that took the step.
    pub fence: u64,
    /// The new global weights.
    pub weights: ObjectRef,
    /// What the outer optimizer remembers now.
    pub momentum: ObjectRef,
    /// The change of the weights, where that is what workers fetch.
    pub change: Option<ObjectRef>,
    /// The norm of what was merged.
    pub norm: f64,
    /// Mean cosine similarity of what was merged to its mean, when that was measured.
    pub cosine: Option<f64>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl OuterDone {
    /// What the step has put into the store.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        [&self.weights, &self.momentum].into_iter().chain(&self.change)
    }
}

/// Writes orders.
pub(crate) struct Orders<'a> {
    topology: &'a Topology,
    schedule: &'a Schedule,
    outer: &'a OuterConfig,
    ledger: &'a Ledger,
    /// Tokens in the shard of each path: those of this phase.
    shards: Vec<u64>,
    /// The fencing number of who takes them.
    fence: u64,
}

/// Outer gradients of one fragment that count, with their objects.
type Gradients = BTreeMap<(PathId, u32), ObjectRef>;

impl<'a> Orders<'a> {
    /// Orders for the synchronizer of this number, by the books as they are.
    pub(crate) fn new(
        intake: &'a Intake,
        schedule: &'a Schedule,
        ledger: &'a Ledger,
        fence: u64,
    ) -> Result<Self, TrainError> {
        let shards = shard_tokens(ledger.training()?);
        Ok(Self { topology: &intake.topology, schedule, outer: &intake.plan.outer, ledger, shards, fence })
    }

    /// The order for an outer step that is due.
    pub(crate) fn due(&self, step: &OuterStep) -> Result<OuterOrder, TrainError> {
        let gradients = self.gradients(step.unit)?;
        let shares = step
            .contributions
            .iter()
            .zip(self.weights(step)?)
            .map(|(&Contribution { path, number, .. }, weight)| {
                let gradient = gradients.get(&(path, number)).cloned();
                let lacks = || format!("outer gradient {number} of path {path} to {}", step.unit);
                let gradient = gradient.ok_or_else(|| TrainError::ManifestLacks { what: lacks() })?;
                Ok(Share { path, weight, gradient: Some(gradient) })
            })
            .collect::<Result<_, TrainError>>()?;
        let order = self.order(step.unit, step.version, shares)?;
        Ok(OuterOrder { due: true, applied: self.applied(step.unit), ..order })
    }

    /// The order for the next outer step of a fragment, with what is there of it; nothing where it is not known
    /// beforehand who contributes, and with which weight.
    pub(crate) fn early(&self, unit: Unit) -> Result<Option<OuterOrder>, TrainError> {
        let tokens = self.outer.weighting == Weighting::Tokens;
        if !self.ledger.rounds().waits() || tokens || self.outer.delayed().is_some() {
            return Ok(None);
        }
        let progress = self.ledger.rounds().progress();
        let version = progress.versions.get(&unit).copied().unwrap_or(0) + 1;
        let gradients = self.gradients(unit)?;
        let dropped = |path| self.schedule.dropped(path, unit.fragment, u64::from(version));
        let learners: Vec<_> =
            self.topology.paths_through(unit.module).filter(|&path| !dropped(path)).collect();
        if learners.is_empty() {
            return Ok(None);
        }
        let shares = merge_weights(self.outer.weighting, &self.sizes(&learners))?
            .into_iter()
            .map(|(path, weight)| Share { path, weight, gradient: gradients.get(&(path, version)).cloned() })
            .collect();
        self.order(unit, version, shares).map(Some)
    }

    /// An order that is not due.
    fn order(&self, unit: Unit, version: u32, shares: Vec<Share>) -> Result<OuterOrder, TrainError> {
        let record = self.ledger.training()?.fragment(unit.module, unit.fragment);
        let record = record.ok_or_else(|| TrainError::ManifestLacks { what: format!("fragment {unit}") })?;
        Ok(OuterOrder {
            unit,
            version,
            fence: self.fence,
            weights: record.weights.clone(),
            momentum: record.momentum.clone(),
            applied: 0,
            shares,
            due: false,
        })
    }

    /// The weight of each contribution of a step.
    fn weights(&self, step: &OuterStep) -> Result<Vec<f32>, TrainError> {
        let paths: Vec<PathId> = step.contributions.iter().map(|contribution| contribution.path).collect();
        if self.outer.delayed().is_some() {
            // Each is applied by itself, as if all learners had contributed the like.
            let learners: Vec<_> = self.topology.paths_through(step.unit.module).collect();
            let weights: BTreeMap<PathId, f32> =
                merge_weights(self.outer.weighting, &self.sizes(&learners))?.into_iter().collect();
            // The number of paths is at most 2^20, which f32 holds exactly.
            #[allow(clippy::cast_precision_loss)]
            let scale = |path| {
                weights.get(path).copied().unwrap_or(0.0)
                    * learners.len() as f32
                    * self.outer.rescale.factor(learners.len())
            };
            return Ok(paths.iter().map(scale).collect());
        }
        let sizes: Vec<u64> = match self.outer.weighting {
            Weighting::Tokens => step.contributions.iter().map(Contribution::amount).collect(),
            Weighting::ShardSize | Weighting::Uniform => {
                self.sizes(&paths).into_iter().map(|(_, size)| size).collect()
            }
        };
        // A path may have contributed more than once: each contribution is a learner of its own here.
        let sizes: Vec<_> = (0..).map(PathId).zip(sizes).collect();
        if sizes.is_empty() {
            return Ok(Vec::new());
        }
        Ok(merge_weights(self.outer.weighting, &sizes)?.into_iter().map(|(_, weight)| weight).collect())
    }

    fn sizes(&self, paths: &[PathId]) -> Vec<(PathId, u64)> {
        paths.iter().map(|&path| (path, self.shards.get(path.index()).copied().unwrap_or(0))).collect()
    }

    /// How many contributions to a fragment have been applied: what has been sent and does not wait.
    fn applied(&self, unit: Unit) -> u64 {
        let progress = self.ledger.rounds().progress();
        let slot = unit.slot(self.schedule.fragments());
        let learners = self.topology.paths_through(unit.module);
        let sent = learners.filter_map(|path| progress.paths.get(path.index())?.sent.get(slot));
        let pending = progress.pending.get(&unit).map_or(0, Vec::len) as u64;
        sent.map(|&sent| u64::from(sent)).sum::<u64>().saturating_sub(pending)
    }

    fn gradients(&self, unit: Unit) -> Result<Gradients, TrainError> {
        let training = self.ledger.training()?;
        let records =
            self.topology.paths_through(unit.module).filter_map(|path| Some((path, training.path(path)?)));
        let all =
            records.flat_map(|(path, record)| record.gradients.iter().map(move |gradient| (path, gradient)));
        let of_unit = all.filter(|(_, g)| (g.module, g.fragment) == (unit.module, unit.fragment));
        Ok(of_unit.map(|(path, g)| ((path, g.number), g.object.clone())).collect())
    }
}
