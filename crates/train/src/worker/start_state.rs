//! The state and the weights with which a lease begins.

use dipaco_path::{GlobalFragment, MomentSpecs, PathError, PathState, PathWeights};
use dipaco_protocol::{CompletedLease, FragmentWeights, GrantedLease, WorkerPlan};
use dipaco_topology::PathId;

use super::background::{Background, beside, failure};
use super::prefetch::{ActiveLease, PrefetchedState};
use super::training::{TrainingSpan, TrainingStart};
use super::{Worker, WorkerError};
use crate::blocking::blocking;

impl Worker {
    /// The weights with which training of a path begins. `begins_phase` says that a phase of routing begins.
    pub(super) async fn path_weights(
        &self,
        path: PathId,
        weights: &[FragmentWeights],
        state: &mut PathState,
        begins_phase: bool,
    ) -> Result<PathWeights, WorkerError> {
        let mut globals = Vec::with_capacity(weights.len());
        for &FragmentWeights { fragment, received, share, .. } in weights {
            let values = self.prefetch.weights.get(fragment).await?;
            globals.push(GlobalFragment { fragment, values, received, share });
        }
        Ok(PathWeights::new(self.prefetch.session.plan(), path, &globals, state, begins_phase)?)
    }

    /// The state with which a lease begins. Drives `previous`, the upload of the lease before, meanwhile.
    pub(super) async fn start_state(
        &mut self,
        active: &ActiveLease,
        prefetched: PrefetchedState,
        previous: &mut Background<()>,
    ) -> Result<PathState, WorkerError> {
        let GrantedLease { path, from, phase_step, .. } = active.lease;
        let mut state = self.last_state(active, prefetched, previous).await?;
        let schedule = self.prefetch.session.plan().schedule().map_err(PathError::from)?;
        state.rest(&schedule, path, from, phase_step);
        Ok(state)
    }

    /// The state after the path's last lease: the state that this worker kept, or the path's last stored state. A worker
    /// that takes the path over with a stored state repeats the completed leases since then.
    async fn last_state(
        &mut self,
        active: &ActiveLease,
        prefetched: PrefetchedState,
        previous: &mut Background<()>,
    ) -> Result<PathState, WorkerError> {
        let lease = &active.lease;
        match self.states.take(lease.path, prefetched.left_by).await {
            Ok(Some(kept)) => return Ok(kept),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(path = %lease.path, %error, "the path goes on from its last stored state");
            }
        }
        let session = self.prefetch.session.clone();
        if !lease.trains() {
            // Measuring needs the weights alone.
            return Ok(PathState { step: lease.from, ..first_state(session.plan()).await? });
        }
        let mut state = match prefetched.stored {
            Some(stored) => blocking(move || decoded_state(session.plan(), &stored)).await??,
            // The prefetch counted on a kept state that has left since, or the path has no stored state.
            None => beside(previous, self.stored_state(lease)).await?,
        };
        if !lease.replay.is_empty() {
            let (path, steps) = (lease.path, lease.from - state.step.min(lease.from));
            tracing::info!(%path, steps, "the path is taken over; the steps since its last stored state are repeated");
        }
        for completed in &lease.replay {
            state = self.repeat(active, completed, state, previous).await?;
        }
        // The repeated leases have put older versions of the weights into the cache.
        beside(previous, self.prefetch.weights.fetch(&lease.weights)).await?;
        Ok(state)
    }

    /// Trains a completed lease again. Its outer gradients have been counted, so they are dropped here. Its held-out loss
    /// has been noted, so it is not measured.
    async fn repeat(
        &self,
        active: &ActiveLease,
        completed: &CompletedLease,
        mut state: PathState,
        previous: &mut Background<()>,
    ) -> Result<PathState, WorkerError> {
        let lease = &active.lease;
        beside(previous, self.prefetch.weights.fetch(&completed.weights)).await?;
        let schedule = self.prefetch.session.plan().schedule().map_err(PathError::from)?;
        state.rest(&schedule, lease.path, completed.from, lease.phase_step);
        let begins_phase = completed.from == lease.phase_step;
        let weights = self.path_weights(lease.path, &completed.weights, &mut state, begins_phase).await?;
        let span = TrainingSpan { to: completed.to, sends: completed.sends.clone(), measures: false };
        let mut training = self.training(active, span, TrainingStart { weights, state }, drop);
        let trained = tokio::select! {
            trained = &mut training => trained?,
            // As during the lease's own training: the thread ends before the error is told.
            error = failure(previous) => {
                active.watch.cancel();
                training.await?;
                return Err(error);
            }
            // The user asks to stop. The thread ends after its current step.
            () = self.cancel.cancelled() => {
                active.watch.cancel();
                training.await?;
                return Err(WorkerError::cancelled());
            }
        };
        active.watch.end_repetition();
        Ok(trained.ok_or_else(WorkerError::training_cancelled)?.state)
    }

    /// The path's last stored state, or the state before its first step.
    async fn stored_state(&self, lease: &GrantedLease) -> Result<PathState, WorkerError> {
        let session = self.prefetch.session.clone();
        let Some(object) = &lease.state else { return first_state(session.plan()).await };
        let bytes = self.prefetch.transfer.object(object).await?;
        Ok(blocking(move || decoded_state(session.plan(), &bytes)).await??)
    }
}

/// The state of a path before its first step.
async fn first_state(plan: &WorkerPlan) -> Result<PathState, WorkerError> {
    let moments = MomentSpecs::of_plan(plan)?;
    Ok(blocking(move || PathState::start(&moments)).await?)
}

/// The state in a file of the store.
fn decoded_state(plan: &WorkerPlan, bytes: &[u8]) -> Result<PathState, PathError> {
    PathState::decode(bytes, &MomentSpecs::of_plan(plan)?)
}
