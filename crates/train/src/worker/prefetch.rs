//! What leases begin with, fetched while the lease before is trained.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dipaco_sync::Fence;
use dipaco_topology::PathId;
use tokio::time::Instant;

use super::fragment_cache::FragmentCache;
use super::heartbeat::Heartbeat;
use super::shard_cache::ShardCache;
use crate::TrainError;
use crate::client::Transfer;
use crate::client::{LeaseOffer, Session};
use dipaco_path::{LeaseWatch, PathData};
use dipaco_protocol::{GrantedLease, Request};

/// How long the coordinator keeps a question for work open, in milliseconds.
const WAIT_MS: u64 = 15_000;
/// How often it is looked whether a lease is near its end.
const LOOK: Duration = Duration::from_millis(50);

/// Asks for leases, and fetches what they begin with.
pub(super) struct Prefetch {
    pub(super) session: Arc<Session>,
    pub(super) transfer: Arc<Transfer>,
    pub(super) weights: FragmentCache,
    pub(super) shards: ShardCache,
}

/// A lease with what it begins with. Its global weights are with the worker's others.
pub(super) struct PrefetchedLease {
    pub(super) work: GrantedLease,
    pub(super) data: Arc<PathData>,
    /// The lease that left the state that it goes on from, which this worker has.
    pub(super) after: Option<Fence>,
    /// The path's state as it was brought, when this worker has no newer one.
    pub(super) state: Option<Bytes>,
    pub(super) watch: Arc<LeaseWatch>,
    pub(super) heartbeat: Heartbeat,
    /// How long the fetching took.
    pub(super) took: Duration,
}

impl Prefetch {
    /// The next lease; nothing when the run is complete. `held` are the paths whose states this worker has, with the leases
    /// that left them.
    pub(super) async fn lease(
        &self,
        held: &[(PathId, Fence)],
    ) -> Result<Option<PrefetchedLease>, TrainError> {
        let paths: Vec<_> = held.iter().map(|&(path, _)| path).collect();
        loop {
            let ask = Request::Lease { held: paths.clone(), wait_ms: WAIT_MS };
            match self.session.ask(&ask).await? {
                LeaseOffer::Lease(work) => {
                    let after = work.made_by.filter(|&fence| held.contains(&(work.path, fence)));
                    return self.prefetch_lease(*work, after).await.map(Some);
                }
                LeaseOffer::Wait(reason) => tracing::debug!(reason, "waiting"),
                LeaseOffer::Finished => return Ok(None),
            }
        }
    }

    /// The lease of the same path that follows one that is out; nothing when none does.
    pub(super) async fn follow(
        &self,
        path: PathId,
        fence: Fence,
    ) -> Result<Option<PrefetchedLease>, TrainError> {
        loop {
            let ask = Request::Follow { path, fence, wait_ms: WAIT_MS };
            match self.session.ask(&ask).await {
                Ok(LeaseOffer::Lease(next)) => {
                    return self.prefetch_lease(*next, Some(fence)).await.map(Some);
                }
                Ok(LeaseOffer::Wait(reason)) => tracing::debug!(%path, reason, "what follows has to wait"),
                // When the lease is lost, those who bring its results hear of it.
                Ok(LeaseOffer::Finished) | Err(TrainError::LeaseLost { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    async fn prefetch_lease(
        &self,
        work: GrantedLease,
        after: Option<Fence>,
    ) -> Result<PrefetchedLease, TrainError> {
        let (begun, watch) = (Instant::now(), Arc::new(LeaseWatch::default()));
        // Heartbeats cover the transfers too: on a slow link they may take longer than a lease.
        let heartbeat = Heartbeat::start(self.session.clone(), &work, watch.clone());
        let state = async {
            match &work.state {
                Some(object) if after.is_none() && work.trains() => {
                    self.transfer.object(object).await.map(Some)
                }
                _ => Ok(None),
            }
        };
        let (data, state, ()) =
            tokio::try_join!(self.shards.data(&work), state, self.weights.fetch(&work.weights))?;
        Ok(PrefetchedLease { work, data, after, state, watch, heartbeat, took: begun.elapsed() })
    }
}

/// Waits until a lease of so many inner steps, of which the first is about to be taken, will be over in less than `lead`.
pub(super) async fn near_the_end(watch: &LeaseWatch, steps: u64, lead: Duration) {
    let (mut looks, mut begun) = (tokio::time::interval(LOOK), Instant::now());
    loop {
        looks.tick().await;
        let (done, _) = watch.read();
        if done == 0 {
            // What comes before the first step says nothing of how long a step takes.
            begun = Instant::now();
        }
        if ends_within(begun.elapsed(), done, steps, lead) {
            return;
        }
    }
}

/// Whether a lease of `steps` inner steps, of which `done` took so long, is over within `lead`.
fn ends_within(took: Duration, done: u64, steps: u64, lead: Duration) -> bool {
    let left = steps.saturating_sub(done);
    // Numbers of inner steps are far below 2^53.
    #[allow(clippy::cast_precision_loss)]
    let ends = took.as_secs_f64() / done.max(1) as f64 * left as f64;
    left == 0 || (done > 0 && ends <= lead.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_near_its_end_when_what_is_left_takes_less_than_the_lead() {
        let lead = Duration::from_secs(2);
        let within = |done| ends_within(Duration::from_millis(100 * done), done, 100, lead);
        assert_eq!([0, 1, 79, 80, 99, 100].map(within), [false, false, false, true, true, true]);
        // A lease without steps is at its end, and without a lead only the end is.
        assert!(ends_within(Duration::ZERO, 0, 0, Duration::ZERO));
        assert!(!ends_within(Duration::from_secs(1), 99, 100, Duration::ZERO));
    }
}
