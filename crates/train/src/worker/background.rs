//! Work that goes on while a lease trains.

use std::pin::Pin;

use super::WorkerError;

/// A future that makes progress while a lease trains. Its owner polls it; dropping it cancels the work.
pub(super) type Background<T> = Pin<Box<dyn Future<Output = Result<T, WorkerError>> + Send>>;

/// A future that is complete at once.
pub(super) fn nothing() -> Background<()> {
    Box::pin(async { Ok(()) })
}
