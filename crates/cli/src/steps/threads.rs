//! How many threads a process computes with.

use crate::steps::error::StepError;

/// Limits the threads that tensors are computed with; 0 leaves it at the number of cores.
pub(crate) fn limit(threads: usize) -> Result<(), StepError> {
    if threads == 0 {
        return Ok(());
    }
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .map_err(|source| StepError::Threads { threads, source })
}
