//! The end of a lease: its last results are uploaded, and the coordinator is told that the lease is complete.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dipaco_path::{OuterGradient, PathState, TrainedLease};
use dipaco_protocol::{LeaseReport, LeaseResult, Request};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::background::Background;
use super::heartbeat::Heartbeat;
use super::observer::LeaseStage;
use super::prefetch::{ActiveLease, Prefetch};
use super::state_file::StateFile;
use super::{Counts, Worker, WorkerError};
use crate::client::{LONG_CALL_TIMEOUT, LeaseKey, UploadContent, expect_done};

/// The upload of a lease's outer gradients.
pub(super) struct GradientUpload {
    /// Queue of the gradients. The upload ends when the queue is closed and empty.
    pub(super) queue: mpsc::Sender<OuterGradient>,
    pub(super) uploading: Background<()>,
    /// Triggered when the lease before is complete. This lease must not upload a result before that.
    pub(super) previous_completed: CancellationToken,
}

/// A trained lease whose results are on their way.
pub(super) struct Completion {
    /// The path's state at the end of the lease.
    pub(super) state: Arc<PathState>,
    /// The state in a file, if it is uploaded from there.
    pub(super) file: Option<StateFile>,
    /// Ends when the coordinator has recorded the lease as complete.
    pub(super) uploading: Background<()>,
}

impl Worker {
    /// Starts the uploads that complete a lease. The worker drives them while it carries out the next lease.
    pub(super) async fn complete(
        &self,
        active: &ActiveLease,
        trained: TrainedLease,
        gradients: GradientUpload,
        heartbeat: Heartbeat,
    ) -> Result<Completion, WorkerError> {
        let TrainedLease { last, state, report } = trained;
        let GradientUpload { queue, uploading, previous_completed } = gradients;
        for gradient in last {
            // The queue has room for all sends of the lease. It is closed only after a failed upload, which reports itself.
            drop(queue.try_send(gradient));
        }
        // The upload of the gradients ends when the closed queue is empty.
        drop(queue);
        let uploads_state = active.lease.trains() && active.lease.uploads_state;
        let state = Arc::new(state);
        // Before the next lease changes it. A file takes no memory while the state is on its way.
        let (file, content) = if uploads_state {
            match self.states.folder().write(&state).await {
                Some(file) => (Some(file.clone()), Some(file.into())),
                None => (None, Some(self.states.folder().encode(&state).await?.into())),
            }
        } else {
            (None, None)
        };
        self.prefetch.reached(active.key(), LeaseStage::Encoded);
        let results = Results {
            prefetch: self.prefetch.clone(),
            lease: active.key(),
            counts: self.counts.clone(),
            trains: active.lease.trains(),
            report,
            heartbeat,
        };
        let uploading = Box::pin(results.upload(uploading, previous_completed, content));
        Ok(Completion { state, file, uploading })
    }
}

/// A lease during its upload.
struct Results {
    prefetch: Arc<Prefetch>,
    lease: LeaseKey,
    counts: Arc<Counts>,
    trains: bool,
    report: LeaseReport,
    /// Renews the lease until it is complete.
    heartbeat: Heartbeat,
}

impl Results {
    async fn upload(
        self,
        gradients: Background<()>,
        previous_completed: CancellationToken,
        state: Option<UploadContent>,
    ) -> Result<(), WorkerError> {
        let Self { prefetch, lease, counts, trains, mut report, heartbeat } = self;
        let uploading_state = async {
            // `gradients` includes the completion of the lease before. If that fails, this never goes on, and `try_join!`
            // ends with the failure.
            previous_completed.cancelled().await;
            if let Some(content) = state {
                prefetch.transfer.upload(lease, LeaseResult::State, content).await?;
            }
            Ok(())
        };
        tokio::try_join!(gradients, uploading_state)?;
        report.linked_bytes = prefetch.transfer.links.take_unreported();
        let (loss, seconds) = (report.loss, report.seconds);
        let request = Request::Complete { lease, report };
        expect_done(prefetch.session.call(&request, None, LONG_CALL_TIMEOUT).await?, "complete")?;
        // Not earlier: the lease must stay alive until the coordinator has recorded its end.
        drop(heartbeat);
        prefetch.reached(lease, LeaseStage::Completed);
        if trains {
            tracing::info!(path = %lease.path, loss, seconds, "trained");
        }
        counts.completed.fetch_add(u64::from(trains), Ordering::Relaxed);
        Ok(())
    }
}
