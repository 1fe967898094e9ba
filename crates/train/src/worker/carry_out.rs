//! Carrying out one lease, from its prefetched inputs to the upload of its results.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dipaco_path::{OuterGradient, PathState, PathWeights, TrainedLease};
use dipaco_sync::fragment_ids_of;
use dipaco_topology::PathId;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::background::{Background, beside};
use super::completion::{Completion, GradientUpload};
use super::gradients::upload_gradients;
use super::next_lease::NextLease;
use super::prefetch::{ActiveLease, PrefetchedLease};
use super::training::{TrainingSpan, TrainingStart};
use super::{Worker, WorkerError};

/// A lease that was carried out, up to the upload of its results.
pub(super) struct CarriedOut {
    /// The next lease; `None` if the run has no more.
    pub(super) next: Option<PrefetchedLease>,
    /// Ends when the lease is complete.
    pub(super) uploading: Background<()>,
}

/// A trained lease and the upload of its gradients, which goes on.
struct Trained {
    lease: TrainedLease,
    gradients: GradientUpload,
}

impl Worker {
    /// Trains a lease. Meanwhile `previous`, the upload of the lease before, comes to its end, and the next lease is
    /// prefetched.
    pub(super) async fn carry_out(
        &mut self,
        prefetched: PrefetchedLease,
        mut previous: Background<()>,
    ) -> Result<CarriedOut, WorkerError> {
        let PrefetchedLease { active, state, heartbeat, took } = prefetched;
        self.prefetch_time = took;
        let mut state = self.start_state(&active, state, &mut previous).await?;
        let trained_token = CancellationToken::new();
        let mut next_lease = self.ask_next_lease(&active, trained_token.clone());
        let weights = self.lease_weights(&active, &mut state).await?;
        let start = TrainingStart { weights, state };
        let trained = self.train(&active, start, previous, &mut next_lease).await?;
        // Training may end sooner than its pace promised: ask for the next lease now at the latest.
        trained_token.cancel();
        let Some(Trained { lease: trained, gradients }) = trained else {
            let reason = heartbeat.stop().await;
            return Err(reason
                .map_or_else(WorkerError::training_cancelled, |reason| WorkerError::LeaseLost { reason }));
        };
        let Completion { state, file, mut uploading } =
            self.complete(&active, trained, gradients, heartbeat).await?;
        // The coordinator may not grant another lease before this one is complete, so the upload must advance here. If the
        // next lease comes first, the upload goes on while that lease trains.
        let next = beside(&mut uploading, next_lease.take()).await?;
        if active.lease.trains() {
            self.states.insert(active.key(), state, file);
        }
        self.settle(active.lease.path, next.as_ref()).await;
        let uploading = self.tolerate_loss(&active, uploading, next.as_ref());
        Ok(CarriedOut { next, uploading })
    }

    /// The weights with which the lease begins.
    async fn lease_weights(
        &self,
        active: &ActiveLease,
        state: &mut PathState,
    ) -> Result<PathWeights, WorkerError> {
        let lease = &active.lease;
        let begins_phase = lease.from == lease.phase_step || !lease.trains();
        self.path_weights(lease.path, &lease.weights, state, begins_phase).await
    }

    /// Trains a lease while `previous` ends and the lease's early outer gradients are uploaded. Returns `None` when
    /// training was cancelled by a heartbeat.
    async fn train(
        &mut self,
        active: &ActiveLease,
        start: TrainingStart,
        previous: Background<()>,
        next_lease: &mut NextLease,
    ) -> Result<Option<Trained>, WorkerError> {
        let lease = &active.lease;
        let waited = self.idle_since.elapsed();
        // The queue has room for all gradients that the lease sends, so training never waits for the network.
        let (queue, gradients) = mpsc::channel(lease.sends.len().max(1));
        let early = queue.clone();
        // A closed queue means that an upload failed. The arm below sees this failure and cancels training.
        let early = move |gradient| drop(early.try_send(gradient));
        let span = TrainingSpan { to: lease.to, sends: lease.sends.clone(), measures: true };
        let mut training = self.training(active, span, start, early);
        let previous_completed = CancellationToken::new();
        let mut uploading = self.upload_after(previous, previous_completed.clone(), active, gradients);
        // Each arm but the first waits for the training thread before it returns: the thread uses the device, and the next
        // training must not run beside it. An error of the thread itself comes first, because it may be the cause.
        let trained = loop {
            tokio::select! {
                // The last inner step is done, or the watch was cancelled.
                trained = &mut training => break trained?,
                // The upload can't end well while `queue` is open: this lease or the lease before is lost, or the
                // coordinator is out of reach. The results of further steps could not be uploaded.
                uploaded = &mut uploading => {
                    active.watch.cancel();
                    training.await?;
                    uploaded?;
                    return Ok(None);
                }
                // The prefetch has ended. A prefetched lease waits in `next_lease`; an error ends the worker.
                known = next_lease.drive() => {
                    if let Err(error) = known {
                        active.watch.cancel();
                        training.await?;
                        return Err(error);
                    }
                }
                // The user asks to stop. The thread ends after its current step.
                () = self.cancel.cancelled() => {
                    active.watch.cancel();
                    training.await?;
                    return Err(WorkerError::cancelled());
                }
            }
        };
        let Some(mut trained) = trained else { return Ok(None) };
        trained.report.waited_seconds = waited.as_secs_f64();
        if lease.trains() {
            self.idle_since = Instant::now();
        }
        let gradients = GradientUpload { queue, uploading, previous_completed };
        Ok(Some(Trained { lease: trained, gradients }))
    }

    /// Waits for the completion of the lease before, and then uploads the outer gradients of this lease.
    fn upload_after(
        &self,
        previous: Background<()>,
        previous_completed: CancellationToken,
        active: &ActiveLease,
        gradients: mpsc::Receiver<OuterGradient>,
    ) -> Background<()> {
        let (transfer, lease) = (self.prefetch.transfer.clone(), active.key());
        Box::pin(async move {
            previous.await?;
            previous_completed.cancel();
            upload_gradients(transfer, lease, gradients).await
        })
    }

    /// Keeps the states and the global weights that the next leases need, after a lease of `path`.
    async fn settle(&mut self, path: PathId, next: Option<&PrefetchedLease>) {
        let next = next.map(|next| next.active.lease.path);
        self.states.settle(next).await;
        let fragments = self.prefetch.session.plan().sync.fragments;
        let of_path = |path| fragment_ids_of(&self.topology, fragments, path);
        let needed = of_path(next.unwrap_or(path)).into_iter().collect();
        // The paths of the newest states come back first.
        let others = self.states.leases().into_iter().rev().flat_map(|lease| of_path(lease.path));
        self.prefetch.weights.keep(needed, others).await;
    }

    /// Lets the worker go on with leases of other paths when this lease is lost during its upload.
    fn tolerate_loss(
        &self,
        active: &ActiveLease,
        uploading: Background<()>,
        next: Option<&PrefetchedLease>,
    ) -> Background<()> {
        let path = active.lease.path;
        let follows = next.is_some_and(|next| next.active.lease.path == path);
        let counts = Arc::clone(&self.counts);
        Box::pin(async move {
            match uploading.await {
                // The next lease of the same path continues these weights, so it is lost with this lease. A lease of
                // another path does not depend on them.
                Err(WorkerError::LeaseLost { reason }) if !follows => {
                    tracing::warn!(%path, reason, "the lease is lost");
                    counts.lost.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
                completed => completed,
            }
        })
    }
}
