//! The patience of the long processes of a run with its store.

use std::time::{Duration, Instant};

use dipaco_net::RareWarning;
use dipaco_store::Patience;

/// Time between the end of an attempt and the next one.
const PAUSE: Duration = Duration::from_secs(1);
/// Time after which no further attempt begins: about as long as a remote store repeats a request by itself. A failure that
/// lasts is for the operator.
const LIMIT: Duration = Duration::from_secs(300);

/// The patience of a process that trains, coordinates or takes outer steps: one error of a disk, or a short outage of the
/// store, is no reason to end the run of everybody. It ends when `stopped` tells that the user has asked the process to stop.
pub fn store_patience(stopped: impl Fn() -> bool + Send + Sync + 'static) -> Patience {
    let warnings = RareWarning::default();
    Patience::new(PAUSE, LIMIT, move |error| {
        let goes_on = !stopped();
        if goes_on && let Some(suppressed) = warnings.due(Instant::now()) {
            let cause = error.source().map(ToString::to_string);
            tracing::warn!(%error, cause, suppressed, "an operation fails, and is repeated for up to five minutes");
        }
        goes_on
    })
}
