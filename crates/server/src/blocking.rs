//! Work that takes a core for a while: tokenizing and routing.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Bounds how much of such work runs at a time.
#[derive(Clone, Debug)]
pub(crate) struct Blocking(Arc<Semaphore>);

impl Blocking {
    pub(crate) fn new(at_a_time: usize) -> Self {
        Self(Arc::new(Semaphore::new(at_a_time.max(1))))
    }

    /// Runs `work` away from the threads that answer. It ends even when the caller goes away, and counts until then.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = Arc::clone(&self.0).acquire_owned().await.map_err(|_| ApiError::shutting_down())?;
        let task = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(permit);
            result
        });
        task.await.map_err(|error| {
            tracing::error!(%error, "a request hit a bug");
            ApiError::bug("the request hit a bug outside of the model")
        })?
    }
}
