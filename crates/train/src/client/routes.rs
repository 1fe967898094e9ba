//! Routes of a worker's transfers: each module has a synchronizer, which is the coordinator or another process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dipaco_sync::FragmentId;
use dipaco_topology::PathId;

use crate::TrainError;
use crate::client::ClientError;
use crate::client::session::Session;
use dipaco_protocol::{FragmentWeights, LeaseResult};

/// Time after which the worker asks the coordinator in place of a synchronizer that it can't reach.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the newest leases tell of routes.
#[derive(Default)]
struct KnownRoutes {
    /// Addresses of the fragments' synchronizers. The coordinator is the synchronizer of all others.
    addresses: BTreeMap<FragmentId, String>,
    /// Fragments whose synchronizer takes a path's state.
    states: BTreeMap<PathId, FragmentId>,
}

/// The sessions of a worker. Every synchronizer shares the coordinator's store, so the coordinator can answer in place of
/// a synchronizer that is gone.
pub(crate) struct Routes {
    coordinator: Arc<Session>,
    known: Mutex<KnownRoutes>,
    /// Sessions by address. The lock is held while a connection is made, so each synchronizer gets one session.
    synchronizers: tokio::sync::Mutex<BTreeMap<String, Arc<Session>>>,
}

impl Routes {
    /// All transfers go to the coordinator until a lease names a synchronizer.
    pub(crate) fn new(coordinator: Arc<Session>) -> Self {
        Self { coordinator, known: Mutex::default(), synchronizers: tokio::sync::Mutex::default() }
    }

    /// The session with the coordinator.
    pub(crate) fn coordinator(&self) -> &Arc<Session> {
        &self.coordinator
    }

    fn known(&self) -> MutexGuard<'_, KnownRoutes> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the addresses that a lease of a path names.
    pub(crate) fn learn(&self, path: PathId, weights: &[FragmentWeights]) {
        let mut known = self.known();
        for FragmentWeights { fragment, at, .. } in weights {
            match at {
                Some(address) => drop(known.addresses.insert(*fragment, address.clone())),
                None => drop(known.addresses.remove(fragment)),
            }
        }
        let fragments = weights.iter().map(|weights| weights.fragment);
        match fragment_of_state(fragments) {
            Some(fragment) => drop(known.states.insert(path, fragment)),
            None => drop(known.states.remove(&path)),
        }
    }

    /// The fragment whose synchronizer takes a result of a path; `None` if no lease of the path has been learned.
    pub(crate) fn fragment_of(&self, path: PathId, item: LeaseResult) -> Option<FragmentId> {
        match item {
            LeaseResult::OuterGradient { fragment, .. } => Some(fragment),
            LeaseResult::State => self.known().states.get(&path).copied(),
        }
    }

    /// The session with the synchronizer of a fragment; `None` if that is the coordinator, or the synchronizer can't be
    /// reached.
    pub(crate) async fn synchronizer(
        &self,
        fragment: FragmentId,
    ) -> Result<Option<Arc<Session>>, ClientError> {
        let Some(address) = self.known().addresses.get(&fragment).cloned() else { return Ok(None) };
        let mut synchronizers = self.synchronizers.lock().await;
        if let Some(session) = synchronizers.get(&address) {
            return Ok(Some(session.clone()));
        }
        match self.coordinator.with(&address, PATIENCE).await {
            Ok(session) => {
                let session = Arc::new(session);
                synchronizers.insert(address, session.clone());
                Ok(Some(session))
            }
            Err(error @ (ClientError::Core(TrainError::Cancelled) | ClientError::Complete)) => Err(error),
            Err(error) => {
                // `avoid` takes this lock.
                drop(synchronizers);
                self.avoid(fragment, &error).await;
                Ok(None)
            }
        }
    }

    /// Routes all fragments of a failed synchronizer to the coordinator, until a lease names the synchronizer again.
    pub(crate) async fn avoid(&self, fragment: FragmentId, error: &ClientError) {
        // The synchronizer works; only this one request is the coordinator's.
        if let ClientError::Elsewhere { reason } = error {
            tracing::debug!(reason, "a synchronizer refers the worker to the coordinator");
            return;
        }
        let Some(address) = self.known().addresses.get(&fragment).cloned() else { return };
        tracing::warn!(address, %error, "a synchronizer can't be reached; the coordinator is asked in its place");
        self.known().addresses.retain(|_, other| *other != address);
        self.synchronizers.lock().await.remove(&address);
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        for session in self.synchronizers.lock().await.values() {
            session.close().await;
        }
        self.coordinator.close().await;
    }
}

/// The fragment among those of a path whose synchronizer takes the path's state. Every synchronizer of the path could
/// take it. The choice spreads the paths of a grid evenly over the modules of all levels.
fn fragment_of_state(fragments: impl Iterator<Item = FragmentId>) -> Option<FragmentId> {
    let first: Vec<_> = fragments.filter(|fragment| fragment.index == 0).collect();
    let sum: usize = first.iter().map(|fragment| fragment.module.index as usize).sum();
    first.get(sum.checked_rem(first.len())?).copied()
}

/// Returns whether the coordinator must be asked instead: the synchronizer is gone, or it can't answer.
pub(crate) fn needs_the_coordinator(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Core(TrainError::Net(_)) | ClientError::Elsewhere { .. } | ClientError::PlanChanged
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipaco_topology::ModuleId;

    #[test]
    fn the_states_of_a_grid_spread_evenly_over_its_modules() {
        let mut states = BTreeMap::<_, u32>::new();
        for path in 0..16 {
            let module = |level, index| ModuleId { level, index };
            let fragments = [module(0, path / 4), module(1, path % 4)]
                .into_iter()
                .flat_map(|module| [0, 1, 2].map(|index| FragmentId { module, index }));
            *states.entry(fragment_of_state(fragments).unwrap()).or_default() += 1;
        }
        assert_eq!(states.len(), 8);
        assert!(states.values().all(|&paths| paths == 2), "{states:?}");
        assert_eq!(fragment_of_state([].into_iter()), None);
    }
}
