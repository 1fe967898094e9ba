//! The state and the weights that a lease begins with.

use std::sync::Arc;

use bytes::Bytes;
use dipaco_sync::Fence;
use dipaco_topology::PathId;

use super::{TrainingSpan, Worker};
use crate::TrainError;
use crate::blocking::blocking;
use dipaco_path::PathState;
use dipaco_path::{GlobalFragment, PathWeights};
use dipaco_path::{LeaseWatch, PathData};
use dipaco_protocol::WorkerPlan;
use dipaco_protocol::{FragmentWeights, GrantedLease};

impl Worker {
    /// What a lease of a path begins with.
    pub(super) async fn path_weights(
        &self,
        path: PathId,
        weights: &[FragmentWeights],
        state: &mut PathState,
        begins: bool,
    ) -> Result<PathWeights, TrainError> {
        let mut values = Vec::with_capacity(weights.len());
        for weights in weights {
            values.push(self.prefetch.weights.get(weights.fragment).await?);
        }
        let globals: Vec<GlobalFragment<'_>> = weights
            .iter()
            .zip(&values)
            .map(|(&FragmentWeights { fragment, received, share, .. }, values)| GlobalFragment {
                fragment,
                values,
                received,
                share,
            })
            .collect();
        Ok(PathWeights::new(self.prefetch.session.plan(), path, &globals, state, begins)?)
    }

    /// The state with which a lease begins: what this worker holds, or the last one that was brought, with the leases
    /// since then trained again.
    pub(super) async fn state(
        &mut self,
        work: &GrantedLease,
        data: &Arc<PathData>,
        (after, brought): (Option<Fence>, Option<Bytes>),
        watch: &Arc<LeaseWatch>,
    ) -> Result<PathState, TrainError> {
        let held = self.held.iter().position(|&(path, ..)| path == work.path).map(|at| self.held.remove(at));
        if let Some((_, fence, state)) = held
            && after == Some(fence)
        {
            return Ok(state);
        }
        let session = self.prefetch.session.clone();
        if !work.trains() {
            // Measuring takes weights only.
            return Ok(PathState { step: work.from, ..start(session.plan()) });
        }
        let mut state = match brought {
            Some(brought) => blocking(move || PathState::decode(&brought, &session.plan().model)).await??,
            None => self.fetch_state(work).await?,
        };
        if !work.tail.is_empty() {
            let (path, steps) = (work.path, work.from - state.step.min(work.from));
            tracing::info!(%path, steps, "the path is taken over; what came after its last state is trained again");
        }
        for stretch in &work.tail {
            self.prefetch.weights.fetch(&stretch.weights).await?;
            let begins = stretch.from == work.phase_step;
            let weights = self.path_weights(work.path, &stretch.weights, &mut state, begins).await?;
            let part = TrainingSpan::of(work, stretch.to, &stretch.sends);
            let mut again = self.training(part, data, weights, state, watch, drop);
            let result = tokio::select! {
                result = &mut again => result?,
                () = self.cancel.cancelled() => {
                    watch.cancel();
                    again.await?;
                    return Err(TrainError::Cancelled);
                }
            };
            match result {
                Some(result) => state = result.state,
                None => return Err(TrainError::LeaseLost { reason: "the round was given up".to_owned() }),
            }
        }
        // Repeating leases has taken other versions of the weights.
        self.prefetch.weights.fetch(&work.weights).await?;
        Ok(state)
    }

    /// The last state that was brought, or that before the first step.
    async fn fetch_state(&self, work: &GrantedLease) -> Result<PathState, TrainError> {
        let session = self.prefetch.session.clone();
        let Some(object) = &work.state else { return Ok(start(session.plan())) };
        let bytes = self.prefetch.transfer.object(object).await?;
        Ok(blocking(move || PathState::decode(&bytes, &session.plan().model)).await??)
    }
}

/// The state of a path before its first step.
fn start(plan: &WorkerPlan) -> PathState {
    PathState::start(dipaco_model::parameters(&dipaco_model::path_specs(&plan.model)))
}
