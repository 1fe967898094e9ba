//! The states of the paths that a worker trained last.

use dipaco_path::PathState;
use dipaco_topology::PathId;

use crate::client::LeaseKey;

/// Path states in memory, the most recent at the end. A path that comes back to this worker needs no download of its
/// state, and no repetition of the steps since the last stored state.
pub(super) struct KeptStates {
    /// `train.held_paths`.
    capacity: usize,
    states: Vec<KeptState>,
}

/// The state that a lease left.
pub(super) struct KeptState {
    pub(super) lease: LeaseKey,
    pub(super) state: PathState,
}

impl KeptStates {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, states: Vec::new() }
    }

    /// The leases that left the kept states.
    pub(super) fn leases(&self) -> Vec<LeaseKey> {
        self.states.iter().map(|kept| kept.lease).collect()
    }

    /// Removes the state of a path.
    pub(super) fn take(&mut self, path: PathId) -> Option<KeptState> {
        let at = self.states.iter().position(|kept| kept.lease.path == path)?;
        Some(self.states.remove(at))
    }

    /// Keeps the state that a lease left.
    pub(super) fn insert(&mut self, lease: LeaseKey, state: PathState) {
        self.states.push(KeptState { lease, state });
    }

    /// Drops the oldest states that exceed the capacity, but never the state of `next`, the path of the next lease.
    pub(super) fn shrink(&mut self, next: Option<PathId>) {
        while self.states.len() > self.capacity
            && let Some(oldest) = self.states.iter().position(|kept| Some(kept.lease.path) != next)
        {
            drop(self.states.remove(oldest));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dipaco_sync::{Fence, LeaseSecret};

    use super::*;

    fn lease(path: u32) -> LeaseKey {
        let secret = LeaseSecret::default();
        LeaseKey { path: PathId(path), fence: Fence(u64::from(path) + 10), secret }
    }

    fn state() -> PathState {
        let (first, second, kept) = (vec![0.0], vec![0.0], BTreeMap::new());
        PathState { step: 0, position: 0, first, second, kept }
    }

    #[test]
    fn the_oldest_states_leave_but_not_that_of_the_next_path() {
        let mut states = KeptStates::new(2);
        for path in 0..3 {
            states.insert(lease(path), state());
        }
        states.shrink(Some(PathId(0)));
        assert_eq!(states.leases(), [lease(0), lease(2)]);
        assert!(states.take(PathId(1)).is_none());
        assert_eq!(states.take(PathId(0)).map(|kept| kept.lease), Some(lease(0)));
        assert_eq!(states.leases(), [lease(2)]);
        // The next path's state stays even without room for any state.
        let mut none = KeptStates::new(0);
        none.insert(lease(1), state());
        none.shrink(Some(PathId(1)));
        assert_eq!(none.leases(), [lease(1)]);
        none.shrink(None);
        assert!(none.leases().is_empty());
    }
}
