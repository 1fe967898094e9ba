//! The asynchronous runtime of a command.

use std::future::Future;

use tokio::runtime::Runtime;

use crate::error::CliError;
use crate::memory;
use dipaco_pipeline::{PipelineError, pins_ended};

/// Threads of the event loop. Arithmetic runs on threads of its own.
const THREADS: usize = 2;

/// Runs the asynchronous part of a command to its end.
pub(crate) fn run<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    start()?.block_on(with_pins_ended(work))
}

/// [`run`] for commands whose blocking steps only read: at the end it waits for none of them.
pub(crate) fn run_detached<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = start()?;
    let result = runtime.block_on(with_pins_ended(work));
    runtime.shutdown_background();
    result
}

/// Runs the work, and then waits until the store has no pin of the weights that it has dropped: the process may end next.
async fn with_pins_ended<T>(work: impl Future<Output = T>) -> T {
    let result = work.await;
    pins_ended().await;
    result
}

fn start() -> Result<Runtime, CliError> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(THREADS).on_thread_start(memory::share_arena).enable_all().build();
    runtime.map_err(|source| CliError::Io { action: "start", path: "the event loop".into(), source })
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
