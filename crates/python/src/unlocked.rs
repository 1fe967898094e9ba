//! Work without the interpreter's lock, which Ctrl-C can stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;

use crate::failure::Failure;

/// Time between two looks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// Runs `work` on a thread of its own, so that other threads of Python go on. When a signal's handler raises an exception,
/// `work` finds its argument set, and the exception is the result.
pub(crate) fn unlocked<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> Result<T, Failure> + Send,
) -> PyResult<T> {
    let stop = AtomicBool::new(false);
    let wait = || {
        std::thread::scope(|scope| {
            let (done, ended) = channel();
            let stop = &stop;
            let thread = scope.spawn(move || {
                let result = work(stop);
                // The receiver waits for this.
                let _ = done.send(());
                result
            });
            let mut raised = None;
            // A panic drops the sender.
            while raised.is_none() && ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                raised = Python::attach(|py| py.check_signals()).err();
            }
            stop.store(raised.is_some(), Ordering::Relaxed);
            let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match raised {
                Some(exception) => Err(exception),
                None => Ok(result?),
            }
        })
    };
    py.detach(wait)
}
