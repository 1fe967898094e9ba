//! Orders of outer steps.

use std::collections::BTreeMap;

use dipaco_config::OuterConfig;
use dipaco_store::GradientRecord;
use dipaco_sync::{Contribution, FragmentId, Guard, OuterStep, Schedule, Weighting, merge_weights};
use dipaco_topology::{PathId, Topology};

use dipaco_protocol::{MergeInput, OuterStepOrder};

use crate::coordinator::error::CoordinatorError;
use crate::coordinator::ledger::{Ledger, shard_tokens};
use crate::host::ResultIntake;

/// Writes the orders of one synchronizer.
pub(crate) struct OrderBuilder<'a> {
    topology: &'a Topology,
    schedule: &'a Schedule,
    outer: &'a OuterConfig,
    ledger: &'a Ledger,
    /// Tokens in the shard of each path in this phase.
    shard_tokens: Vec<u64>,
    /// Fencing number of the synchronizer that takes the steps.
    fence: u64,
}

/// Identity of an outer gradient of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GradientKey {
    path: PathId,
    /// Sequence number of the path's contributions to the fragment, from 1.
    number: u32,
}

/// Outer gradients of one fragment that count, with their records.
type Gradients<'a> = BTreeMap<GradientKey, &'a GradientRecord>;

impl<'a> OrderBuilder<'a> {
    /// Orders for the synchronizer with this fencing number, by the current ledger.
    pub(crate) fn new(
        intake: &'a ResultIntake,
        schedule: &'a Schedule,
        ledger: &'a Ledger,
        fence: u64,
    ) -> Result<Self, CoordinatorError> {
        let shard_tokens = shard_tokens(ledger.training()?);
        Ok(Self {
            topology: &intake.topology,
            schedule,
            outer: &intake.plan.outer,
            ledger,
            shard_tokens,
            fence,
        })
    }

    /// The order for an outer step that is due.
    pub(crate) fn due(&self, step: &OuterStep) -> Result<OuterStepOrder, CoordinatorError> {
        let known = self.gradients(step.fragment)?;
        let record = |&Contribution { path, number, .. }: &Contribution| {
            // The ledger records a contribution and its object together.
            let lacks =
                || format!("no object of outer gradient {number} of path {path} to {}", step.fragment);
            known
                .get(&GradientKey { path, number })
                .copied()
                .ok_or_else(|| CoordinatorError::internal(lacks()))
        };
        let gradients = step.contributions.iter().map(record).collect::<Result<Vec<_>, _>>()?;
        let norms: Vec<f64> = gradients.iter().map(|gradient| gradient.norm).collect();
        let reductions = Guard::new(self.outer.guard).reductions(&norms);
        let weights = self.merge_weights_of(step)?.into_iter().zip(reductions);
        let mut shares = Vec::with_capacity(gradients.len());
        for ((contribution, gradient), (weight, reduction)) in
            step.contributions.iter().zip(gradients).zip(weights)
        {
            let path = contribution.path;
            if reduction < 1.0 {
                tracing::warn!(%path, fragment = %step.fragment, gradient.norm, gradient.token, "an outer gradient out of proportion is reduced");
            }
            let object = Some(gradient.object.clone());
            shares.push(MergeInput { path, weight: weight * reduction, gradient: object });
        }
        let order = self.order(step.fragment, step.version, shares)?;
        Ok(OuterStepOrder { due: true, applied: self.applied(step.fragment), ..order })
    }

    /// The order for the next outer step of a fragment before it is due, with the outer gradients that have arrived. It
    /// lets a synchronizer merge them early. `None` where the contributors or their weights are not known beforehand, and
    /// where the merge needs all contributions at once.
    pub(crate) fn early(&self, fragment: FragmentId) -> Result<Option<OuterStepOrder>, CoordinatorError> {
        let outer = self.outer;
        let later =
            outer.weighting == Weighting::Tokens || outer.delayed().is_some() || outer.merge.compares();
        if later || !self.ledger.state().waits() {
            return Ok(None);
        }
        let progress = self.ledger.state().progress();
        let version = progress.versions.get(&fragment).copied().unwrap_or(0) + 1;
        let gradients = self.gradients(fragment)?;
        let dropped = |path| self.schedule.dropped(path, fragment.index, u64::from(version));
        let learners: Vec<_> =
            self.topology.paths_through(fragment.module).filter(|&path| !dropped(path)).collect();
        if learners.is_empty() {
            return Ok(None);
        }
        let shares = merge_weights(self.outer.weighting, &self.shard_sizes(&learners))?
            .into_iter()
            .map(|(path, weight)| MergeInput {
                path,
                weight,
                gradient: gradients
                    .get(&GradientKey { path, number: version })
                    .map(|gradient| gradient.object.clone()),
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
    ) -> Result<OuterStepOrder, CoordinatorError> {
        let record = self.ledger.training()?.fragment(fragment.module, fragment.index);
        let lacks = || CoordinatorError::ManifestLacks { what: format!("fragment {fragment}") };
        let record = record.ok_or_else(lacks)?;
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
    fn merge_weights_of(&self, step: &OuterStep) -> Result<Vec<f32>, CoordinatorError> {
        let paths: Vec<PathId> = step.contributions.iter().map(|contribution| contribution.path).collect();
        if self.outer.delayed().is_some() {
            // Each contribution is applied by itself, as if all learners had contributed the same gradient.
            let learners: Vec<_> = self.topology.paths_through(step.fragment.module).collect();
            let weights: BTreeMap<PathId, f32> =
                merge_weights(self.outer.weighting, &self.shard_sizes(&learners))?.into_iter().collect();
            // There are at most 2^20 paths, a number that f32 holds exactly.
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
                self.shard_sizes(&paths).into_iter().map(|(_, size)| size).collect()
            }
        };
        // A path may have contributed more than once, so each contribution counts as a learner here.
        let sizes: Vec<_> = (0..).map(PathId).zip(sizes).collect();
        if sizes.is_empty() {
            return Ok(Vec::new());
        }
        Ok(merge_weights(self.outer.weighting, &sizes)?.into_iter().map(|(_, weight)| weight).collect())
    }

    /// Tokens in the shards of `paths`.
    fn shard_sizes(&self, paths: &[PathId]) -> Vec<(PathId, u64)> {
        paths.iter().map(|&path| (path, self.shard_tokens.get(path.index()).copied().unwrap_or(0))).collect()
    }

    /// Number of contributions to a fragment that have been applied: all that were sent, less the pending ones.
    fn applied(&self, fragment: FragmentId) -> u64 {
        let progress = self.ledger.state().progress();
        let slot = fragment.slot(self.schedule.fragments());
        let learners = self.topology.paths_through(fragment.module);
        let sent = learners.filter_map(|path| progress.paths.get(path.index())?.sent.get(slot));
        let pending = progress.pending.get(&fragment).map_or(0, Vec::len) as u64;
        sent.map(|&sent| u64::from(sent)).sum::<u64>().saturating_sub(pending)
    }

    /// All pending outer gradients of a fragment.
    fn gradients(&self, fragment: FragmentId) -> Result<Gradients<'a>, CoordinatorError> {
        let training = self.ledger.training()?;
        let records = self
            .topology
            .paths_through(fragment.module)
            .filter_map(|path| Some((path, training.path(path)?)));
        let all =
            records.flat_map(|(path, record)| record.gradients.iter().map(move |gradient| (path, gradient)));
        let of_fragment = all.filter(|(_, g)| (g.module, g.fragment) == (fragment.module, fragment.index));
        let key = |path, number| GradientKey { path, number };
        Ok(of_fragment.map(|(path, g)| (key(path, g.number), g)).collect())
    }
}
