//! Arithmetic and file access on threads that may block.

use tokio::task::JoinError;

use crate::TrainError;

/// Runs `work` on a thread that may block, and waits for its result.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TrainError> {
    joined(tokio::task::spawn_blocking(work).await)
}

/// The result of a task that works for the current task. A panic goes on in the current task, so it is met where the
/// request is known that caused it.
pub(crate) fn joined<T>(result: Result<T, JoinError>) -> Result<T, TrainError> {
    match result.map_err(JoinError::try_into_panic) {
        Ok(done) => Ok(done),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(cancelled)) => Err(cancelled.into()),
    }
}
