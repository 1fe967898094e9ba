//! SIGHUP: a server reads its API keys again. Without a handler the signal would end the program.

use std::io;
use std::sync::{Arc, OnceLock, Weak};

use dipaco_server::ServerState;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use crate::error::CliError;

/// SIGHUP, from now to the end of the program.
#[derive(Debug)]
pub(crate) struct Hangup {
    /// The server, once its run is loaded. It may end before the program.
    served: Arc<OnceLock<Weak<ServerState>>>,
}

impl Hangup {
    /// Takes over SIGHUP. It ends the program no more, also before there is a server.
    pub(crate) fn listen() -> Result<Self, CliError> {
        Self::register().map_err(|source| CliError::Io { action: "watch", path: "signals".into(), source })
    }

    fn register() -> io::Result<Self> {
        let served = Arc::new(OnceLock::new());
        let mut signals = Signals::new([SIGHUP])?;
        let found = Arc::clone(&served);
        std::thread::Builder::new().name("hangups".into()).spawn(move || {
            for _ in signals.forever() {
                tracing::info!("SIGHUP: {}", answer(found.get()));
            }
        })?;
        Ok(Self { served })
    }

    /// Lets this server read its API keys again after each signal that follows. A second server changes nothing.
    pub(crate) fn serve(&self, state: &Arc<ServerState>) {
        self.served.get_or_init(|| Arc::downgrade(state));
    }
}

/// Takes a signal, and says what follows from it.
fn answer(served: Option<&Weak<ServerState>>) -> &'static str {
    match served.and_then(Weak::upgrade) {
        Some(state) if state.read_keys_again() => "reading the API keys again",
        Some(_) => "there is no key file to read again",
        None => "the run is not served now, so there are no API keys to read again",
    }
}
