//! What the port of a coordinator shows: the present state, and the history in the event file.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dipaco_telemetry::{LiveRun, LiveSource};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::{EventTail, RunHistory, Watched, WorkerHistory, metrics, page};

/// A coordinator seen from outside.
pub struct Monitor {
    live: OnceLock<LiveSource>,
    /// The time at which the coordinator began, in UTC (RFC 3339).
    began: String,
    history: Mutex<(EventTail, RunHistory)>,
}

impl Monitor {
    /// The monitor of a run with this event file. It is not ready yet.
    #[must_use]
    pub fn new(events: &Path) -> Arc<Self> {
        let history = Mutex::new((EventTail::new(events), RunHistory::default()));
        // Year 10000 has no such form.
        let began = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        Arc::new(Self { live: OnceLock::new(), began, history })
    }

    /// Makes the monitor ready: the coordinator has taken its run over. Only the first call counts.
    pub fn watch(&self, live: LiveSource) {
        let _ = self.live.set(live);
    }

    fn live(&self) -> Option<LiveRun> {
        self.live.get().and_then(|live| live())
    }

    /// The history up to now. Blocks on the event file.
    fn history(&self) -> RunHistory {
        let mut guard = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let (tail, sum) = &mut *guard;
        if let Err(error) = sum.follow(tail) {
            tracing::warn!(%error, "the event file can't be read; the page shows an older state");
        }
        let mut history = sum.clone();
        drop(guard);
        // No event says so before the run is taken over. Times of this form sort as text.
        let earlier = history.workers.values_mut().filter(|worker| worker.last < self.began);
        earlier.for_each(WorkerHistory::leave_earlier_coordinator);
        history
    }
}

impl Watched for Monitor {
    fn not_ready(&self) -> Option<&'static str> {
        self.live().is_none().then_some("the coordinator has not taken its run over")
    }

    fn metrics(&self) -> String {
        metrics::render(self.live().as_ref(), &self.history())
    }

    fn status(&self) -> String {
        serde_json::json!({ "live": self.live(), "history": self.history() }).to_string()
    }

    fn page(&self) -> Option<String> {
        Some(page::render(self.live().as_ref(), &self.history()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_of_an_earlier_coordinator_is_here_when_it_joins_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let joined =
            |time: &str| format!(r#"{{"time":"{time}","event":"worker_joined","worker":"a","numerics":""}}"#);
        let before = joined("2026-01-01T00:00:00.000Z");
        std::fs::write(file.path(), format!("{before}\n")).unwrap();
        let monitor = Monitor::new(file.path());
        assert_eq!(monitor.history().workers["a"].state(), "left: the coordinator has started again");
        std::fs::write(file.path(), format!("{before}\n{}\n", joined("2999-01-01T00:00:00.000Z"))).unwrap();
        assert_eq!(monitor.history().workers["a"].state(), "connected");
    }
}
