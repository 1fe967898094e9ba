//! The states of the paths that a worker trained last.

use std::sync::Arc;

use dipaco_path::PathState;
use dipaco_sync::Fence;
use dipaco_topology::PathId;

use super::WorkerError;
use super::state_file::{StateFile, StateFolder};
use crate::client::LeaseKey;

/// Path states, the most recent at the end. A path that comes back to this worker needs no download of its state, and no
/// repetition of the steps since the last stored state.
pub(super) struct KeptStates {
    /// `train.held_paths`.
    capacity: usize,
    folder: StateFolder,
    states: Vec<KeptState>,
}

/// The state that a lease left.
struct KeptState {
    lease: LeaseKey,
    place: StatePlace,
}

/// Where a state lies.
enum StatePlace {
    /// In memory, and in a file if the lease uploaded it.
    Memory(Arc<PathState>, Option<StateFile>),
    /// In a file alone.
    Disk(StateFile),
}

impl KeptStates {
    /// Keeps `capacity` states in `folder`. That of the next path stays in memory.
    pub(super) fn new(capacity: usize, folder: StateFolder) -> Self {
        Self { capacity, folder, states: Vec::new() }
    }

    /// The folder of the states.
    pub(super) fn folder(&self) -> &StateFolder {
        &self.folder
    }

    /// The leases that left the kept states.
    pub(super) fn leases(&self) -> Vec<LeaseKey> {
        self.states.iter().map(|kept| kept.lease).collect()
    }

    /// Drops the state of a path.
    pub(super) fn remove(&mut self, path: PathId) {
        self.states.retain(|kept| kept.lease.path != path);
    }

    /// Removes the state of a path. Returns it if the lease with this fencing number left it: otherwise another worker has
    /// trained the path since.
    ///
    /// # Errors
    /// When it can't be read from the disk.
    pub(super) async fn take(
        &mut self,
        path: PathId,
        left_by: Option<Fence>,
    ) -> Result<Option<PathState>, WorkerError> {
        let Some(at) = self.states.iter().position(|kept| kept.lease.path == path) else { return Ok(None) };
        let KeptState { lease, place } = self.states.remove(at);
        match place {
            _ if left_by != Some(lease.fence) => Ok(None),
            StatePlace::Memory(state, _) => Ok(Some(Arc::unwrap_or_clone(state))),
            StatePlace::Disk(file) => self.folder.read(file).await.map(Some),
        }
    }

    /// Keeps the state that a lease left, and its file if there is one.
    pub(super) fn insert(&mut self, lease: LeaseKey, state: Arc<PathState>, file: Option<StateFile>) {
        self.states.push(KeptState { lease, place: StatePlace::Memory(state, file) });
    }

    /// Drops the oldest states that exceed the capacity, and moves the others to the disk. The state of `next`, the path of the
    /// next lease, stays where it is, and without a next lease all do. States that the disk does not take stay in memory.
    pub(super) async fn settle(&mut self, next: Option<PathId>) {
        while self.states.len() > self.capacity
            && let Some(oldest) = self.states.iter().position(|kept| Some(kept.lease.path) != next)
        {
            drop(self.states.remove(oldest));
        }
        let Some(next) = next else { return };
        for KeptState { lease, place } in &mut self.states {
            let StatePlace::Memory(state, file) = place else { continue };
            if lease.path == next {
                continue;
            }
            let file = match file.take() {
                Some(file) => Some(file),
                None => self.folder.write(state).await,
            };
            match file {
                Some(file) => *place = StatePlace::Disk(file),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dipaco_sync::LeaseSecret;

    use super::super::state_file::tests::moments;
    use super::*;

    fn lease(path: u32) -> LeaseKey {
        let secret = LeaseSecret::default();
        LeaseKey { path: PathId(path), fence: Fence(u64::from(path) + 10), secret }
    }

    fn state(step: u64) -> PathState {
        PathState { step, ..PathState::start(&moments()) }
    }

    fn states(capacity: usize, folder: &str) -> KeptStates {
        KeptStates::new(capacity, StateFolder::new(folder.into(), moments()))
    }

    /// The paths whose states are in memory.
    fn in_memory(states: &KeptStates) -> Vec<PathId> {
        let in_memory = |kept: &&KeptState| matches!(kept.place, StatePlace::Memory(..));
        states.states.iter().filter(in_memory).map(|kept| kept.lease.path).collect()
    }

    #[tokio::test]
    async fn the_oldest_states_leave_but_not_that_of_the_next_path() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        let mut states = states(2, folder);
        for path in 0..3 {
            states.insert(lease(path), state(0).into(), None);
        }
        states.settle(Some(PathId(0))).await;
        assert_eq!(states.leases(), [lease(0), lease(2)]);
        assert_eq!(states.take(PathId(1), Some(Fence(11))).await.unwrap(), None);
        assert_eq!(states.take(PathId(0), Some(Fence(10))).await.unwrap(), Some(state(0)));
        assert_eq!(states.leases(), [lease(2)]);
        // Another worker has trained the path since.
        assert_eq!(states.take(PathId(2), Some(Fence(13))).await.unwrap(), None);
        assert!(states.leases().is_empty());
        // The next path's state stays even without room for any state.
        let mut none = self::states(0, folder);
        none.insert(lease(1), state(0).into(), None);
        none.settle(Some(PathId(1))).await;
        assert_eq!(none.leases(), [lease(1)]);
        none.settle(None).await;
        assert!(none.leases().is_empty());
    }

    #[tokio::test]
    async fn states_lie_on_the_disk_and_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut states = states(9, folder.path().to_str().unwrap());
        for path in 0..5 {
            let state = Arc::new(state(path.into()));
            // A lease that uploaded its state has written it.
            let file = if path == 2 { states.folder.write(&state).await } else { None };
            states.insert(lease(path), state, file);
            states.settle(Some(PathId(0))).await;
        }
        assert_eq!(in_memory(&states), [PathId(0)]);
        for path in [1, 2, 3, 0, 4] {
            let fence = Some(Fence(path + 10));
            let path = PathId(u32::try_from(path).unwrap());
            assert_eq!(states.take(path, fence).await.unwrap(), Some(state(path.0.into())));
        }
    }

    #[tokio::test]
    async fn states_stay_in_memory_when_the_disk_takes_none() {
        let mut states = states(9, "/proc/nothing");
        for path in 0..3 {
            states.insert(lease(path), state(path.into()).into(), None);
            states.settle(Some(PathId(9))).await;
        }
        assert_eq!(in_memory(&states), [0, 1, 2].map(PathId));
        assert_eq!(states.take(PathId(0), Some(Fence(10))).await.unwrap(), Some(state(0)));
    }
}
