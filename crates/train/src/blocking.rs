//! Arithmetic and file access on threads that may block.

use crate::TrainError;

/// Runs `work` on a thread that may block, and waits for its result.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TrainError> {
    Ok(tokio::task::spawn_blocking(work).await?)
}
