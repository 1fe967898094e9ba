//! Orders of outer steps.

use std::collections::BTreeMap;

use dipaco_sync::{Contribution, FragmentId, OuterStep, Weighting, merge_weights};
use dipaco_topology::PathId;

use super::{Ledger, ReducedGradient};
use crate::records::lacks_gradient;
use crate::{LedgerError, MergeInput, ObjectRef, OuterStepOrder};

/// Writes the orders of one synchronizer.
pub(super) struct OrderBuilder<'a> {
    ledger: &'a Ledger,
    /// Fencing number of the synchronizer that takes the steps.
    fence: u64,
}

impl<'a> OrderBuilder<'a> {
    /// Orders for the synchronizer with this fencing number, by the current ledger.
    pub(super) fn new(ledger: &'a Ledger, fence: u64) -> Self {
        Self { ledger, fence }
    }

    /// The order for an outer step that is due. Adds the gradients that the guard reduces to `reduced`.
    pub(super) fn due(
        &self,
        step: &OuterStep,
        reduced: &mut Vec<ReducedGradient>,
    ) -> Result<OuterStepOrder, LedgerError> {
        let fragment = step.fragment;
        let known = &self.ledger.objects.fragment(fragment)?.gradients;
        let gradient = |contribution: &Contribution| {
            let gradient = known.get(contribution);
            gradient.ok_or_else(|| lacks_gradient(fragment, contribution))
        };
        let gradients = step.contributions.iter().map(gradient).collect::<Result<Vec<_>, _>>()?;
        let norms: Vec<f64> = gradients.iter().map(|gradient| gradient.norm).collect();
        let reductions = self.ledger.guard.reductions(&norms);
        let weights = self.merge_weights_of(step)?.into_iter().zip(reductions);
        let mut shares = Vec::with_capacity(gradients.len());
        for ((contribution, gradient), (weight, reduction)) in
            step.contributions.iter().zip(gradients).zip(weights)
        {
            let path = contribution.path;
            if reduction < 1.0 {
                let (norm, token) = (gradient.norm, gradient.token.clone());
                reduced.push(ReducedGradient { path, fragment, norm, token });
            }
            let object = Some(gradient.object.clone());
            shares.push(MergeInput { path, weight, reduction, gradient: object });
        }
        let order = self.order(fragment, step.version, shares)?;
        Ok(OuterStepOrder { due: true, applied: self.applied(fragment), ..order })
    }

    /// The order for the next outer step of a fragment before it is due, with the outer gradients that have arrived. It
    /// lets a synchronizer merge them early. It names all paths through the module, with their weights. `None` where the
    /// contributors or their weights are not known beforehand, and where the merge needs all contributions at once.
    pub(super) fn early(&self, fragment: FragmentId) -> Result<Option<OuterStepOrder>, LedgerError> {
        let Ledger { state, plan, objects, .. } = self.ledger;
        let later = plan.weighting == Weighting::Tokens || plan.one_by_one || plan.compares;
        if later || !state.waits() {
            return Ok(None);
        }
        let version = state.progress().versions.get(&fragment).copied().unwrap_or(0) + 1;
        let gradients = objects.fragment(fragment)?.gradients.iter();
        let gradients = gradients.filter(|(contribution, _)| contribution.number == version);
        let gradients: BTreeMap<PathId, &ObjectRef> =
            gradients.map(|(contribution, gradient)| (contribution.path, &gradient.object)).collect();
        // A path in quarantine contributes only what it sent before.
        let absent = |path| {
            state.schedule().absent(path, fragment.index, u64::from(version))
                || state.is_quarantined(path) && !gradients.contains_key(&path)
        };
        let learners = state.topology().paths_through(fragment.module);
        let learners: Vec<_> =
            learners.inspect(|_| state.note_looks(1)).filter(|&path| !absent(path)).collect();
        if learners.is_empty() {
            return Ok(None);
        }
        let shares = merge_weights(plan.weighting, &self.shard_sizes(&learners))?
            .into_iter()
            .map(|(path, weight)| MergeInput {
                path,
                weight,
                // The guard compares all contributions to a step.
                reduction: 1.0,
                gradient: gradients.get(&path).copied().cloned(),
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
    ) -> Result<OuterStepOrder, LedgerError> {
        let objects = self.ledger.objects.fragment(fragment)?;
        Ok(OuterStepOrder {
            fragment,
            version,
            fence: self.fence,
            weights: objects.weights.clone(),
            momentum: objects.momentum.clone(),
            applied: 0,
            shares,
            due: false,
        })
    }

    /// The weight of each contribution of a step.
    fn merge_weights_of(&self, step: &OuterStep) -> Result<Vec<f32>, LedgerError> {
        let paths: Vec<PathId> = step.contributions.iter().map(|contribution| contribution.path).collect();
        let Ledger { state, plan, .. } = self.ledger;
        if plan.one_by_one {
            // Each contribution is applied by itself, as if all learners had contributed the same gradient.
            let learners: Vec<_> = state.topology().paths_through(step.fragment.module).collect();
            let weights: BTreeMap<PathId, f32> =
                merge_weights(plan.weighting, &self.shard_sizes(&learners))?.into_iter().collect();
            // There are at most 2^20 paths, a number that f32 holds exactly.
            let scale = |path| {
                weights.get(path).copied().unwrap_or(0.0)
                    * learners.len() as f32
                    * plan.rescale.factor(learners.len())
            };
            return Ok(paths.iter().map(scale).collect());
        }
        let sizes: Vec<u64> = match plan.weighting {
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
        Ok(merge_weights(plan.weighting, &sizes)?.into_iter().map(|(_, weight)| weight).collect())
    }

    /// Tokens in the shards of `paths` in this phase.
    fn shard_sizes(&self, paths: &[PathId]) -> Vec<(PathId, u64)> {
        let shards = &self.ledger.objects.shards;
        let tokens = |path: PathId| shards.get(path.index()).map_or(0, |shard| shard.tokens);
        paths.iter().map(|&path| (path, tokens(path))).collect()
    }

    /// Number of contributions to a fragment that have been applied: all that have arrived, less the pending ones. The numbers
    /// that paths have sent are no measure, because drops and quarantines raise them too.
    fn applied(&self, fragment: FragmentId) -> u64 {
        let Ledger { state, objects, .. } = self.ledger;
        let slot = self.ledger.slot(fragment);
        let learners = state.topology().paths_through(fragment.module).inspect(|_| state.note_looks(1));
        let contributors =
            learners.filter_map(|path| objects.paths.get(&path)).flat_map(|path| path.contributors.values());
        let arrived: u64 = contributors.filter_map(|of_token| of_token.by_fragment.get(slot)).sum();
        let pending = state.progress().pending.get(&fragment).map_or(0, Vec::len) as u64;
        arrived.saturating_sub(pending)
    }
}
