//! Arithmetic and files beside the event loop.

use crate::TrainError;

/// Runs `work` on a thread that may block, and waits for its result.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TrainError> {
    tokio::task::spawn_blocking(work).await.map_err(|source| TrainError::Thread { source })
}
