//! Ctrl-C and SIGTERM: the first signal asks to stop, the second ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tokio_util::sync::CancellationToken;

use crate::error::{CliError, INTERRUPTED};

/// The user's request to stop; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    flag: Arc<AtomicBool>,
    token: CancellationToken,
}

impl Interrupt {
    /// Takes over SIGINT and SIGTERM.
    pub(crate) fn listen() -> Result<Self, CliError> {
        Self::register().map_err(|source| CliError::Io { action: "watch", path: "signals".into(), source })
    }

    fn register() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let token = CancellationToken::new();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal must find the flag unset, and then sets it.
            flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), Arc::clone(&flag))?;
            flag::register(signal, Arc::clone(&flag))?;
        }
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let cancel = token.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            if signals.forever().next().is_some() {
                tracing::warn!("stopping; a second signal ends the program at once");
                cancel.cancel();
            }
        })?;
        Ok(Self { flag, token })
    }

    /// The result of a step, where any error after a request to stop is [`CliError::Interrupted`].
    pub(crate) fn judge<T, E: Into<CliError>>(&self, result: Result<T, E>) -> Result<T, CliError> {
        result.map_err(|error| if self.is_set() { CliError::Interrupted } else { error.into() })
    }

    /// Returns whether the user asked to stop, for loops.
    pub(crate) fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// The request as a flag, for blocking code.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// The request as a token, for asynchronous code.
    pub(crate) fn token(&self) -> CancellationToken {
        self.token.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_asks_to_stop() {
        let interrupt = Interrupt::listen().unwrap();
        assert!(!interrupt.is_set());
        signal_hook::low_level::raise(SIGTERM).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(interrupt.token().cancelled());
        assert!(interrupt.is_set() && interrupt.flag().load(Ordering::Relaxed));
    }
}
