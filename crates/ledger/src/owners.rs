//! The owner of each module: the process that takes its outer steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_sync::{FragmentId, OuterStep, ProcessId};
use dipaco_topology::ModuleId;

use crate::open_steps::OpenSteps;

/// The synchronizers that own modules. All other modules are the coordinator's own.
#[derive(Debug)]
pub(crate) struct ModuleOwners {
    /// The claims by fencing number.
    claims: BTreeMap<u64, Claim>,
    /// Fencing number of the claim to each claimed module.
    claimed: BTreeMap<ModuleId, u64>,
    /// The coordinator's own fencing number. Those of claims are larger.
    own: u64,
    /// Fencing number of the next claim.
    next: u64,
    /// The outer steps that the owners owe.
    open: OpenSteps,
}

/// A synchronizer's right to some modules while it is connected.
#[derive(Debug)]
struct Claim {
    owner: ProcessId,
    /// `host:port` at which workers reach it.
    address: String,
    modules: Vec<ModuleId>,
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
        let (claims, claimed) = Default::default();
        Self { claims, claimed, own, next: own + 1, open: OpenSteps::new(own) }
    }

    /// The coordinator's own fencing number.
    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// The fencing number of the owner of a module.
    pub(crate) fn fence(&self, module: ModuleId) -> u64 {
        self.claimed.get(&module).copied().unwrap_or(self.own)
    }

    fn claim_to(&self, module: ModuleId) -> Option<&Claim> {
        self.claims.get(self.claimed.get(&module)?)
    }

    /// Address of the synchronizer that owns a module; `None` if the coordinator owns it.
    pub(crate) fn address(&self, module: ModuleId) -> Option<&str> {
        self.claim_to(module).map(|claim| claim.address.as_str())
    }

    /// Makes a synchronizer the owner of modules, or finds that it is. An earlier process under the same name loses its
    /// modules.
    ///
    /// # Errors
    /// The reason, when another synchronizer owns one of the modules.
    pub(crate) fn claim(
        &mut self,
        now: Duration,
        owner: &ProcessId,
        address: &str,
        modules: &[ModuleId],
    ) -> Result<Claimed, String> {
        for &module in modules {
            if let Some(claim) = self.claim_to(module).filter(|claim| !claim.owner.is_kin_of(owner)) {
                return Err(format!(
                    "module {module} has a synchronizer, {:?} at {}: give this synchronizer other --modules, or stop the other",
                    claim.owner.name, claim.address
                ));
            }
        }
        let held = |module: &ModuleId| self.claim_to(*module).is_some_and(|claim| claim.owner == *owner);
        if let Some(&fence) = modules.first().and_then(|module| self.claimed.get(module))
            && modules.iter().all(held)
        {
            return Ok(Claimed { fence, new: false });
        }
        self.end_claims(now, |other| other.is_kin_of(owner));
        let fence = self.next;
        self.next += 1;
        for &module in modules {
            // A module may be named twice.
            if self.claimed.insert(module, fence).is_none() {
                self.open.pass_on(now, module, self.own, fence);
            }
        }
        let (owner, address, modules) = (owner.clone(), address.to_owned(), modules.to_vec());
        self.claims.insert(fence, Claim { owner, address, modules });
        Ok(Claimed { fence, new: true })
    }

    /// Takes the modules of a process back. Returns their number.
    pub(crate) fn release(&mut self, now: Duration, owner: &ProcessId) -> usize {
        self.end_claims(now, |other| other == owner)
    }

    /// Ends the claims of some processes. Returns the number of their modules, which are the coordinator's own then.
    fn end_claims(&mut self, now: Duration, ends: impl Fn(&ProcessId) -> bool) -> usize {
        let mut released = 0;
        for (fence, claim) in self.claims.extract_if(.., |_, claim| ends(&claim.owner)) {
            for module in claim.modules {
                if self.claimed.remove(&module).is_some() {
                    self.open.pass_on(now, module, fence, self.own);
                    released += 1;
                }
            }
        }
        released
    }

    /// Notes that the owner of a fragment owes its outer step from now on, whether or not it asks for its orders.
    pub(crate) fn note_due(&mut self, now: Duration, fragment: FragmentId) {
        self.open.note_due(now, self.fence(fragment.module), fragment);
    }

    /// Notes contributions to a fragment of which its owner has not heard.
    pub(crate) fn note_news(&mut self, fragment: FragmentId) {
        self.open.note_news(self.fence(fragment.module), fragment);
    }

    /// The outer steps that the owners owe.
    pub(crate) fn open(&self) -> &OpenSteps {
        &self.open
    }

    /// Notes what the process with this fencing number has been told: the outer steps that it takes, and the fragments
    /// whose news it has heard.
    pub(crate) fn tell(&mut self, fence: u64, steps: Vec<OuterStep>, heard: Vec<FragmentId>) {
        steps.into_iter().for_each(|step| self.open.order(fence, step));
        heard.into_iter().for_each(|fragment| self.open.heard(fence, fragment));
    }

    /// Takes a time in which the coordinator did not run, and which has just ended, for no standstill of an owner.
    pub(crate) fn postpone(&mut self, now: Duration, by: Duration) {
        self.open.postpone(now, by);
    }

    /// Time of the oldest open order of another process; `None` if none is open.
    pub(crate) fn oldest_order(&self) -> Option<Duration> {
        self.open.oldest()
    }

    /// The processes that have not taken an outer step since `before`.
    pub(crate) fn overdue(&self, before: Duration) -> BTreeSet<ProcessId> {
        let claims = self.open.older_than(before).filter_map(|fragment| self.claim_to(fragment.module));
        claims.map(|claim| claim.owner.clone()).collect()
    }

    /// Removes and returns the outer step that a synchronizer was asked for; `None` if another synchronizer has been
    /// asked since.
    pub(crate) fn remove_ordered(
        &mut self,
        fragment: FragmentId,
        version: u32,
        fence: u64,
    ) -> Option<OuterStep> {
        self.open.take_ordered(self.fence(fragment.module), fragment, version, fence)
    }
}

#[cfg(test)]
mod tests {
    use dipaco_sync::Contribution;
    use dipaco_topology::PathId;

    use super::*;

    const NOW: Duration = Duration::ZERO;

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
            owners.claim(NOW, &owner("a", 1), "a:1", &[module(0), module(1)]).unwrap();
        assert!(new && first > own);
        // Repeating a claim changes nothing.
        assert_eq!(
            owners.claim(NOW, &owner("a", 1), "a:1", &[module(0), module(1)]),
            Ok(Claimed { fence: first, new: false })
        );
        let refused = owners.claim(NOW, &owner("b", 1), "b:1", &[module(1), module(2)]).unwrap_err();
        assert!(refused.contains("module 0/1 has a synchronizer, \"a\" at a:1"), "{refused}");
        let Claimed { fence: second, .. } = owners.claim(NOW, &owner("b", 1), "b:1", &[module(2)]).unwrap();
        assert_eq!([0, 1, 2, 3].map(|index| owners.fence(module(index))), [first, first, second, own]);
        assert_eq!((owners.address(module(2)), owners.address(module(3))), (Some("b:1"), None));
        // A successor under the same name gets a new number, and modules that it does not claim go back.
        let Claimed { fence: third, new } = owners.claim(NOW, &owner("a", 2), "a:2", &[module(0)]).unwrap();
        assert!(new && third > second);
        assert_eq!([0, 1].map(|index| owners.fence(module(index))), [third, own]);
        // The earlier process owns nothing any more.
        assert_eq!(owners.release(NOW, &owner("a", 1)), 0);
        assert_eq!(owners.release(NOW, &owner("a", 2)), 1);
        assert_eq!(owners.fence(module(0)), own);
    }

    fn step(index: u32, version: u32) -> OuterStep {
        let fragment = FragmentId { module: module(index), index: 0 };
        OuterStep { fragment, version, contributions: Vec::new() }
    }

    #[test]
    fn an_outer_step_that_is_not_taken_becomes_overdue() {
        let mut owners = ModuleOwners::new(1);
        let at = Duration::from_secs;
        let hung = owner("hung", 1);
        let Claimed { fence, .. } = owners.claim(NOW, &hung, "a:1", &[module(0)]).unwrap();
        let [owed, of_the_coordinator] = [0, 1].map(|index| step(index, 1).fragment);
        owners.note_due(at(5), owed);
        // The coordinator's own steps have no deadline here.
        owners.note_due(at(1), of_the_coordinator);
        owners.note_due(at(50), owed);
        assert_eq!(owners.oldest_order(), Some(at(5)), "a step that is due stays as old as it is");
        assert!(owners.overdue(at(4)).is_empty());
        // It becomes overdue whether or not its owner asks for orders, and it may not be taken unasked.
        assert_eq!(owners.overdue(at(5)), BTreeSet::from([hung.clone()]));
        assert!(owners.remove_ordered(owed, 1, fence).is_none());
        let contribution = Contribution { path: PathId(3), number: 1, base: 1, steps: 5, tokens: 9 };
        let told = OuterStep { contributions: vec![contribution], ..step(0, 1) };
        owners.tell(fence, vec![step(0, 1)], Vec::new());
        owners.tell(fence, vec![told.clone()], Vec::new());
        assert_eq!(owners.oldest_order(), Some(at(5)), "an order does not make it younger");
        assert!(owners.remove_ordered(owed, 2, fence).is_none(), "another version");
        assert_eq!(owners.remove_ordered(owed, 1, fence), Some(told));
        assert_eq!((owners.oldest_order(), owners.remove_ordered(owed, 1, fence)), (None, None));
        owners.note_due(at(60), owed);
        assert!(owners.overdue(at(59)).is_empty());
        owners.release(at(61), &hung);
        assert_eq!((owners.oldest_order(), owners.overdue(at(99)).len()), (None, 0));
    }

    #[test]
    fn a_time_in_which_the_coordinator_did_not_run_makes_no_outer_step_overdue() {
        let mut owners = ModuleOwners::new(1);
        let at = Duration::from_secs;
        let synchronizer = owner("a", 1);
        let Claimed { fence, .. } = owners.claim(NOW, &synchronizer, "a:1", &[module(0)]).unwrap();
        let [owed, of_the_coordinator] = [0, 1].map(|index| step(index, 1).fragment);
        owners.note_due(at(5), owed);
        owners.note_due(at(5), of_the_coordinator);
        owners.postpone(at(120), at(100));
        assert!(owners.overdue(at(104)).is_empty());
        assert_eq!(owners.overdue(at(105)), BTreeSet::from([synchronizer]));
        // Nobody owes a step since a time to come.
        owners.postpone(at(120), at(100));
        assert_eq!(owners.oldest_order(), Some(at(120)));
        owners.tell(fence, vec![step(0, 1)], Vec::new());
        assert_eq!(owners.remove_ordered(owed, 1, fence), Some(step(0, 1)));
        assert_eq!(owners.oldest_order(), None);
    }

    #[test]
    fn what_is_due_and_new_passes_on_with_its_module() {
        let mut owners = ModuleOwners::new(1);
        let (at, own) = (Duration::from_secs, owners.own());
        let of = |owners: &ModuleOwners, fence| {
            let open = owners.open();
            let [due, news]: [Vec<_>; 2] = [open.due_of(fence).collect(), open.news_of(fence).collect()];
            (due, news)
        };
        let [a, b] = [0, 1].map(|index| step(index, 1).fragment);
        owners.note_due(at(1), a);
        owners.note_news(a);
        owners.note_news(b);
        assert_eq!(of(&owners, own), (vec![a], vec![a, b]));
        let Claimed { fence: first, .. } =
            owners.claim(at(7), &owner("a", 1), "a:1", &[module(0), module(0)]).unwrap();
        assert_eq!((of(&owners, own), of(&owners, first)), ((vec![], vec![b]), (vec![a], vec![a])));
        assert_eq!(owners.oldest_order(), Some(at(7)), "the new owner owes it since it owns the module");
        owners.tell(first, vec![step(0, 1)], vec![a]);
        assert_eq!(of(&owners, first), (vec![a], vec![]), "a lost answer is repeated");
        // A successor inherits the step. The earlier process may still take it until the successor is asked.
        let Claimed { fence: second, .. } =
            owners.claim(at(9), &owner("a", 2), "a:2", &[module(0), module(1)]).unwrap();
        assert_eq!((of(&owners, first), of(&owners, second)), ((vec![], vec![]), (vec![a], vec![b])));
        assert_eq!(owners.oldest_order(), Some(at(9)));
        owners.tell(second, vec![step(0, 1)], Vec::new());
        assert!(owners.remove_ordered(a, 1, first).is_none());
        assert_eq!(owners.release(at(10), &owner("a", 2)), 2);
        assert_eq!((of(&owners, own), of(&owners, second)), ((vec![a], vec![b]), (vec![], vec![])));
        assert_eq!(owners.remove_ordered(a, 1, second), Some(step(0, 1)));
        assert_eq!(of(&owners, own), (vec![], vec![b]));
    }
}
