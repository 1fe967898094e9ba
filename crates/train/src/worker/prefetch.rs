//! Prefetch: asks for a lease and downloads its inputs while the current lease trains.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dipaco_sync::Fence;
use tokio::time::Instant;

use super::WorkerError;
use super::fragment_cache::FragmentCache;
use super::heartbeat::Heartbeat;
use super::observer::{LeaseMoment, LeaseObserver, LeaseStage};
use super::shard_cache::ShardCache;
use crate::client::{ClientError, LeaseKey, LeaseOffer, Session, Transfer};
use dipaco_path::{LeaseWatch, PathData, TrainingStage};
use dipaco_protocol::{GrantedLease, Request};

/// How long the coordinator keeps a request for a lease open, in milliseconds.
const WAIT_MS: u64 = 15_000;
/// Interval between looks at the progress of a lease.
const LOOK: Duration = Duration::from_millis(50);

/// Asks for leases and downloads their inputs.
pub(super) struct Prefetch {
    pub(super) session: Arc<Session>,
    pub(super) transfer: Arc<Transfer>,
    pub(super) weights: FragmentCache,
    pub(super) shards: ShardCache,
    pub(super) observer: Option<LeaseObserver>,
}

/// A granted lease with its shard.
pub(super) struct ActiveLease {
    pub(super) lease: GrantedLease,
    pub(super) data: Arc<PathData>,
    pub(super) watch: Arc<LeaseWatch>,
}

impl ActiveLease {
    pub(super) fn key(&self) -> LeaseKey {
        self.lease.key()
    }
}

/// A lease whose inputs are here. Its global weights are in the [`FragmentCache`].
pub(super) struct PrefetchedLease {
    pub(super) active: ActiveLease,
    pub(super) state: PrefetchedState,
    pub(super) heartbeat: Heartbeat,
    /// Duration of the prefetch.
    pub(super) took: Duration,
}

/// Source of the path's state at the begin of a lease.
pub(super) struct PrefetchedState {
    /// The earlier lease of this worker that left the state; `None` if this worker does not hold it.
    pub(super) left_by: Option<Fence>,
    /// The path's last stored state, encoded, if the worker needs it and the path has one.
    pub(super) stored: Option<Bytes>,
}

impl Prefetch {
    /// Asks for the next lease and downloads its inputs. Returns `None` when the run is complete. `held` are the leases
    /// that left the states which this worker keeps.
    pub(super) async fn lease(&self, held: &[LeaseKey]) -> Result<Option<PrefetchedLease>, WorkerError> {
        let paths: Vec<_> = held.iter().map(|lease| lease.path).collect();
        let mut told = false;
        loop {
            let ask = Request::Lease { held: paths.clone(), wait_ms: WAIT_MS };
            match self.session.ask(&ask).await? {
                LeaseOffer::Lease(lease) => {
                    let path = lease.path;
                    let holds =
                        |fence: &Fence| held.iter().any(|held| (held.path, held.fence) == (path, *fence));
                    let left_by = lease.made_by.filter(holds);
                    match self.inputs(*lease, left_by).await {
                        // No work is lost yet, so the lease in training goes on.
                        Err(WorkerError::LeaseLost { reason }) => {
                            tracing::warn!(%path, reason, "a lease is lost before its training; asking again");
                        }
                        inputs => return inputs.map(Some),
                    }
                }
                LeaseOffer::Wait(reason) => tracing::debug!(reason, "waiting"),
                LeaseOffer::Unfit(reason) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(reason, "this worker gets no lease; it waits and asks again");
                    }
                }
                LeaseOffer::Finished => return Ok(None),
            }
        }
    }

    /// Asks for the lease that follows `current` on the same path, and downloads its inputs. Returns `None` when no lease
    /// follows.
    pub(super) async fn follow(&self, current: LeaseKey) -> Result<Option<PrefetchedLease>, WorkerError> {
        let LeaseKey { path, fence, .. } = current;
        loop {
            let ask = Request::Follow { lease: current, wait_ms: WAIT_MS };
            match self.session.ask(&ask).await {
                Ok(LeaseOffer::Lease(next)) => match self.inputs(*next, Some(fence)).await {
                    Err(WorkerError::LeaseLost { reason }) => {
                        tracing::warn!(%path, reason, "the following lease is lost before its training");
                        return Ok(None);
                    }
                    inputs => return inputs.map(Some),
                },
                Ok(LeaseOffer::Wait(reason) | LeaseOffer::Unfit(reason)) => {
                    tracing::debug!(%path, reason, "the following lease has to wait");
                }
                // The uploads of a lost lease get the same answer, and they report it.
                Ok(LeaseOffer::Finished) | Err(ClientError::LeaseLost { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Tells the observer what a lease has reached.
    pub(super) fn reached(&self, lease: LeaseKey, stage: LeaseStage) {
        if let Some(observer) = &self.observer {
            observer.observe(LeaseMoment { lease, stage, moved: self.transfer.moved() });
        }
    }

    /// The watch of a lease's training, which tells the observer of the training's stages.
    fn watch(&self, lease: LeaseKey) -> LeaseWatch {
        let Some(observer) = self.observer.clone() else { return LeaseWatch::default() };
        let transfer = self.transfer.clone();
        LeaseWatch::observed(move |stage| {
            let stage = match stage {
                TrainingStage::Loaded => LeaseStage::Loaded,
                TrainingStage::Trained => LeaseStage::Trained,
            };
            observer.observe(LeaseMoment { lease, stage, moved: transfer.moved() });
        })
    }

    async fn inputs(
        &self,
        lease: GrantedLease,
        left_by: Option<Fence>,
    ) -> Result<PrefetchedLease, WorkerError> {
        self.reached(lease.key(), LeaseStage::Granted);
        let (begun, watch) = (Instant::now(), Arc::new(self.watch(lease.key())));
        // Heartbeats begin before the downloads: on a slow link the downloads may take longer than the lease's deadline.
        let heartbeat = Heartbeat::start(self.session.clone(), &lease, watch.clone());
        self.transfer.routes.learn(lease.path, &lease.weights);
        let state = async {
            match &lease.state {
                // Measuring needs no state, and a kept state needs no download.
                Some(object) if left_by.is_none() && lease.trains() => {
                    Ok::<_, WorkerError>(Some(self.transfer.object(object).await?))
                }
                _ => Ok(None),
            }
        };
        let (data, stored, ()) =
            tokio::try_join!(self.shards.data(&lease), state, self.weights.fetch(&lease.weights))?;
        self.reached(lease.key(), LeaseStage::Fetched);
        Ok(PrefetchedLease {
            active: ActiveLease { lease, data, watch },
            state: PrefetchedState { left_by, stored },
            heartbeat,
            took: begun.elapsed(),
        })
    }
}

/// Waits until a lease of so many inner steps will end within `lead`. Call it before the first step.
pub(super) async fn near_the_end(watch: &LeaseWatch, steps: u64, lead: Duration) {
    let (mut looks, mut begun) = (tokio::time::interval(LOOK), Instant::now());
    loop {
        looks.tick().await;
        let (done, _) = watch.read();
        if done == 0 {
            // The time before the first step (state, held-out loss) must not count as time of inner steps.
            begun = Instant::now();
        }
        if ends_within(begun.elapsed(), done, steps, lead) {
            return;
        }
    }
}

/// Returns whether a lease of `steps` inner steps ends within `lead`, when its first `done` steps took `took`.
fn ends_within(took: Duration, done: u64, steps: u64, lead: Duration) -> bool {
    let left = steps.saturating_sub(done);
    let ends = took.as_secs_f64() / done.max(1) as f64 * left as f64;
    left == 0 || (done > 0 && ends <= lead.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_near_its_end_when_the_rest_takes_less_than_the_lead() {
        let lead = Duration::from_secs(2);
        let within = |done| ends_within(Duration::from_millis(100 * done), done, 100, lead);
        assert_eq!([0, 1, 79, 80, 99, 100].map(within), [false, false, false, true, true, true]);
        // A lease without steps is at its end. Without a lead, only the end itself counts.
        assert!(ends_within(Duration::ZERO, 0, 0, Duration::ZERO));
        assert!(!ends_within(Duration::from_secs(1), 99, 100, Duration::ZERO));
    }
}
