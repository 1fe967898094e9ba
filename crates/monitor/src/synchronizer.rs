//! What the port of a synchronizer shows: its present state. The history of the run is the coordinator's.

use std::sync::{Arc, OnceLock};

use dipaco_telemetry::{Exposition, LiveSynchronizer, LiveSynchronizerSource, MetricKind, label};

use crate::Watched;

/// A synchronizer seen from outside.
#[derive(Default)]
pub struct SynchronizerMonitor {
    live: OnceLock<LiveSynchronizerSource>,
}

impl SynchronizerMonitor {
    /// A monitor that is not ready yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Makes the monitor ready: the coordinator has given the synchronizer its modules. Only the first call counts.
    pub fn watch(&self, live: LiveSynchronizerSource) {
        let _ = self.live.set(live);
    }

    fn live(&self) -> Option<LiveSynchronizer> {
        self.live.get().and_then(|live| live())
    }
}

impl Watched for SynchronizerMonitor {
    fn not_ready(&self) -> Option<&'static str> {
        self.live().is_none().then_some("the coordinator has not given the synchronizer its modules")
    }

    fn metrics(&self) -> String {
        render(self.live().as_ref())
    }

    fn status(&self) -> String {
        serde_json::json!({ "live": self.live() }).to_string()
    }

    fn page(&self) -> Option<String> {
        None
    }
}

fn render(live: Option<&LiveSynchronizer>) -> String {
    use MetricKind::{Counter, Gauge};
    let mut out = Exposition::new(live.map_or_else(String::new, |live| label("run", &live.run)));
    let ready = u8::from(live.is_some());
    out.value("synchronizer_ready", Gauge, "1 once the coordinator has given the modules.", ready);
    if let Some(live) = live {
        out.value("synchronizer_modules", Gauge, "Modules whose outer steps it takes.", live.modules.len());
        let silence = live.coordinator_silent_seconds;
        out.value(
            "synchronizer_coordinator_silent_seconds",
            Gauge,
            "Time since the coordinator's last answer.",
            silence,
        );
        let steps = live.outer_steps;
        out.value(
            "synchronizer_outer_steps_total",
            Counter,
            "Outer steps that count, since it began.",
            steps,
        );
        let lost = live.outer_steps_lost;
        out.value(
            "synchronizer_outer_steps_lost_total",
            Counter,
            "Outer steps that another process took.",
            lost,
        );
        let bytes = [("sent", live.bytes_sent), ("received", live.bytes_received)];
        let bytes = bytes.map(|(direction, bytes)| (label("direction", direction), bytes));
        out.metric("synchronizer_udp_bytes_total", Counter, "Bytes of datagrams from and to workers.", bytes);
        out.value("synchronizer_seconds", Gauge, "Time since it joined.", live.seconds);
    }
    out.finish()
}
