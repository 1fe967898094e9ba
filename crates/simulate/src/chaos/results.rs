//! Results of leases at the simulated coordinator, in the order of production: admitted, stored, recorded.

use std::time::Duration;

use dipaco_sync::{Commit, Fence, FragmentId, LeaseClaim, LeaseKey, LeaseOutcome, LeaseTask};
use dipaco_topology::PathId;

use super::Bug;
use super::coordinator::{
    ChaosAnswer, ChaosReply, Effect, Operation, Requester, SimulatedCoordinator, refused,
};
use super::object_store::{Item, ItemKey, ObjectName};

impl SimulatedCoordinator {
    /// Drops the results of a path's leases that do not count.
    pub(super) fn discard_received(&mut self, path: PathId) {
        let of_path = |(of, _): &(PathId, Fence)| *of == path;
        let leases: Vec<_> = self.received.keys().copied().filter(of_path).collect();
        for lease in leases {
            let objects = self.received.remove(&lease).unwrap_or_default();
            self.delete_unused(objects.into_values().map(|object| object.name));
        }
    }

    fn delete_unused(&mut self, names: impl IntoIterator<Item = String>) {
        let disk = &self.disk;
        self.obsolete.extend(names.into_iter().filter(|name| !disk.refers_to(name)));
    }

    /// Admits a result, and puts it into the store before it counts.
    pub(super) fn upload(&self, to: Requester, lease: LeaseKey, item: Item) -> Effect {
        let claim = self.claim(lease, &to.process);
        let admitted = match &item {
            Item::Gradient(send, _) => {
                self.run_state.expects(&claim, send.fragment, send.number, 1).map(drop)
            }
            Item::State(_) => self.run_state.check(&claim).map(drop),
        };
        if let Err(error) = admitted {
            return Effect::Answer(ChaosAnswer { to, reply: refused(&error) });
        }
        let object = ObjectName::of(lease, item.key(), &item.clone().content(), self.bug);
        if self.has_other_content(lease, item.key(), &object) && self.bug != Some(Bug::OverwrittenObject) {
            return Effect::Answer(ChaosAnswer {
                to,
                reply: ChaosReply::Refused("another content".to_owned()),
            });
        }
        let record = Operation::Record { to, lease, item, object: object.clone() };
        Effect::Store(object, Box::new(record))
    }

    fn has_other_content(&self, lease: LeaseKey, item: ItemKey, object: &ObjectName) -> bool {
        let received = self.received.get(&(lease.path, lease.fence));
        received.and_then(|received| received.get(&item)).is_some_and(|known| known != object)
    }

    /// Records a result that is in the store. The second value is true if the disk must have the change before the
    /// worker gets the answer.
    pub(super) fn record(
        &mut self,
        claim: &LeaseClaim,
        item: &Item,
        object: ObjectName,
    ) -> (ChaosReply, bool) {
        let lease = claim.key;
        if self.has_other_content(lease, item.key(), &object) {
            if self.bug != Some(Bug::OverwrittenObject) {
                self.delete_unused([object.name]);
            }
            return (ChaosReply::Refused("another content".to_owned()), false);
        }
        let counts = match item {
            Item::State(_) => match self.run_state.check(claim) {
                Ok(_) => false,
                Err(error) => {
                    self.delete_unused([object.name]);
                    return (refused(&error), false);
                }
            },
            Item::Gradient(send, _) => {
                match self.run_state.contribute(claim, send.fragment, send.number, 1) {
                    Commit::Accepted(counted) => {
                        let key = (send.fragment, lease.path, send.number);
                        if counted.is_some() {
                            self.disk.gradients.insert(key, object.clone());
                        }
                        counted.is_some()
                    }
                    Commit::Duplicate => {
                        self.delete_unused([object.name.clone()]);
                        false
                    }
                    Commit::Refused(error) => {
                        self.delete_unused([object.name]);
                        return (refused(&error), false);
                    }
                }
            }
        };
        self.received.entry((lease.path, lease.fence)).or_default().insert(item.key(), object);
        (ChaosReply::Done, counts)
    }

    /// Completes a lease: its results count together.
    pub(super) fn complete(
        &mut self,
        now: Duration,
        claim: &LeaseClaim,
        done: &LeaseOutcome,
    ) -> (ChaosReply, bool) {
        let (path, fence) = (claim.key.path, claim.key.fence);
        if let Ok(lease) = self.run_state.check(claim)
            && lease.task == LeaseTask::Train
        {
            let last = lease.sends.iter().filter(|send| send.step == lease.to);
            let mut needed =
                last.map(|send| ItemKey::Gradient(send.fragment, send.number)).chain([ItemKey::State]);
            let received = self.received.get(&(path, fence));
            if needed.any(|item| !received.is_some_and(|received| received.contains_key(&item))) {
                return (ChaosReply::Refused("a result is missing".to_owned()), false);
            }
        }
        let hands_over = self.run_state.check(claim).is_ok_and(|lease| lease.hands_over.is_some());
        match self.run_state.commit(now, claim, done) {
            Commit::Accepted(counted) => {
                for (item, object) in self.received.remove(&(path, fence)).unwrap_or_default() {
                    let counts = |fragment: &FragmentId, number: u32| {
                        counted.get(fragment).is_some_and(|counted| counted.number == number)
                    };
                    match item {
                        ItemKey::Gradient(fragment, number) if counts(&fragment, number) => {
                            self.disk.gradients.insert((fragment, path, number), object);
                        }
                        ItemKey::Gradient(..) => self.delete_unused([object.name]),
                        ItemKey::State => {
                            let before = self.disk.states.insert(path, object);
                            self.obsolete.extend(before.map(|object| object.name));
                        }
                    }
                }
                self.run_state.bind(path, self.bound && !hands_over);
                (ChaosReply::Done, true)
            }
            Commit::Duplicate => (ChaosReply::Done, false),
            Commit::Refused(error) => (refused(&error), false),
        }
    }
}
