//! The requests that wait for a write of the manifest.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dipaco_ledger::UntilWritten;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::coordinator::error::CoordinatorError;

/// Wakes each request when its change of the ledger is on the disk. Shared by the requests and the manifest writer.
#[derive(Debug, Default)]
pub(crate) struct WrittenChanges {
    waiting: Mutex<UntilWritten<oneshot::Sender<()>>>,
    /// Cancelled when the writer has ended: nothing is written from then on.
    ended: CancellationToken,
    /// The failure of a change, until the writer ends with it.
    failure: Mutex<Option<CoordinatorError>>,
}

impl WrittenChanges {
    fn waiting(&self) -> MutexGuard<'_, UntilWritten<oneshot::Sender<()>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> MutexGuard<'_, Option<CoordinatorError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that all changes up to `change` are on the disk.
    pub(crate) fn note(&self, change: u64) {
        for request in self.waiting().written(change) {
            // Fails only if the request is gone.
            let _ = request.send(());
        }
    }

    /// Waits until all changes up to `change` are on the disk.
    ///
    /// # Errors
    /// When the manifest writer ends before.
    pub(crate) async fn wait_for(&self, change: u64) -> Result<(), CoordinatorError> {
        let (request, woken) = oneshot::channel();
        if self.waiting().keep(change, request).is_some() {
            return Ok(());
        }
        tokio::select! {
            biased;
            woken = woken => woken.map_err(|_| CoordinatorError::Stopped),
            () = self.ended.cancelled() => Err(CoordinatorError::Stopped),
        }
    }

    /// Notes that a change has failed, unless the coordinator stops anyway. Call it with the ledger locked: the writer
    /// ends with the failure before it looks at the ledger again. Returns the error of the request.
    pub(crate) fn fail(&self, failure: CoordinatorError) -> CoordinatorError {
        if !matches!(failure, CoordinatorError::Stopped) {
            self.failure().get_or_insert(failure);
        }
        CoordinatorError::Stopped
    }

    /// The failure with which the manifest writer must end.
    pub(crate) fn take_failure(&self) -> Option<CoordinatorError> {
        self.failure().take()
    }

    /// Notes that the manifest writer has ended.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }

    /// Waits until the manifest writer has ended.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn a_request_is_woken_by_its_write_or_by_the_end_of_the_writer() {
        let changes = WrittenChanges::default();
        let mut woken = Context::from_waker(Waker::noop());
        let (mut first, mut second) = (pin!(changes.wait_for(1)), pin!(changes.wait_for(2)));
        assert!(
            first.as_mut().poll(&mut woken).is_pending() && second.as_mut().poll(&mut woken).is_pending()
        );
        changes.note(1);
        assert!(second.as_mut().poll(&mut woken).is_pending());
        changes.end();
        assert!(matches!(first.as_mut().poll(&mut woken), Poll::Ready(Ok(()))), "its change is on the disk");
        assert!(matches!(second.as_mut().poll(&mut woken), Poll::Ready(Err(CoordinatorError::Stopped))));
        assert!(matches!(pin!(changes.wait_for(1)).poll(&mut woken), Poll::Ready(Ok(()))));
        assert!(matches!(pin!(changes.wait_for(3)).poll(&mut woken), Poll::Ready(Err(_))));
    }
}
