//! Who takes the outer steps of which module.

use std::collections::BTreeMap;

use dipaco_sync::{FragmentId, OuterStep};
use dipaco_topology::ModuleId;

/// The synchronizers that have taken modules over; all other modules are the coordinator's own.
pub(crate) struct ModuleOwners {
    claims: BTreeMap<ModuleId, Claim>,
    /// The coordinator's own fencing number; those of claims follow it.
    own: u64,
    next: u64,
    /// The outer step of each fragment that somebody was asked for last, with whose it is.
    given: BTreeMap<FragmentId, (u64, OuterStep)>,
}

/// A synchronizer's right to some modules, while it is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Tells this claim from all others of the run, as a lease's.
    pub(crate) fence: u64,
    pub(crate) owner: (String, u64),
    /// Where workers reach it.
    pub(crate) address: String,
}

impl ModuleOwners {
    /// All modules belong to the coordinator of this incarnation.
    pub(crate) fn new(incarnation: u32) -> Self {
        let own = u64::from(incarnation) << 32;
        Self { claims: BTreeMap::new(), own, next: own + 1, given: BTreeMap::new() }
    }

    /// The coordinator's own fencing number.
    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// The fencing number of whoever takes the outer steps of a module.
    pub(crate) fn fence(&self, module: ModuleId) -> u64 {
        self.claims.get(&module).map_or(self.own, |claim| claim.fence)
    }

    /// Where outer gradients of a module are brought, when that is not the coordinator.
    pub(crate) fn address(&self, module: ModuleId) -> Option<&str> {
        self.claims.get(&module).map(|claim| claim.address.as_str())
    }

    /// Gives modules to a synchronizer, a process by name and instance, or finds that it has them; returns its fencing
    /// number and whether it is new. An earlier process under the same name loses what it had.
    ///
    /// # Errors
    /// When another one has a module of these.
    pub(crate) fn claim(
        &mut self,
        owner: &(String, u64),
        address: &str,
        modules: &[ModuleId],
    ) -> Result<(u64, bool), String> {
        for module in modules {
            if let Some(claim) = self.claims.get(module).filter(|claim| claim.owner.0 != owner.0) {
                return Err(format!(
                    "module {module} has a synchronizer, {:?} at {}: give this one other --modules, or end that one",
                    claim.owner.0, claim.address
                ));
            }
        }
        let held = |module| self.claims.get(module).is_some_and(|claim| claim.owner == *owner);
        if let Some(claim) = modules.first().and_then(|module| self.claims.get(module))
            && modules.iter().all(held)
        {
            return Ok((claim.fence, false));
        }
        self.claims.retain(|_, claim| claim.owner.0 != owner.0);
        let fence = self.next;
        self.next += 1;
        let claim = Claim { fence, owner: owner.clone(), address: address.to_owned() };
        self.claims.extend(modules.iter().map(|&module| (module, claim.clone())));
        Ok((fence, true))
    }

    /// Notes that a synchronizer has been asked to take an outer step, whoever was asked before.
    pub(crate) fn give(&mut self, fence: u64, step: OuterStep) {
        self.given.insert(step.fragment, (fence, step));
    }

    /// The outer step that a synchronizer was asked for, if nobody else has been asked since.
    pub(crate) fn take_given(&mut self, fragment: FragmentId, version: u32, fence: u64) -> Option<OuterStep> {
        let (asked, step) = self.given.get(&fragment)?;
        if (*asked, step.version) != (fence, version) {
            return None;
        }
        self.given.remove(&fragment).map(|(_, step)| step)
    }

    /// Takes back what a process had; returns how many modules that were.
    pub(crate) fn release(&mut self, owner: &(String, u64)) -> usize {
        let before = self.claims.len();
        self.claims.retain(|_, claim| claim.owner != *owner);
        before - self.claims.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(index: u32) -> ModuleId {
        ModuleId { level: 0, index }
    }

    fn owner(name: &str, instance: u64) -> (String, u64) {
        (name.to_owned(), instance)
    }

    #[test]
    fn a_module_belongs_to_one_process_at_a_time() {
        let mut owners = ModuleOwners::new(3);
        let own = owners.own();
        let (first, new) = owners.claim(&owner("a", 1), "a:1", &[module(0), module(1)]).unwrap();
        assert!(new && first > own);
        // The same again is no other claim.
        assert_eq!(owners.claim(&owner("a", 1), "a:1", &[module(0), module(1)]), Ok((first, false)));
        let refused = owners.claim(&owner("b", 1), "b:1", &[module(1), module(2)]).unwrap_err();
        assert!(refused.contains("module 0/1 has a synchronizer, \"a\" at a:1"), "{refused}");
        let (second, _) = owners.claim(&owner("b", 1), "b:1", &[module(2)]).unwrap();
        assert_eq!([0, 1, 2, 3].map(|index| owners.fence(module(index))), [first, first, second, own]);
        assert_eq!((owners.address(module(2)), owners.address(module(3))), (Some("b:1"), None));
        // Its successor under the same name gets a number of its own, and what is left over goes back.
        let (third, new) = owners.claim(&owner("a", 2), "a:2", &[module(0)]).unwrap();
        assert!(new && third > second);
        assert_eq!([0, 1].map(|index| owners.fence(module(index))), [third, own]);
        // The earlier process has nothing left to give back.
        assert_eq!(owners.release(&owner("a", 1)), 0);
        assert_eq!(owners.release(&owner("a", 2)), 1);
        assert_eq!(owners.fence(module(0)), own);
    }
}
