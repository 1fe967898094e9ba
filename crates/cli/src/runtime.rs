//! The asynchronous runtime of a command.

use std::future::Future;

use crate::error::CliError;
use dipaco_pipeline::PipelineError;

/// Threads of the event loop. Arithmetic runs on threads of its own.
const THREADS: usize = 2;

/// Runs the asynchronous part of a command to its end.
pub(crate) fn run<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let runtime =
        runtime.map_err(|source| CliError::Io { action: "start", path: "the event loop".into(), source })?;
    runtime.block_on(work)
}

/// The file of this program, which worker processes run.
pub(crate) fn program() -> Result<std::path::PathBuf, CliError> {
    std::env::current_exe().map_err(|source| CliError::Io {
        action: "find",
        path: "the file of this program".into(),
        source,
    })
}

/// Runs a step that blocks on a thread outside the event loop.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CliError> + Send + 'static,
) -> Result<T, CliError> {
    tokio::task::spawn_blocking(work).await.map_err(|source| PipelineError::Task { source })?
}
