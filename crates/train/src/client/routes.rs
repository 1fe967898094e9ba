//! Routes of a worker's transfers: each module has a synchronizer, which is the coordinator or another process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dipaco_sync::FragmentId;

use crate::TrainError;
use crate::client::ClientError;
use crate::client::session::Session;
use dipaco_protocol::FragmentWeights;

/// Time after which the worker asks the coordinator in place of a synchronizer that it can't reach.
const PATIENCE: Duration = Duration::from_secs(10);

/// The sessions of a worker. Every synchronizer shares the coordinator's store, so the coordinator can answer in place of
/// a synchronizer that is gone.
pub(crate) struct Routes {
    coordinator: Arc<Session>,
    /// Addresses of the fragments' synchronizers, from the newest lease.
    addresses: Mutex<BTreeMap<FragmentId, String>>,
    /// Sessions by address. The lock is held while a connection is made, so each synchronizer gets one session.
    synchronizers: tokio::sync::Mutex<BTreeMap<String, Arc<Session>>>,
}

impl Routes {
    /// All transfers go to the coordinator until a lease names a synchronizer.
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

    /// Takes over the addresses that a lease names.
    pub(crate) fn learn(&self, weights: &[FragmentWeights]) {
        let mut addresses = self.addresses();
        for FragmentWeights { fragment, at, .. } in weights {
            match at {
                Some(address) => drop(addresses.insert(*fragment, address.clone())),
                None => drop(addresses.remove(fragment)),
            }
        }
    }

    /// The session with the synchronizer of a fragment; `None` if that is the coordinator, or the synchronizer can't be
    /// reached.
    pub(crate) async fn synchronizer(
        &self,
        fragment: FragmentId,
    ) -> Result<Option<Arc<Session>>, ClientError> {
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

/// Returns whether the coordinator must be asked instead: the synchronizer is gone, or it can't answer.
pub(crate) fn needs_the_coordinator(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Core(TrainError::Net(_)) | ClientError::Elsewhere { .. } | ClientError::PlanChanged
    )
}
