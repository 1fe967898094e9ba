//! Threads for work that occupies a core: tokenizing and routing.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Runs blocking work, a bounded number of tasks at a time.
#[derive(Clone, Debug)]
pub(crate) struct Blocking(Arc<Semaphore>);

impl Blocking {
    pub(crate) fn new(at_a_time: usize) -> Self {
        Self(Arc::new(Semaphore::new(at_a_time.max(1))))
    }

    /// Runs `work` on a thread for blocking work. When the caller goes away, `work` still runs to its end and counts
    /// towards the bound until then.
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
            tracing::error!(%error, "a request panicked outside of the engine");
            ApiError::bug("the request panicked outside of the model: this is a bug of the server")
        })?
    }
}
