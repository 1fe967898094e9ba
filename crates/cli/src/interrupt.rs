//! Ctrl-C and SIGTERM: the first signal asks to stop, a later one ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use tokio_util::sync::CancellationToken;

use crate::error::{CliError, INTERRUPTED};

/// Time after the first signal in which others belong to it. `timeout` of GNU signals its child and then its own process group,
/// so the child gets two at once.
const SAME_REQUEST: Duration = Duration::from_millis(500);

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
            // The handler itself sets the flag: a child that the same Ctrl-C ends must not look like a failure of its own.
            flag::register(signal, Arc::clone(&flag))?;
        }
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let cancel = token.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut requests = Requests::default();
            for _ in signals.forever() {
                match requests.signal(Instant::now()) {
                    SignalMeaning::Stop => {
                        tracing::warn!("stopping; a second signal ends the program at once");
                        cancel.cancel();
                    }
                    SignalMeaning::Same => {}
                    // Without the work of an orderly exit, which may be what the user does not want to wait for.
                    SignalMeaning::End => low_level::exit(i32::from(INTERRUPTED)),
                }
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

/// The meaning of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalMeaning {
    /// The first signal: stop in order.
    Stop,
    /// A further signal of the same request.
    Same,
    /// A second request: end at once.
    End,
}

/// The requests to stop that a process has got.
#[derive(Debug, Default)]
struct Requests {
    /// Time of the first signal.
    first: Option<Instant>,
}

impl Requests {
    /// Takes a signal that came at `now`.
    fn signal(&mut self, now: Instant) -> SignalMeaning {
        match self.first {
            None => {
                self.first = Some(now);
                SignalMeaning::Stop
            }
            Some(first) if now.saturating_duration_since(first) < SAME_REQUEST => SignalMeaning::Same,
            Some(_) => SignalMeaning::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_at_once_are_one_request_and_a_later_one_ends_the_program() {
        let (mut requests, first) = (Requests::default(), Instant::now());
        let milliseconds = [0, 0, 1, 499, 500, 501];
        let found = milliseconds.map(|later| requests.signal(first + Duration::from_millis(later)));
        use SignalMeaning::{End, Same, Stop};
        assert_eq!(found, [Stop, Same, Same, Same, End, End]);
    }

    #[test]
    fn the_first_signal_asks_to_stop() {
        let interrupt = Interrupt::listen().unwrap();
        assert!(!interrupt.is_set());
        low_level::raise(SIGTERM).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(interrupt.token().cancelled());
        assert!(interrupt.is_set() && interrupt.flag().load(Ordering::Relaxed));
    }
}
