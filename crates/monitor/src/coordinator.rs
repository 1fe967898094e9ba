//! What the port of a coordinator shows: the present state, and the history in the event file.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dipaco_telemetry::{LiveRun, LiveSource};

use crate::{EventTail, RunHistory, Watched, metrics, page};

/// A coordinator seen from outside.
pub struct Monitor {
    live: OnceLock<LiveSource>,
    history: Mutex<(EventTail, RunHistory)>,
}

impl Monitor {
    /// The monitor of a run with this event file. It is not ready yet.
    #[must_use]
    pub fn new(events: &Path) -> Arc<Self> {
        let history = Mutex::new((EventTail::new(events), RunHistory::default()));
        Arc::new(Self { live: OnceLock::new(), history })
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
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let (tail, sum) = &mut *history;
        let read = tail.read(|record| match record {
            Some(record) => sum.add(record),
            None => *sum = RunHistory::default(),
        });
        if let Err(error) = read {
            tracing::warn!(%error, "the event file can't be read; the page shows an older state");
        }
        sum.clone()
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
