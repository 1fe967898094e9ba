//! Limits of the process: threads and open files.

use dipaco_config::TrainConfig;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::error::PipelineError;

/// Limits the threads that tensors are computed with. 0 keeps the default, one thread per core.
///
/// # Errors
/// [`PipelineError::ManyThreads`] for more than [`TrainConfig::MOST_THREADS`], [`PipelineError::Threads`] when the threads
/// can't be started, or were started before.
pub fn threads(threads: usize) -> Result<(), PipelineError> {
    if threads == 0 {
        return Ok(());
    }
    if threads > TrainConfig::MOST_THREADS {
        return Err(PipelineError::ManyThreads { threads });
    }
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .map_err(|source| PipelineError::Threads { threads, source })
}

/// Raises the number of files that this process may open to the system's maximum. A coordinator keeps one file open
/// for each result that it receives, and the usual 1,024 are too few for a thousand workers. The fit of a router on scores keeps
/// one file open for each path.
pub fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit on open files stays as it is");
    }
}
