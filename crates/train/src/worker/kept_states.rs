//! The states of the paths that a worker trained last.

use std::path::PathBuf;
use std::sync::Arc;

use dipaco_path::{MomentSpecs, PathState};
use dipaco_sync::Fence;
use dipaco_topology::PathId;

use super::WorkerError;
use super::state_file::StateFile;
use crate::blocking::blocking;
use crate::client::LeaseKey;

/// Bytes of the states in memory besides that of the last lease. Further states lie on the disk.
const IN_MEMORY: u64 = 256 << 20;

/// Path states, the most recent at the end. A path that comes back to this worker needs no download of its state, and no
/// repetition of the steps since the last stored state.
pub(super) struct KeptStates {
    /// `train.held_paths`.
    capacity: usize,
    /// Most bytes of states in memory besides that of the last lease.
    in_memory: u64,
    moments: Arc<MomentSpecs>,
    /// The folder on whose disk states lie.
    folder: PathBuf,
    states: Vec<KeptState>,
}

/// The state that a lease left.
struct KeptState {
    lease: LeaseKey,
    place: StatePlace,
}

/// Where a state lies.
enum StatePlace {
    Memory(Arc<PathState>),
    Disk(StateFile),
}

impl KeptStates {
    /// Keeps `capacity` states, the older ones on the disk of `folder`.
    pub(super) fn new(capacity: usize, moments: MomentSpecs, folder: PathBuf) -> Self {
        Self { capacity, in_memory: IN_MEMORY, moments: Arc::new(moments), folder, states: Vec::new() }
    }

    /// The leases that left the kept states.
    pub(super) fn leases(&self) -> Vec<LeaseKey> {
        self.states.iter().map(|kept| kept.lease).collect()
    }

    /// The paths whose states are in memory.
    pub(super) fn paths_in_memory(&self) -> impl Iterator<Item = PathId> {
        let in_memory = |kept: &&KeptState| matches!(kept.place, StatePlace::Memory(_));
        self.states.iter().filter(in_memory).map(|kept| kept.lease.path)
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
            StatePlace::Memory(state) => Ok(Some(Arc::unwrap_or_clone(state))),
            StatePlace::Disk(file) => {
                let (moments, folder) = (self.moments.clone(), self.folder.clone());
                blocking(move || file.read(&moments, &folder)).await?.map(Some)
            }
        }
    }

    /// Keeps the state that a lease left.
    pub(super) fn insert(&mut self, lease: LeaseKey, state: PathState) {
        self.states.push(KeptState { lease, place: StatePlace::Memory(Arc::new(state)) });
    }

    /// Drops the oldest states that exceed the capacity, and moves others to the disk, the oldest first, until those in memory
    /// are few enough. The state of `next`, the path of the next lease, and that of the last lease stay where they are. States
    /// that the disk does not take stay in memory.
    pub(super) async fn settle(&mut self, next: Option<PathId>) {
        while self.states.len() > self.capacity
            && let Some(oldest) = self.states.iter().position(|kept| Some(kept.lease.path) != next)
        {
            drop(self.states.remove(oldest));
        }
        while let Some((at, state)) = self.oldest_beyond(next) {
            let (moments, folder) = (self.moments.clone(), self.folder.clone());
            let written = blocking(move || StateFile::write(&state, &moments, &folder)).await;
            match written.map_err(WorkerError::from).and_then(|written| written) {
                Ok(file) => self.states[at].place = StatePlace::Disk(file),
                Err(error) => {
                    tracing::warn!(%error, "the states of this worker's paths stay in memory");
                    return;
                }
            }
        }
    }

    /// The oldest state that has to leave the memory, and its place; `None` if those in memory are few enough. The newest state
    /// and that of the next lease do not count.
    fn oldest_beyond(&self, next: Option<PathId>) -> Option<(usize, Arc<PathState>)> {
        let newest = self.states.last().map(|newest| newest.lease.path);
        let mut others = self.states.iter().enumerate().filter_map(|(at, kept)| match &kept.place {
            StatePlace::Memory(state) if ![newest, next].contains(&Some(kept.lease.path)) => {
                Some((at, state))
            }
            _ => None,
        });
        let (at, oldest) = others.next()?;
        let bytes = oldest.bytes() + others.map(|(_, state)| state.bytes()).sum::<u64>();
        (bytes > self.in_memory).then(|| (at, oldest.clone()))
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

    fn states(capacity: usize, in_memory: u64, folder: PathBuf) -> KeptStates {
        KeptStates { in_memory, ..KeptStates::new(capacity, moments(), folder) }
    }

    #[tokio::test]
    async fn the_oldest_states_leave_but_not_that_of_the_next_path() {
        let mut states = states(2, u64::MAX, PathBuf::new());
        for path in 0..3 {
            states.insert(lease(path), state(0));
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
        let mut none = self::states(0, u64::MAX, PathBuf::new());
        none.insert(lease(1), state(0));
        none.settle(Some(PathId(1))).await;
        assert_eq!(none.leases(), [lease(1)]);
        none.settle(None).await;
        assert!(none.leases().is_empty());
    }

    #[tokio::test]
    async fn older_states_lie_on_the_disk_and_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let one = state(0).bytes();
        let mut states = states(9, one, folder.path().to_owned());
        for path in 0..5 {
            states.insert(lease(path), state(path.into()));
            states.settle(Some(PathId(0))).await;
        }
        // The newest, that of the next lease, and one more.
        assert_eq!(states.paths_in_memory().collect::<Vec<_>>(), [0, 3, 4].map(PathId));
        for path in [1, 2, 3, 0, 4] {
            let fence = Some(Fence(path + 10));
            let path = PathId(u32::try_from(path).unwrap());
            assert_eq!(states.take(path, fence).await.unwrap(), Some(state(path.0.into())));
        }
    }

    #[tokio::test]
    async fn states_stay_in_memory_when_the_disk_takes_none() {
        let mut states = states(9, 0, "/proc/nothing".into());
        for path in 0..3 {
            states.insert(lease(path), state(path.into()));
            states.settle(None).await;
        }
        assert_eq!(states.paths_in_memory().count(), 3);
        assert_eq!(states.take(PathId(0), Some(Fence(10))).await.unwrap(), Some(state(0)));
    }
}
