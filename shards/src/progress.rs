//! Progress and cancellation of long steps.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ShardsError;

/// Receives the progress of a long step, from several threads.
pub trait PrepareProgress: Sync {
    /// A step begins. `total_bytes` is the sum of the bytes that [`Self::advance`] will report, 0 if it is unknown.
    fn begin(&self, step: &str, total_bytes: u64);
    /// Work was done: bytes of the step's input (as stored, compressed), and documents.
    fn advance(&self, bytes: u64, documents: u64);
    /// The step has ended.
    fn end(&self);
}

/// Discards all reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl PrepareProgress for NoProgress {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64, _: u64) {}
    fn end(&self) {}
}

/// The caller's view of a long step: it hears of progress and may cancel.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a> {
    pub(crate) progress: &'a dyn PrepareProgress,
    pub(crate) cancel: &'a AtomicBool,
}

impl Watch<'_> {
    /// True if the caller has cancelled the step.
    pub(crate) fn is_cancelled(self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`ShardsError::Cancelled`] if the caller has cancelled the step.
    pub(crate) fn check_cancelled(self) -> Result<(), ShardsError> {
        if self.is_cancelled() { Err(ShardsError::Cancelled) } else { Ok(()) }
    }
}
