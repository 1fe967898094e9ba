//! Objects that nothing needs any more.

use dipaco_sync::Fence;
use dipaco_topology::PathId;

use super::Ledger;
use crate::names::{self, Owner};

impl Ledger {
    /// The names to which neither the manifest refers, nor a checkpoint, nor a result that counts with the end of its lease. A
    /// worker may send such a result again after its object was dropped, so whoever deletes dropped objects asks again.
    #[must_use]
    pub fn unused(&self, names: impl IntoIterator<Item = String>) -> Vec<String> {
        let is_unused = |name: &String| {
            !self.objects.holds(name) && !self.checkpoints.need(name) && !self.waits_for_its_lease(name)
        };
        names.into_iter().filter(is_unused).collect()
    }

    /// True if the object of this name is a result that counts with the end of its lease. Looks only at the leases of the path
    /// in the name: every write asks, and all leases together have very many results.
    fn waits_for_its_lease(&self, name: &str) -> bool {
        let Some(Owner::OuterGradient(_, _, path) | Owner::Path(path)) = names::owner(name) else {
            return false;
        };
        let of_path = self.received.range((path, Fence(0))..=(path, Fence(u64::MAX)));
        let mut results = of_path.flat_map(|(_, results)| results.values());
        results.any(|result| {
            self.state.note_looks(1);
            result.waits && result.object.name == name
        })
    }

    /// Deletes objects that do not count with the next write. Keeps objects that something needs: a late repetition of an
    /// accepted result names the accepted object, and the same content with another number of tokens that of a result that waits.
    pub(super) fn delete_unused(&mut self, names: impl IntoIterator<Item = String>) {
        let unused = self.unused(names);
        self.obsolete.extend(unused);
    }

    /// Deletes the results of the leases of this path that do not count.
    pub(super) fn discard_received(&mut self, path: PathId) {
        let leases = self.received.range((path, Fence(0))..=(path, Fence(u64::MAX)));
        let leases: Vec<_> = leases.map(|(&lease, _)| lease).collect();
        let received = leases.into_iter().filter_map(|lease| self.received.remove(&lease)).flatten();
        // The others count, or are deleted already.
        let waiting = received.filter(|(_, result)| result.waits);
        let names: Vec<_> = waiting.map(|(_, result)| result.object.name).collect();
        self.delete_unused(names);
    }
}
