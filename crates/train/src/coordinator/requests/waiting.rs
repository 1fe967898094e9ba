//! The requests for leases that wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dipaco_sync::{LeaseKey, ProcessId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// What a request waits for: any lease of a process, or the one that follows a lease of it.
type Awaited = (ProcessId, Option<LeaseKey>);

/// The requests for leases that wait: of each process one for any lease, and one for each lease to follow. Each change
/// wakes all of them, so a peer must not have as many as it likes.
#[derive(Debug, Default)]
pub(crate) struct WaitingRequests {
    latest: Mutex<BTreeMap<Awaited, Arc<Signals>>>,
}

/// What a request that waits is told.
#[derive(Debug, Default)]
struct Signals {
    /// A newer request has taken its place.
    superseded: CancellationToken,
    /// Something has changed for its process.
    changed: Notify,
}

/// A request that may wait. It is no longer noted when this is dropped.
pub(super) struct WaitingRequest<'a> {
    requests: &'a WaitingRequests,
    awaited: Awaited,
    signals: Arc<Signals>,
}

impl WaitingRequests {
    fn latest(&self) -> MutexGuard<'_, BTreeMap<Awaited, Arc<Signals>>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request, for any lease or for the one that follows `current`, and ends the wait of an earlier one: a worker
    /// that asks again does not wait for the answer to its earlier request any more.
    pub(super) fn begin(&self, process: &ProcessId, current: Option<LeaseKey>) -> WaitingRequest<'_> {
        let (awaited, signals) = ((process.clone(), current), Arc::<Signals>::default());
        let mut latest = self.latest();
        if let Some(earlier) = latest.insert(awaited.clone(), signals.clone()) {
            earlier.superseded.cancel();
        }
        WaitingRequest { requests: self, awaited, signals }
    }

    /// Wakes the requests of a process.
    pub(super) fn wake(&self, process: &ProcessId) {
        let latest = self.latest();
        let of_process = latest.range((process.clone(), None)..).take_while(|((of, _), _)| of == process);
        of_process.for_each(|(_, signals)| signals.changed.notify_one());
    }
}

impl WaitingRequest<'_> {
    /// Waits until a newer request takes the place of this one.
    pub(super) async fn superseded(&self) {
        self.signals.superseded.cancelled().await;
    }

    /// Waits until something has changed for its process since the last such wait.
    pub(super) async fn changed(&self) {
        self.signals.changed.notified().await;
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        let mut latest = self.requests.latest();
        if !self.signals.superseded.is_cancelled() {
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
            let ended = earlier.iter().filter(|earlier| earlier.signals.superseded.is_cancelled());
            assert_eq!(ended.count(), 15);
            assert!(!earlier[15].signals.superseded.is_cancelled());
            // The end of an earlier request leaves the newest in its place.
            let newest = earlier.into_iter().next_back();
            assert!(requests.latest().contains_key(&(a.clone(), current)));
            drop(newest);
            assert!(!requests.latest().contains_key(&(a.clone(), current)));
        }
        assert!(others.iter().all(|other| !other.signals.superseded.is_cancelled()));
        drop(others);
        assert!(requests.latest().is_empty());
    }

    #[tokio::test]
    async fn a_wake_reaches_all_requests_of_the_process_and_no_others() {
        let requests = WaitingRequests::default();
        let lease = Some(LeaseKey { path: PathId(0), fence: Fence(1), secret: LeaseSecret::new([0; 16]) });
        let [a, b, c] = ["a", "b", "c"].map(ProcessId::local);
        let waiting = [(&a, lease), (&b, None), (&b, lease), (&c, None)];
        let waiting = waiting.map(|(process, current)| requests.begin(process, current));
        requests.wake(&b);
        let mut woken = Vec::new();
        for request in &waiting {
            tokio::select! {
                biased;
                () = request.changed() => woken.push(true),
                () = std::future::ready(()) => woken.push(false),
            }
        }
        assert_eq!(woken, [false, true, true, false]);
    }
}
