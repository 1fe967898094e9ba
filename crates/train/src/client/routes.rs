//! Where a worker brings and fetches what: every module has a synchronizer, the coordinator or another process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dipaco_sync::FragmentId;

use crate::TrainError;
use crate::client::session::Session;
use dipaco_protocol::FragmentWeights;

/// How long a synchronizer may be out of reach before the coordinator is asked in its place.
const PATIENCE: Duration = Duration::from_secs(10);

/// The sessions of a worker. Every synchronizer shares the coordinator's store, so that the coordinator can do for a worker
/// what a synchronizer that is gone can't.
pub(crate) struct Routes {
    coordinator: Arc<Session>,
    /// Where the synchronizers of fragments are, as the newest lease said.
    addresses: Mutex<BTreeMap<FragmentId, String>>,
    /// Locked while a connection is made.
    synchronizers: tokio::sync::Mutex<BTreeMap<String, Arc<Session>>>,
}

impl Routes {
    /// Everything goes to the coordinator until a lease says otherwise.
    pub(crate) fn new(coordinator: Arc<Session>) -> Self {
        Self { coordinator, addresses: Mutex::default(), synchronizers: tokio::sync::Mutex::default() }
    }

    /// The session with the coordinator.
    pub(crate) fn coordinator(&self) -> &Arc<Session> {
        &self.coordinator
    }

    fn addresses(&self) -> MutexGuard<'_, BTreeMap<FragmentId, String>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of who has the modules of a lease.
    pub(crate) fn learn(&self, weights: &[FragmentWeights]) {
        let mut addresses = self.addresses();
        for FragmentWeights { fragment, at, .. } in weights {
            match at {
                Some(address) => drop(addresses.insert(*fragment, address.clone())),
                None => drop(addresses.remove(fragment)),
            }
        }
    }

    /// The session with the synchronizer of a fragment, unless that is the coordinator or out of reach.
    pub(crate) async fn synchronizer(
        &self,
        fragment: FragmentId,
    ) -> Result<Option<Arc<Session>>, TrainError> {
        let Some(address) = self.addresses().get(&fragment).cloned() else { return Ok(None) };
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
            Err(error @ (TrainError::Cancelled | TrainError::Complete)) => Err(error),
            Err(error) => {
                drop(synchronizers);
                self.avoid(fragment, &error).await;
                Ok(None)
            }
        }
    }

    /// Goes to the coordinator with everything of a synchronizer that has failed, until a lease names it again.
    pub(crate) async fn avoid(&self, fragment: FragmentId, error: &TrainError) {
        if let TrainError::Elsewhere { reason } = error {
            tracing::debug!(reason, "a synchronizer sends on to the coordinator");
            return;
        }
        let Some(address) = self.addresses().get(&fragment).cloned() else { return };
        tracing::warn!(address, %error, "a synchronizer can't be reached; the coordinator is asked in its place");
        self.addresses().retain(|_, other| *other != address);
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

/// Whether an answer has to be had from the coordinator: the synchronizer is gone, or can't give it.
pub(crate) fn is_of_the_way(error: &TrainError) -> bool {
    matches!(error, TrainError::Net(_) | TrainError::Elsewhere { .. } | TrainError::PlanChanged)
}
