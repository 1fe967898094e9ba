//! Outer steps in the ledger: the owners of modules, the orders, and the steps that count.

use std::collections::BTreeSet;
use std::time::Duration;

use dipaco_sync::{FragmentId, ProcessId};
use dipaco_topology::{ModuleId, PathId};

use super::Ledger;
use super::order_builder::OrderBuilder;
use crate::owners::Claimed;
use crate::{ChangeRecord, KeptVersion, LedgerError, OuterStepDone, OuterStepOrder};

/// The orders of a synchronizer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Orders {
    /// Outer steps that are due, then steps whose contributions can be merged early.
    pub orders: Vec<OuterStepOrder>,
    /// Outer gradients that count reduced.
    pub reduced: Vec<ReducedGradient>,
    /// True if this call has found that outer steps of other owners are due. No later call finds it: the caller tells the owners.
    pub others_due: bool,
}

/// An outer gradient out of proportion: it is reduced before it is merged.
#[derive(Clone, Debug, PartialEq)]
pub struct ReducedGradient {
    /// The path that contributed it.
    pub path: PathId,
    /// The fragment.
    pub fragment: FragmentId,
    /// Euclidean norm of the outer gradient.
    pub norm: f64,
    /// Name of the token whose bearer contributed it.
    pub token: String,
}

/// The outcome of recording an outer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepRecording {
    /// The step counts.
    Counts {
        /// Number of merged contributions.
        contributions: usize,
    },
    /// A repeated message about a step that counts.
    Known,
    /// The step does not count, because another synchronizer has been asked since. Its objects are deleted.
    Rejected,
}

/// Number of contributions that the orders of one answer name, if there is more than one order. An answer is a message, and
/// further orders have time until the next one.
const MOST_SHARES: usize = 2_000;

/// Number of changes of a fragment that are kept.
const MOST_CHANGES: usize = 16;

impl Ledger {
    /// The orders for the synchronizer with this fencing number: outer steps that are due, then steps with new
    /// contributions, which it can merge early. The order of a due step is complete in itself, so a lost early order does
    /// no harm. Looks at what has changed since the last call for any owner, and at what the answer names.
    ///
    /// # Errors
    /// When the ledger contradicts itself.
    pub fn orders(&mut self, now: Duration, fence: u64) -> Result<Orders, LedgerError> {
        let mut orders = Orders::default();
        for fragment in self.state.take_due(now) {
            orders.others_due |= self.owners.fence(fragment.module) != fence;
            self.owners.note_due(now, fragment);
        }
        let builder = OrderBuilder::new(self, fence);
        let (mut shares, mut ordered, mut heard) = (0, Vec::new(), Vec::new());
        for fragment in self.owners.open().due_of(fence) {
            let not_due =
                || LedgerError::internal(format!("the outer step of {fragment} was due and is not"));
            let step = match self.owners.open().told(fence, fragment) {
                Some(told) => told.clone(),
                None => self.state.due_step(fragment).ok_or_else(not_due)?,
            };
            if shares > 0 && shares + step.contributions.len() > MOST_SHARES {
                // It stays due.
                break;
            }
            let order = builder.due(&step, &mut orders.reduced)?;
            shares += order.shares.len();
            orders.orders.push(order);
            ordered.push(step);
        }
        for fragment in self.owners.open().news_of(fence) {
            self.state.note_looks(1);
            if !self.owners.open().is_due(fragment)
                && let Some(order) = builder.early(fragment)?
            {
                if shares > 0 && shares + order.shares.len() > MOST_SHARES {
                    // Its news stay unheard.
                    break;
                }
                shares += order.shares.len();
                orders.orders.push(order);
            }
            heard.push(fragment);
        }
        self.owners.tell(fence, ordered, heard);
        Ok(orders)
    }

    /// Records an outer step whose objects are in the store.
    ///
    /// # Errors
    /// When the ledger is closed, or contradicts itself.
    pub fn record_step(&mut self, done: &OuterStepDone) -> Result<StepRecording, LedgerError> {
        let &OuterStepDone { fragment, version, fence, .. } = done;
        let newest = self.state.progress().versions.get(&fragment).copied();
        if newest == Some(version) && self.objects.fragment(fragment)?.weights == done.weights {
            return Ok(StepRecording::Known);
        }
        let Some(step) = self.owners.remove_ordered(fragment, version, fence) else {
            let names: Vec<_> = done.objects().map(|object| object.name.clone()).collect();
            if fence == self.owners.own() && self.owners.open().is_due(fragment) {
                // The module may come back to the coordinator, whose fencing number stays the same.
                self.left.entry(fragment).or_default().extend(names);
            } else {
                // The message may be a late repetition of a step that did count: objects that paths still need are kept.
                self.delete_unused(names);
            }
            return Ok(StepRecording::Rejected);
        };
        if self.closed {
            return Err(LedgerError::Closed);
        }
        // Another process may report any number of seconds.
        let took = Duration::try_from_secs_f64(done.seconds).unwrap_or_default();
        if !self.state.stepped(&step, took) {
            let what = format!("outer step {} of {fragment} was ordered and is not due", step.version);
            return Err(LedgerError::internal(what));
        }
        self.state.pass_over_idle();
        let at_rest = self.is_at_rest(fragment.module);
        let mut obsolete = if at_rest { self.pass_over_step(done)? } else { self.note_step(done)? };
        let objects = self.objects.fragment_mut(fragment)?;
        for contribution in &step.contributions {
            let merged = objects.gradients.remove(contribution);
            obsolete.extend(merged.map(|gradient| gradient.object.name.clone()));
        }
        obsolete.extend(self.prune(fragment)?);
        obsolete.extend(self.left.remove(&fragment).unwrap_or_default());
        self.note_change(obsolete);
        Ok(StepRecording::Counts { contributions: step.contributions.len() })
    }

    /// Notes the objects of an outer step that counts. Returns obsolete objects.
    fn note_step(&mut self, done: &OuterStepDone) -> Result<Vec<String>, LedgerError> {
        let OuterStepDone { fragment, version, weights, momentum, change, .. } = done.clone();
        let mut obsolete = Vec::new();
        let objects = self.objects.fragment_mut(fragment)?;
        let before = std::mem::replace(&mut objects.weights, weights);
        if let Some(object) = change {
            objects.changes.push(ChangeRecord { from: before.hash.clone(), version, object });
            // Longer changes are useless: a worker would fetch the weights instead. And every lease lists all changes.
            let bytes =
                |changes: &[ChangeRecord]| changes.iter().map(|change| change.object.bytes).sum::<u64>();
            let whole = objects.weights.bytes;
            let useless = |changes: &[ChangeRecord]| changes.len() > MOST_CHANGES || bytes(changes) >= whole;
            while useless(&objects.changes) && !objects.changes.is_empty() {
                obsolete.push(objects.changes.remove(0).object.name);
            }
        }
        objects.kept.push(KeptVersion { version: version.saturating_sub(1), weights: before });
        obsolete.extend(objects.momentum.replace(momentum).map(|object| object.name));
        Ok(obsolete)
    }

    /// Makes a synchronizer the owner of modules, or finds that it is. An earlier process under the same name loses its
    /// modules.
    ///
    /// # Errors
    /// The reason, when another synchronizer owns one of the modules.
    pub fn claim_modules(
        &mut self,
        now: Duration,
        owner: &ProcessId,
        address: &str,
        modules: &[ModuleId],
    ) -> Result<Claimed, String> {
        self.owners.claim(now, owner, address, modules)
    }

    /// Takes the modules of a synchronizer back. Returns their number.
    pub fn release_modules(&mut self, now: Duration, owner: &ProcessId) -> usize {
        self.owners.release(now, owner)
    }

    /// The coordinator's own fencing number.
    #[must_use]
    pub fn own_fence(&self) -> u64 {
        self.owners.own()
    }

    /// Fencing number of the owner of a module.
    #[must_use]
    pub fn owner_fence(&self, module: ModuleId) -> u64 {
        self.owners.fence(module)
    }

    /// The synchronizers that have not taken an outer step since `before`.
    #[must_use]
    pub fn overdue(&self, before: Duration) -> BTreeSet<ProcessId> {
        self.owners.overdue(before)
    }
}
