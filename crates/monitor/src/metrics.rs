//! The metrics of a training for Prometheus. docs/deploy.md lists them.

use dipaco_telemetry::{Exposition, LiveRun, MetricKind, label};

use crate::RunHistory;

/// The metrics as text. Without `live` the coordinator has not taken its run over yet, and its present state is left out.
pub(crate) fn render(live: Option<&LiveRun>, history: &RunHistory) -> String {
    use MetricKind::{Counter, Gauge};
    let labels = live.map_or_else(String::new, |live| label("run", &live.run));
    let mut out = Exposition::new(labels);
    out.value("ready", Gauge, "1 once the coordinator has taken its run over.", u8::from(live.is_some()));
    let connected = history.workers.values().filter(|worker| worker.connected).count();
    out.value("workers_connected", Gauge, "Workers that have joined and not left.", connected);
    out.value("leases_lost_total", Counter, "Leases that expired.", history.leases_lost);
    out.value(
        "results_refused_total",
        Counter,
        "Results of workers that were refused.",
        history.results_refused,
    );
    let losses = history.paths.iter().filter_map(|(path, known)| Some((label("path", path), known.loss?)));
    out.metric(
        "path_loss_nats",
        Gauge,
        "Training loss of the path's last lease that trained, per token.",
        losses,
    );
    let heldout =
        history.paths.iter().filter_map(|(path, known)| Some((label("path", path), known.heldout_loss?)));
    out.metric("path_heldout_loss_nats", Gauge, "Loss on the path's held-out documents, per token.", heldout);
    if let Some(last) = history.validation.last() {
        out.value("validation_loss_nats", Gauge, "Loss of the routed model, per token.", last.loss);
    }
    if let Some(live) = live {
        present(&mut out, live);
    }
    out.finish()
}

fn present(out: &mut Exposition, live: &LiveRun) {
    use MetricKind::{Counter, Gauge};
    out.value("rounds", Gauge, "Rounds of the whole run.", live.rounds);
    out.value("rounds_done", Gauge, "Rounds that every path has completed.", live.rounds_done);
    out.value("phase", Gauge, "Phase of routing.", live.phase);
    out.value("coordinator_seconds", Gauge, "Time since the coordinator began.", live.seconds);
    let bytes = [("sent", live.bytes_sent), ("received", live.bytes_received)];
    let bytes = bytes.map(|(direction, bytes)| (label("direction", direction), bytes));
    out.metric("udp_bytes_total", Counter, "Bytes of datagrams since the coordinator began.", bytes);
    out.value(
        "linked_bytes_total",
        Counter,
        "Bytes that workers have read straight from the store since the coordinator began.",
        live.bytes_linked,
    );
    out.value(
        "bugs_total",
        Counter,
        "Requests that ended in a panic since the coordinator began.",
        live.bugs,
    );
    let steps = live.paths.iter().map(|path| (label("path", path.path), path.steps));
    out.metric("path_steps", Gauge, "Inner steps of the path's complete leases.", steps);
    let quarantined = live.paths.iter().filter(|path| path.quarantined).count();
    out.value("paths_quarantined", Gauge, "Paths that nobody trains any more.", quarantined);
    let leases = || live.paths.iter().filter_map(|path| Some((path, path.lease.as_ref()?)));
    out.value("leases", Gauge, "Leases that are out.", leases().count());
    let silent = leases().map(|(path, lease)| {
        let labels = format!("{},{}", label("path", path.path), label("worker", &lease.worker));
        (labels, lease.silent_seconds)
    });
    out.metric("lease_silent_seconds", Gauge, "Time since the worker's last word about its lease.", silent);
    let versions =
        live.modules.iter().flat_map(|module| {
            let labels =
                format!("{},{}", label("level", module.module.level), label("index", module.module.index));
            module.versions.iter().enumerate().map(move |(fragment, version)| {
                (format!("{labels},{}", label("fragment", fragment)), version)
            })
        });
    out.metric("module_outer_steps", Gauge, "Outer steps of the fragment.", versions);
}
