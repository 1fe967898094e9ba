//! The outer steps that a simulated coordinator orders, takes and records.

use std::time::Duration;

use dipaco_ledger::{ObjectRef, OuterStepOrder, StepRecording, names};
use dipaco_sync::{Contribution, FragmentId, ProcessId};
use dipaco_topology::{ModuleId, PathId};

use super::SimulatedCoordinator;
use crate::chaos::Bug;
use crate::chaos::object_store::ObjectStore;
use crate::chaos::outer_step::{AskedStep, TakenStep, take_step};

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
    pub(in crate::chaos) fn due_steps(
        &mut self,
        now: Duration,
        fence: u64,
    ) -> Result<Vec<AskedStep>, String> {
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
    pub(in crate::chaos) fn awaits(&self, asked: &AskedStep) -> bool {
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
