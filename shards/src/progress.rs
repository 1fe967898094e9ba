//! How long steps tell how far they are.

/// Receives the progress of a long step, from several threads.
pub trait Progress: Sync {
    /// A step begins; `total_bytes` is how many bytes [`Self::advance`] will have said at its end, 0 when unknown.
    fn begin(&self, step: &str, total_bytes: u64);
    /// Work was done: bytes of the step's input (as stored, compressed), and documents.
    fn advance(&self, bytes: u64, documents: u64);
    /// The step has ended.
    fn end(&self);
}

/// Nobody is watching.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64, _: u64) {}
    fn end(&self) {}
}
