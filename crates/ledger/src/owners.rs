//! The owner of each module: the process that takes its outer steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_sync::{FragmentId, OuterStep, ProcessId};
use dipaco_topology::ModuleId;

/// The synchronizers that own modules. All other modules are the coordinator's own.
#[derive(Debug)]
pub(crate) struct ModuleOwners {
    claims: BTreeMap<ModuleId, Claim>,
    /// The coordinator's own fencing number. Those of claims are larger.
    own: u64,
    /// Fencing number of the next claim.
    next: u64,
    /// The last outer step of each fragment that its owner owes.
    ordered: BTreeMap<FragmentId, OrderedStep>,
}

/// An outer step that a synchronizer has been asked to take, or would have been if it had asked for its orders.
#[derive(Debug)]
struct OrderedStep {
    /// Fencing number of the synchronizer.
    fence: u64,
    step: OuterStep,
    /// Since when the synchronizer owes the step.
    since: Duration,
    /// True if the synchronizer knows the step.
    told: bool,
}

/// A synchronizer's right to some modules while it is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Fencing number, unique in the run.
    pub(crate) fence: u64,
    pub(crate) owner: ProcessId,
    /// `host:port` at which workers reach it.
    pub(crate) address: String,
}

/// A successful claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Fencing number of the claim.
    pub fence: u64,
    /// True if the process did not own these modules before.
    pub new: bool,
}

impl ModuleOwners {
    /// All modules belong to the coordinator of this incarnation.
    pub(crate) fn new(incarnation: u32) -> Self {
        let own = u64::from(incarnation) << 32;
        Self { claims: BTreeMap::new(), own, next: own + 1, ordered: BTreeMap::new() }
    }

    /// The coordinator's own fencing number.
    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// The fencing number of the owner of a module.
    pub(crate) fn fence(&self, module: ModuleId) -> u64 {
        self.claims.get(&module).map_or(self.own, |claim| claim.fence)
    }

    /// Address of the synchronizer that owns a module; `None` if the coordinator owns it.
    pub(crate) fn address(&self, module: ModuleId) -> Option<&str> {
        self.claims.get(&module).map(|claim| claim.address.as_str())
    }

    /// Makes a synchronizer the owner of modules, or finds that it is. An earlier process under the same name loses its
    /// modules.
    ///
    /// # Errors
    /// The reason, when another synchronizer owns one of the modules.
    pub(crate) fn claim(
        &mut self,
        owner: &ProcessId,
        address: &str,
        modules: &[ModuleId],
    ) -> Result<Claimed, String> {
        for module in modules {
            if let Some(claim) = self.claims.get(module).filter(|claim| !claim.owner.is_kin_of(owner)) {
                return Err(format!(
                    "module {module} has a synchronizer, {:?} at {}: give this synchronizer other --modules, or stop the other",
                    claim.owner.name, claim.address
                ));
            }
        }
        let held = |module| self.claims.get(module).is_some_and(|claim| claim.owner == *owner);
        if let Some(claim) = modules.first().and_then(|module| self.claims.get(module))
            && modules.iter().all(held)
        {
            return Ok(Claimed { fence: claim.fence, new: false });
        }
        self.claims.retain(|_, claim| !claim.owner.is_kin_of(owner));
        let fence = self.next;
        self.next += 1;
        let claim = Claim { fence, owner: owner.clone(), address: address.to_owned() };
        self.claims.extend(modules.iter().map(|&module| (module, claim.clone())));
        Ok(Claimed { fence, new: true })
    }

    /// Notes that a synchronizer has been asked to take an outer step. This replaces earlier orders of the fragment. A
    /// repeated order keeps its time.
    pub(crate) fn order(&mut self, now: Duration, fence: u64, step: OuterStep) {
        let since = self.same(fence, &step).map_or(now, |order| order.since);
        self.ordered.insert(step.fragment, OrderedStep { fence, step, since, told: true });
    }

    /// Notes that the owner of a module owes an outer step, whether or not it asks for its orders: one that hangs asks no more.
    pub(crate) fn note_due(&mut self, now: Duration, step: OuterStep) {
        let fence = self.fence(step.fragment.module);
        // An order that is out keeps the contributions that the owner was told.
        if self.same(fence, &step).is_none() {
            self.ordered.insert(step.fragment, OrderedStep { fence, step, since: now, told: false });
        }
    }

    /// The noted order of the same outer step to the same owner.
    fn same(&self, fence: u64, step: &OuterStep) -> Option<&OrderedStep> {
        let noted = self.ordered.get(&step.fragment);
        noted.filter(|order| (order.fence, order.step.version) == (fence, step.version))
    }

    /// Time of the oldest open order of another process; `None` if none is open.
    pub(crate) fn oldest_order(&self) -> Option<Duration> {
        let others = self.ordered.values().filter(|order| order.fence != self.own);
        others.filter(|order| self.owner(order).is_some()).map(|order| order.since).min()
    }

    /// The processes that have not taken an outer step since `before`.
    pub(crate) fn overdue(&self, before: Duration) -> BTreeSet<ProcessId> {
        let old = self.ordered.values().filter(|order| order.since <= before);
        old.filter_map(|order| self.owner(order).cloned()).collect()
    }

    /// The process that owes a step, if it still owns the module.
    fn owner(&self, order: &OrderedStep) -> Option<&ProcessId> {
        let claim = self.claims.get(&order.step.fragment.module)?;
        (claim.fence == order.fence).then_some(&claim.owner)
    }

    /// Removes and returns the outer step that a synchronizer was asked for; `None` if another synchronizer has been
    /// asked since.
    pub(crate) fn remove_ordered(
        &mut self,
        fragment: FragmentId,
        version: u32,
        fence: u64,
    ) -> Option<OuterStep> {
        let ordered = self.ordered.get(&fragment)?;
        if !ordered.told || (ordered.fence, ordered.step.version) != (fence, version) {
            return None;
        }
        self.ordered.remove(&fragment).map(|ordered| ordered.step)
    }

    /// Takes the modules of a process back. Returns their number.
    pub(crate) fn release(&mut self, owner: &ProcessId) -> usize {
        let before = self.claims.len();
        self.claims.retain(|_, claim| claim.owner != *owner);
        before - self.claims.len()
    }
}

#[cfg(test)]
mod tests {
    use dipaco_sync::Contribution;
    use dipaco_topology::PathId;

    use super::*;

    fn module(index: u32) -> ModuleId {
        ModuleId { level: 0, index }
    }

    fn owner(name: &str, instance: u64) -> ProcessId {
        ProcessId { instance, ..ProcessId::local(name) }
    }

    #[test]
    fn a_module_belongs_to_one_process_at_a_time() {
        let mut owners = ModuleOwners::new(3);
        let own = owners.own();
        let Claimed { fence: first, new } =
            owners.claim(&owner("a", 1), "a:1", &[module(0), module(1)]).unwrap();
        assert!(new && first > own);
        // Repeating a claim changes nothing.
        assert_eq!(
            owners.claim(&owner("a", 1), "a:1", &[module(0), module(1)]),
            Ok(Claimed { fence: first, new: false })
        );
        let refused = owners.claim(&owner("b", 1), "b:1", &[module(1), module(2)]).unwrap_err();
        assert!(refused.contains("module 0/1 has a synchronizer, \"a\" at a:1"), "{refused}");
        let Claimed { fence: second, .. } = owners.claim(&owner("b", 1), "b:1", &[module(2)]).unwrap();
        assert_eq!([0, 1, 2, 3].map(|index| owners.fence(module(index))), [first, first, second, own]);
        assert_eq!((owners.address(module(2)), owners.address(module(3))), (Some("b:1"), None));
        // A successor under the same name gets a new number, and modules that it does not claim go back.
        let Claimed { fence: third, new } = owners.claim(&owner("a", 2), "a:2", &[module(0)]).unwrap();
        assert!(new && third > second);
        assert_eq!([0, 1].map(|index| owners.fence(module(index))), [third, own]);
        // The earlier process owns nothing any more.
        assert_eq!(owners.release(&owner("a", 1)), 0);
        assert_eq!(owners.release(&owner("a", 2)), 1);
        assert_eq!(owners.fence(module(0)), own);
    }

    #[test]
    fn an_outer_step_that_is_not_taken_becomes_overdue() {
        let mut owners = ModuleOwners::new(1);
        let at = Duration::from_secs;
        let hung = owner("hung", 1);
        let Claimed { fence, .. } = owners.claim(&hung, "a:1", &[module(0)]).unwrap();
        let step = |index, version| OuterStep {
            fragment: FragmentId { module: module(index), index: 0 },
            version,
            contributions: Vec::new(),
        };
        owners.order(at(5), fence, step(0, 1));
        // The coordinator's own steps have no deadline here.
        owners.order(at(1), owners.own(), step(1, 1));
        owners.order(at(50), fence, step(0, 1));
        assert_eq!(owners.oldest_order(), Some(at(5)), "a repeated order is as old as the first");
        assert!(owners.overdue(at(4)).is_empty());
        assert_eq!(owners.overdue(at(5)), BTreeSet::from([hung.clone()]));
        assert!(owners.remove_ordered(step(0, 1).fragment, 1, fence).is_some());
        owners.order(at(60), fence, step(0, 2));
        assert!(owners.overdue(at(59)).is_empty());
        owners.release(&hung);
        assert_eq!((owners.oldest_order(), owners.overdue(at(99)).len()), (None, 0));
        // A step that is due also becomes overdue when its owner does not ask for orders, and it may not take it unasked.
        let Claimed { fence, .. } = owners.claim(&hung, "a:1", &[module(0)]).unwrap();
        owners.note_due(at(100), step(0, 2));
        owners.note_due(at(110), step(0, 2));
        assert_eq!(owners.overdue(at(100)), BTreeSet::from([hung.clone()]));
        assert!(owners.remove_ordered(step(0, 2).fragment, 2, fence).is_none());
        let contribution = Contribution { path: PathId(3), number: 1, base: 1, steps: 5, tokens: 9 };
        let told = OuterStep { contributions: vec![contribution], ..step(0, 2) };
        owners.order(at(120), fence, told.clone());
        owners.note_due(at(130), step(0, 2));
        assert_eq!(owners.oldest_order(), Some(at(100)), "the order is as old as the step is due");
        assert_eq!(owners.remove_ordered(told.fragment, 2, fence), Some(told));
    }
}
