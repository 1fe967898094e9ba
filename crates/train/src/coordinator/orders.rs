//! What synchronizers are asked to do.

use std::collections::BTreeMap;

use dipaco_config::OuterConfig;
use dipaco_store::ObjectRef;
use dipaco_sync::{Contribution, FragmentId, OuterStep, Schedule, Weighting, merge_weights};
use dipaco_topology::{PathId, Topology};

use dipaco_protocol::{MergeInput, OuterStepOrder};

use crate::TrainError;
use crate::coordinator::ledger::{Ledger, shard_tokens};
use crate::host::ResultIntake;

/// Writes orders.
pub(crate) struct OrderBuilder<'a> {
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

impl<'a> OrderBuilder<'a> {
    /// Orders for the synchronizer of this number, by the books as they are.
    pub(crate) fn new(
        intake: &'a ResultIntake,
        schedule: &'a Schedule,
        ledger: &'a Ledger,
        fence: u64,
    ) -> Result<Self, TrainError> {
        let shards = shard_tokens(ledger.training()?);
        Ok(Self { topology: &intake.topology, schedule, outer: &intake.plan.outer, ledger, shards, fence })
    }

    /// The order for an outer step that is due.
    pub(crate) fn due(&self, step: &OuterStep) -> Result<OuterStepOrder, TrainError> {
        let gradients = self.gradients(step.fragment)?;
        let shares = step
            .contributions
            .iter()
            .zip(self.weights(step)?)
            .map(|(&Contribution { path, number, .. }, weight)| {
                let gradient = gradients.get(&(path, number)).cloned();
                let lacks = || format!("outer gradient {number} of path {path} to {}", step.fragment);
                let gradient = gradient.ok_or_else(|| TrainError::ManifestLacks { what: lacks() })?;
                Ok(MergeInput { path, weight, gradient: Some(gradient) })
            })
            .collect::<Result<_, TrainError>>()?;
        let order = self.order(step.fragment, step.version, shares)?;
        Ok(OuterStepOrder { due: true, applied: self.applied(step.fragment), ..order })
    }

    /// The order for the next outer step of a fragment, with what is there of it; nothing where it is not known
    /// beforehand who contributes, and with which weight.
    pub(crate) fn early(&self, fragment: FragmentId) -> Result<Option<OuterStepOrder>, TrainError> {
        let tokens = self.outer.weighting == Weighting::Tokens;
        if !self.ledger.rounds().waits() || tokens || self.outer.delayed().is_some() {
            return Ok(None);
        }
        let progress = self.ledger.rounds().progress();
        let version = progress.versions.get(&fragment).copied().unwrap_or(0) + 1;
        let gradients = self.gradients(fragment)?;
        let dropped = |path| self.schedule.dropped(path, fragment.index, u64::from(version));
        let learners: Vec<_> =
            self.topology.paths_through(fragment.module).filter(|&path| !dropped(path)).collect();
        if learners.is_empty() {
            return Ok(None);
        }
        let shares = merge_weights(self.outer.weighting, &self.sizes(&learners))?
            .into_iter()
            .map(|(path, weight)| MergeInput {
                path,
                weight,
                gradient: gradients.get(&(path, version)).cloned(),
            })
            .collect();
        self.order(fragment, version, shares).map(Some)
    }

    /// An order that is not due.
    fn order(
        &self,
        fragment: FragmentId,
        version: u32,
        shares: Vec<MergeInput>,
    ) -> Result<OuterStepOrder, TrainError> {
        let record = self.ledger.training()?.fragment(fragment.module, fragment.index);
        let record =
            record.ok_or_else(|| TrainError::ManifestLacks { what: format!("fragment {fragment}") })?;
        Ok(OuterStepOrder {
            fragment,
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
            let learners: Vec<_> = self.topology.paths_through(step.fragment.module).collect();
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
    fn applied(&self, fragment: FragmentId) -> u64 {
        let progress = self.ledger.rounds().progress();
        let slot = fragment.slot(self.schedule.fragments());
        let learners = self.topology.paths_through(fragment.module);
        let sent = learners.filter_map(|path| progress.paths.get(path.index())?.sent.get(slot));
        let pending = progress.pending.get(&fragment).map_or(0, Vec::len) as u64;
        sent.map(|&sent| u64::from(sent)).sum::<u64>().saturating_sub(pending)
    }

    fn gradients(&self, fragment: FragmentId) -> Result<Gradients, TrainError> {
        let training = self.ledger.training()?;
        let records = self
            .topology
            .paths_through(fragment.module)
            .filter_map(|path| Some((path, training.path(path)?)));
        let all =
            records.flat_map(|(path, record)| record.gradients.iter().map(move |gradient| (path, gradient)));
        let of_fragment = all.filter(|(_, g)| (g.module, g.fragment) == (fragment.module, fragment.index));
        Ok(of_fragment.map(|(path, g)| ((path, g.number), g.object.clone())).collect())
    }
}
