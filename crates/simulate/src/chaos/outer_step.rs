//! Outer steps of a simulated run: production's orders, merging and momentum.

use std::time::Duration;

use dipaco_ledger::{ObjectRef, OuterStepDone, OuterStepOrder, StepRecording, names};
use dipaco_optim::{NesterovConfig, nesterov_step};
use dipaco_sync::{Contribution, Fold, FoldRule, FoldTensor, FragmentId, OuterRule, ProcessId};
use dipaco_topology::{ModuleId, PathId};

use super::Bug;
use super::case::{RESCALE, RULE};
use super::coordinator::SimulatedCoordinator;
use super::object_store::{Content, ObjectStore};
use super::toy::{MergedStep, ToyWeights, VALUES};

/// An ordered outer step, with the contributions that count with its outer gradients.
#[derive(Clone, Debug)]
pub(crate) struct AskedStep {
    order: OuterStepOrder,
    contributions: Vec<Contribution>,
}

/// A taken outer step, whose objects are in the store.
#[derive(Clone, Debug)]
pub(crate) struct TakenStep {
    done: OuterStepDone,
    merged: MergedStep,
}

/// Takes an ordered outer step and puts its objects into the store.
///
/// # Errors
/// When the store lacks an object of the order.
pub(crate) fn take_step(asked: &AskedStep, store: &mut ObjectStore) -> Result<TakenStep, String> {
    let AskedStep { order, contributions } = asked;
    let &OuterStepOrder { fragment, version, fence, .. } = order;
    let mut weights = store.weights(&order.weights)?.values;
    let mut momentum = match &order.momentum {
        Some(object) => store.momentum(object)?,
        None => [0.0; VALUES],
    };
    let mut gradients = Vec::new();
    for share in &order.shares {
        let object = share.gradient.as_ref().ok_or("an order that is due lacks an outer gradient")?;
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
    let contributions = contributions.clone();
    let merged = MergedStep { fragment, version, fence, asked: None, contributions, gradients };
    Ok(TakenStep { done, merged })
}

impl SimulatedCoordinator {
    /// Makes a synchronizer the owner of modules, and returns the outer steps that are due.
    ///
    /// # Errors
    /// When the ledger refuses the claim, or contradicts itself.
    pub(crate) fn give_orders(
        &mut self,
        now: Duration,
        process: &ProcessId,
        modules: &[ModuleId],
    ) -> Result<Vec<AskedStep>, String> {
        let claimed = self.ledger.claim_modules(now, process, "synchronizer:1", modules)?;
        self.due_steps(now, claimed.fence)
    }

    /// The outer steps that are due from the owner with this fencing number.
    ///
    /// # Errors
    /// When the ledger contradicts itself.
    pub(super) fn due_steps(&mut self, now: Duration, fence: u64) -> Result<Vec<AskedStep>, String> {
        let orders = self.ledger.orders(now, fence).map_err(|error| error.to_string())?.orders;
        orders.into_iter().filter(|order| order.due).map(|order| self.ask(order)).collect()
    }

    /// Notes who is asked for a step.
    fn ask(&mut self, mut order: OuterStepOrder) -> Result<AskedStep, String> {
        self.asked.insert(order.fragment, (order.version, order.fence));
        if self.bug == Some(Bug::DoubleCount) && order.shares.len() > 1 && order.version == 2 {
            let again = order.shares[0].clone();
            order.shares.insert(0, again);
        }
        let mut contributions = Vec::new();
        for share in &order.shares {
            let object = share.gradient.as_ref().ok_or("an order that is due lacks an outer gradient")?;
            contributions.push(self.contribution(order.fragment, share.path, object)?);
        }
        Ok(AskedStep { order, contributions })
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

    /// True if a step does not count yet and nobody else has been asked for it since.
    pub(super) fn awaits(&self, asked: &AskedStep) -> bool {
        let OuterStepOrder { fragment, version, fence, .. } = asked.order;
        self.asked.get(&fragment) == Some(&(version, fence))
    }

    /// Takes the first step of its own that it still awaits.
    ///
    /// # Errors
    /// When the store lacks an object that counts.
    pub(crate) fn take_own_step(&mut self, store: &mut ObjectStore) -> Result<Option<TakenStep>, String> {
        while self.ordered.front().is_some_and(|asked| !self.awaits(asked)) {
            self.ordered.pop_front();
        }
        self.ordered.front().map(|asked| take_step(asked, store)).transpose()
    }

    /// Records a taken outer step, if it counts.
    ///
    /// # Errors
    /// When the ledger contradicts itself, or refuses a step of whoever was asked last.
    pub(crate) fn record_step(&mut self, taken: TakenStep) -> Result<(), String> {
        let TakenStep { mut done, mut merged } = taken;
        let (fragment, version) = (done.fragment, done.version);
        let asked = self.asked.get(&fragment).filter(|(asked, _)| *asked == version);
        merged.asked = asked.map(|&(_, fence)| fence);
        if let (Some(Bug::OldFence), Some(fence)) = (self.bug, merged.asked) {
            // The planted bug: whoever takes the step that is ordered may report it.
            done.fence = fence;
        }
        match self.ledger.record_step(&done).map_err(|error| error.to_string())? {
            StepRecording::Counts { .. } => {
                self.asked.remove(&fragment);
                match self.merged.keep(self.ledger.changes(), merged) {
                    None => Ok(()),
                    Some(_) => {
                        Err(format!("outer step {version} of {fragment} was on the disk before it counted"))
                    }
                }
            }
            StepRecording::Rejected if merged.asked == Some(merged.fence) => Err(format!(
                "outer step {version} of {fragment} is refused, and nobody else was asked for it"
            )),
            StepRecording::Known | StepRecording::Rejected => Ok(()),
        }
    }
}
