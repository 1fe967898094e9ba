//! The requests for leases that wait.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dipaco_sync::{LeaseKey, ProcessId};
use tokio_util::sync::CancellationToken;

/// What a request waits for: any lease of a process, or the one that follows a lease of it.
type Awaited = (ProcessId, Option<LeaseKey>);

/// The requests for leases that wait: of each process one for any lease, and one for each lease to follow. Each change
/// wakes all of them, so a peer must not have as many as it likes.
#[derive(Debug, Default)]
pub(crate) struct WaitingRequests {
    latest: Mutex<BTreeMap<Awaited, CancellationToken>>,
}

/// A request that may wait. It is no longer noted when this is dropped.
pub(super) struct WaitingRequest<'a> {
    requests: &'a WaitingRequests,
    awaited: Awaited,
    superseded: CancellationToken,
}

impl WaitingRequests {
    fn latest(&self) -> MutexGuard<'_, BTreeMap<Awaited, CancellationToken>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request, for any lease or for the one that follows `current`, and ends the wait of an earlier one: a worker
    /// that asks again does not wait for the answer to its earlier request any more.
    pub(super) fn begin(&self, process: &ProcessId, current: Option<LeaseKey>) -> WaitingRequest<'_> {
        let (awaited, superseded) = ((process.clone(), current), CancellationToken::new());
        let mut latest = self.latest();
        if let Some(earlier) = latest.insert(awaited.clone(), superseded.clone()) {
            earlier.cancel();
        }
        WaitingRequest { requests: self, awaited, superseded }
    }
}

impl WaitingRequest<'_> {
    /// Waits until a newer request takes the place of this one.
    pub(super) async fn superseded(&self) {
        self.superseded.cancelled().await;
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        let mut latest = self.requests.latest();
        if !self.superseded.is_cancelled() {
            latest.remove(&self.awaited);
        }
    }
}

#[cfg(test)]
mod tests {
    use dipaco_sync::{Fence, LeaseSecret};
    use dipaco_topology::PathId;

    use super::*;

    #[test]
    fn a_newer_request_ends_the_wait_of_an_earlier_one_of_its_kind_alone() {
        let requests = WaitingRequests::default();
        let (a, b) = (ProcessId::local("a"), ProcessId::local("b"));
        let lease = |fence| {
            Some(LeaseKey { path: PathId(0), fence: Fence(fence), secret: LeaseSecret::new([0; 16]) })
        };
        let others = [requests.begin(&b, None), requests.begin(&a, lease(1)), requests.begin(&a, lease(2))];
        for current in [None, lease(3)] {
            let earlier: Vec<_> = (0..16).map(|_| requests.begin(&a, current)).collect();
            let ended = earlier.iter().filter(|earlier| earlier.superseded.is_cancelled());
            assert_eq!(ended.count(), 15);
            assert!(!earlier[15].superseded.is_cancelled());
            // The end of an earlier request leaves the newest in its place.
            let newest = earlier.into_iter().next_back();
            assert!(requests.latest().contains_key(&(a.clone(), current)));
            drop(newest);
            assert!(!requests.latest().contains_key(&(a.clone(), current)));
        }
        assert!(others.iter().all(|other| !other.superseded.is_cancelled()));
        drop(others);
        assert!(requests.latest().is_empty());
    }
}
