//! Threads for work that occupies a core: tokenizing, and rendering chats.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Runs blocking work, a bounded number of tasks at a time. A bounded number of further tasks waits.
#[derive(Clone, Debug)]
pub(crate) struct Blocking {
    running: Arc<Semaphore>,
    /// Places of tasks that run or wait.
    places: Arc<Semaphore>,
}

impl Blocking {
    pub(crate) fn new(at_a_time: usize, waiting: usize) -> Self {
        let at_a_time = at_a_time.max(1);
        let places = at_a_time.saturating_add(waiting).min(Semaphore::MAX_PERMITS);
        Self { running: Arc::new(Semaphore::new(at_a_time)), places: Arc::new(Semaphore::new(places)) }
    }

    /// Runs `work` on a thread for blocking work. When the caller goes away, `work` still runs to its end and counts
    /// towards the bound until then.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| ApiError {
            code: Some("queue_full"),
            retry_after: Some(1),
            ..ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too many requests wait to be tokenized: try again, or raise serve.queued_requests",
            )
        })?;
        let permit = self.running.clone().acquire_owned().await.map_err(|_| ApiError::shutting_down())?;
        let task = tokio::task::spawn_blocking(move || {
            let result = work();
            drop((permit, place));
            result
        });
        task.await.map_err(|error| {
            tracing::error!(%error, "a request panicked outside of the engine");
            ApiError::bug("the request panicked outside of the model: this is a bug of the server")
        })?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_beyond_the_queue_is_refused_with_429() {
        let blocking = Blocking::new(1, 1);
        let (release, held) = std::sync::mpsc::channel::<()>();
        let first = blocking.run(move || held.recv().map_err(|_| ApiError::shutting_down()));
        let second = blocking.run(|| Ok(2));
        let third = async {
            // Polled after the other two: one runs, one waits.
            let refused = blocking.run(|| Ok(3)).await.unwrap_err();
            release.send(()).unwrap();
            refused
        };
        let (first, second, refused) = tokio::join!(first, second, third);
        assert_eq!((first.is_ok(), second), (true, Ok(2)));
        assert_eq!(
            (refused.status.as_u16(), refused.code, refused.retry_after),
            (429, Some("queue_full"), Some(1))
        );
    }
}
