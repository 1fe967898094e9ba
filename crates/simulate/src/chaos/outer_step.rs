//! Outer steps of a simulated run: production's orders, merging and momentum.

use dipaco_ledger::{ObjectRef, OuterStepDone, OuterStepOrder, names};
use dipaco_optim::{NesterovConfig, nesterov_step};
use dipaco_sync::{Contribution, Fold, FoldRule, FoldTensor, FragmentId, OuterRule};
use dipaco_topology::PathId;

use super::Bug;
use super::case::{RESCALE, RULE};
use super::coordinator::SimulatedCoordinator;
use super::object_store::{Content, ObjectStore};
use super::toy::{MergedStep, ToyWeights, VALUES};

/// A taken outer step, whose objects are in the store.
#[derive(Clone, Debug)]
pub(crate) struct TakenStep {
    done: OuterStepDone,
    merged: MergedStep,
}

impl SimulatedCoordinator {
    /// Takes the first ordered outer step and puts its objects into the store.
    ///
    /// # Errors
    /// When the store lacks an object that counts.
    pub(crate) fn take_step(&self, store: &mut ObjectStore) -> Result<Option<TakenStep>, String> {
        let Some(order) = self.ordered.front() else { return Ok(None) };
        let mut order = order.clone();
        if self.bug == Some(Bug::DoubleCount) && order.shares.len() > 1 && order.version == 2 {
            let again = order.shares[0].clone();
            order.shares.insert(0, again);
        }
        let OuterStepOrder { fragment, version, fence, .. } = order;
        let mut weights = store.weights(&order.weights)?.values;
        let mut momentum = match &order.momentum {
            Some(object) => store.momentum(object)?,
            None => [0.0; VALUES],
        };
        let (mut contributions, mut gradients) = (Vec::new(), Vec::new());
        for share in &order.shares {
            let object = share.gradient.as_ref().ok_or("an order that is due lacks an outer gradient")?;
            contributions.push(self.contribution(fragment, share.path, object)?);
            gradients.push(store.gradient(object)?);
        }
        if !gradients.is_empty() {
            let failed = |error: dipaco_sync::FoldError| format!("{fragment}: {error}");
            let places = || (0..).map(PathId);
            let shares = places().zip(order.shares.iter().map(|share| share.weight)).collect();
            let rule = FoldRule { rescale: RESCALE, ..FoldRule::default() };
            let mut fold = Fold::new(vec![FoldTensor::plain(VALUES)], shares, rule);
            for (place, gradient) in places().zip(&gradients) {
                fold.announce(place).map_err(failed)?;
                fold.merge(place, gradient.values.to_vec()).map_err(failed)?;
            }
            let merged = fold.finish().map_err(failed)?;
            let OuterRule { learning_rate, momentum: mu } = RULE;
            let config = NesterovConfig { learning_rate: learning_rate.into(), momentum: mu.into() };
            nesterov_step(&mut weights, &merged, &mut momentum, &config);
        }
        let FragmentId { module, index } = fragment;
        let mut put = |name, content: Content| {
            let object = content.under(name);
            store.put(&object, content);
            object
        };
        let weights = Content::Weights(ToyWeights { version, values: weights });
        let weights = put(names::weights(module, index, version, fence), weights);
        let momentum = put(names::momentum(module, index, version, fence), Content::Momentum(momentum));
        let done = OuterStepDone {
            fragment,
            version,
            fence,
            weights,
            momentum,
            change: None,
            norm: 0.0,
            cosine: None,
            seconds: 0.001,
        };
        Ok(Some(TakenStep { done, merged: MergedStep { fragment, version, contributions, gradients } }))
    }

    /// The contribution that counts with this object.
    fn contribution(
        &self,
        fragment: FragmentId,
        path: PathId,
        object: &ObjectRef,
    ) -> Result<Contribution, String> {
        let FragmentId { module, index } = fragment;
        let pending = self.ledger.state().progress().pending.get(&fragment);
        let named = |c: &&Contribution| {
            let name = names::outer_gradient(module, index, c.number, path, 0);
            // Without the fencing number, which the ledger does not tell.
            let name = name.strip_suffix('0').unwrap_or(&name);
            c.path == path && object.name.starts_with(name)
        };
        let found = pending.into_iter().flatten().find(named).copied();
        found.ok_or_else(|| format!("{} is merged, and is no contribution to {fragment}", object.name))
    }

    /// Records the taken outer step.
    ///
    /// # Errors
    /// When the ledger refuses the step.
    pub(crate) fn record_step(&mut self, taken: TakenStep) -> Result<(), String> {
        let TakenStep { done, merged } = taken;
        self.ordered.pop_front();
        match self.ledger.record_step(&done).map_err(|error| error.to_string())? {
            dipaco_ledger::StepRecording::Counts { .. } => {
                match self.merged.keep(self.ledger.changes(), merged) {
                    None => Ok(()),
                    Some(step) => Err(format!(
                        "outer step {} of {} was on the disk before it counted",
                        step.version, step.fragment
                    )),
                }
            }
            other => Err(format!("outer step {} of {} is {other:?}", done.version, done.fragment)),
        }
    }
}
