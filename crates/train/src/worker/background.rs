//! Work that goes on while a lease trains.

use std::pin::Pin;

use super::WorkerError;

/// A future that makes progress while a lease trains. Its owner polls it; dropping it cancels the work.
pub(super) type Background<T> = Pin<Box<dyn Future<Output = Result<T, WorkerError>> + Send>>;

/// A future that is complete at once.
pub(super) fn nothing() -> Background<()> {
    Box::pin(async { Ok(()) })
}

/// Drives work to its end, and returns its failure. Once the work is complete this never returns, so that a `select!` arm
/// stays quiet.
pub(super) async fn failure(background: &mut Background<()>) -> WorkerError {
    let ended = background.as_mut().await;
    // A completed future must not be polled again.
    *background = nothing();
    match ended {
        Ok(()) => std::future::pending().await,
        Err(error) => error,
    }
}

/// Does `work`, and drives `background` meanwhile. If `background` fails first, `work` is dropped.
pub(super) async fn beside<T>(
    background: &mut Background<()>,
    work: impl Future<Output = Result<T, WorkerError>>,
) -> Result<T, WorkerError> {
    tokio::select! {
        done = work => done,
        error = failure(background) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn other_work_may_wait_for_work_in_the_background() {
        let (sender, receiver) = oneshot::channel();
        let mut background: Background<()> = Box::pin(async {
            sender.send(7).unwrap();
            Ok(())
        });
        let waiting = async { Ok(receiver.await.unwrap()) };
        assert_eq!(beside(&mut background, waiting).await.unwrap(), 7);
        // Work that is complete ends nothing, however often it is driven.
        let (sender, receiver) = oneshot::channel();
        let waiting = async { Ok(receiver.await.unwrap()) };
        let answering = async {
            tokio::task::yield_now().await;
            sender.send(8).unwrap();
        };
        let (answer, ()) = tokio::join!(beside(&mut background, waiting), answering);
        assert_eq!(answer.unwrap(), 8);
        background.await.unwrap();
    }

    #[tokio::test]
    async fn a_failure_in_the_background_ends_other_work() {
        let mut background: Background<()> = Box::pin(async { Err(WorkerError::training_cancelled()) });
        let never = std::future::pending::<Result<(), WorkerError>>();
        let ended = beside(&mut background, never).await;
        assert!(matches!(ended, Err(WorkerError::LeaseLost { .. })), "{ended:?}");
    }
}
