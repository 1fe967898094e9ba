//! What goes on beside the training of a lease.

use std::pin::Pin;

use super::prefetch::PrefetchedLease;
use crate::TrainError;

/// What goes on beside the training.
pub(super) type Background<T> = Pin<Box<dyn Future<Output = Result<T, TrainError>> + Send>>;

/// The lease that comes after one that is trained.
pub(super) enum NextLease {
    Asked(Background<Option<PrefetchedLease>>),
    Known(Option<Box<PrefetchedLease>>),
}

impl NextLease {
    /// Waits until it is known; never ends when it is.
    pub(super) async fn look(&mut self) -> Result<(), TrainError> {
        match self {
            Self::Asked(asking) => {
                let known = asking.await?;
                *self = Self::Known(known.map(Box::new));
                Ok(())
            }
            Self::Known(_) => std::future::pending().await,
        }
    }

    /// The lease, when there is one.
    pub(super) async fn next(&mut self) -> Result<Option<PrefetchedLease>, TrainError> {
        if let Self::Asked(_) = self {
            self.look().await?;
        }
        match self {
            Self::Known(known) => Ok(known.take().map(|next| *next)),
            Self::Asked(_) => Ok(None),
        }
    }
}

/// Nothing to wait for.
pub(super) fn nothing() -> Background<()> {
    Box::pin(async { Ok(()) })
}

/// Waits for something that may be there.
pub(super) async fn wait(beside: &mut Option<Background<()>>) -> Result<(), TrainError> {
    match beside {
        Some(beside) => beside.await,
        None => Ok(()),
    }
}
