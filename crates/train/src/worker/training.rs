//! The inner steps of a lease, on a thread of their own.

use dipaco_path::{LeaseTraining, OuterGradient, PathState, PathWeights, TrainedLease, train_lease};
use dipaco_sync::ScheduledSend;

use super::Worker;
use super::background::Background;
use super::prefetch::ActiveLease;
use crate::blocking::blocking;

/// Inner steps from the path's state up to `to`, with the outer gradients that are sent on the way.
pub(super) struct TrainingSpan {
    pub(super) to: u64,
    pub(super) sends: Vec<ScheduledSend>,
    /// True if somebody gets the held-out loss at the beginning.
    pub(super) measures: bool,
}

/// Weights and state of a path where a span begins.
pub(super) struct TrainingStart {
    pub(super) weights: PathWeights,
    pub(super) state: PathState,
}

impl Worker {
    /// Trains a span of the lease's path. `early` gets the outer gradients that are sent before the end of the span. The
    /// future ends with `None` when the lease's watch was cancelled.
    ///
    /// The thread keeps running when the future is dropped. Await the future after cancelling the watch, so that no two
    /// threads train at the same time.
    pub(super) fn training(
        &self,
        active: &ActiveLease,
        span: TrainingSpan,
        start: TrainingStart,
        early: impl FnMut(OuterGradient) + Send + 'static,
    ) -> Background<Option<TrainedLease>> {
        let (plan, device) = (self.prefetch.session.plan().clone(), self.device.clone());
        let (data, watch) = (active.data.clone(), active.watch.clone());
        let memory = self.memory.clone();
        let (path, phase_step) = (active.lease.path, active.lease.phase_step);
        Box::pin(async move {
            let trained = blocking(move || {
                let TrainingStart { weights, state } = start;
                let training = LeaseTraining {
                    device: &device,
                    plan: &plan,
                    path,
                    data: &data,
                    phase_step,
                    to: span.to,
                    sends: &span.sends,
                    measures: span.measures,
                    memory: &memory,
                };
                train_lease(training, weights, state, &watch, early)
            });
            Ok(trained.await??)
        })
    }
}
