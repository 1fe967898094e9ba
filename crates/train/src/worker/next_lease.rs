//! The lease that a worker carries out after the current one.

use tokio_util::sync::CancellationToken;

use super::background::Background;
use super::prefetch::{ActiveLease, PrefetchedLease, near_the_end};
use super::{Worker, WorkerError};

/// The next lease: asked for, or prefetched.
pub(super) enum NextLease {
    /// The future that asks for the lease and fetches its inputs.
    Asked(Background<Option<PrefetchedLease>>),
    /// The prefetched lease; `None` if there is none.
    Known(Option<Box<PrefetchedLease>>),
}

impl NextLease {
    /// Drives the prefetch to its end. Once the lease is known this never returns, so that a `select!` arm stays quiet.
    pub(super) async fn drive(&mut self) -> Result<(), WorkerError> {
        match self {
            Self::Asked(asking) => {
                let known = asking.await?;
                *self = Self::Known(known.map(Box::new));
                Ok(())
            }
            Self::Known(_) => std::future::pending().await,
        }
    }

    /// Waits for the lease. Returns `None` when no lease is left.
    pub(super) async fn take(&mut self) -> Result<Option<PrefetchedLease>, WorkerError> {
        if let Self::Asked(_) = self {
            self.drive().await?;
        }
        match self {
            Self::Known(known) => Ok(known.take().map(|next| *next)),
            Self::Asked(_) => Ok(None),
        }
    }
}

impl Worker {
    /// Starts to ask for the lease after `current`: for a lease that follows on the same path at once, and for any other
    /// lease when the rest of `current` takes no longer than two prefetches, or when `trained` is triggered.
    ///
    /// A prefetched lease waits here while other workers could train it, so a worker asks as late as its downloads allow.
    /// A following lease needs the state of `current`, which only this worker has.
    pub(super) fn ask_next_lease(&self, current: &ActiveLease, trained: CancellationToken) -> NextLease {
        let lease = &current.lease;
        let follows = lease.trains() && self.prefetch.session.plan().sync.overlap_steps > 0;
        let (prefetch, watch) = (self.prefetch.clone(), current.watch.clone());
        // Twice the last prefetch: downloads vary, and training must not wait for them.
        let lead = self.prefetch_time * 2;
        let (current, steps) = (current.key(), lease.to - lease.from);
        // `current` leaves a state too, which is kept by the time the next lease begins.
        let held: Vec<_> = self.states.leases().into_iter().chain([current]).collect();
        NextLease::Asked(Box::pin(async move {
            if follows && let Some(next) = prefetch.follow(current).await? {
                return Ok(Some(next));
            }
            tokio::select! {
                // Early enough that the inputs are here when training ends.
                () = near_the_end(&watch, steps, lead) => {}
                // Training ended before that, or never took a step: the worker is idle now.
                () = trained.cancelled() => {}
            }
            prefetch.lease(&held).await
        }))
    }
}
