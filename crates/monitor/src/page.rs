//! The page: one document without scripts, pictures or styles from elsewhere.

mod curve;
mod grid;

use std::fmt::{Display, Write};

use dipaco_telemetry::{LivePath, LiveRun, human};

use crate::{RunHistory, WorkerHistory};

/// Seconds between two loads of the page.
const REFRESH: u32 = 5;
/// Most rows of a table. Longer tables say how many rows they leave out; `/status.json` has all.
const MOST_ROWS: usize = 512;

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --good: #2a8a4a; --bad: #c0392b; --busy: #2471a3; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; margin: 0 0 .2rem; } h2 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .15rem .6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } th.text, td.text { text-align: left; }
.facts { display: flex; flex-wrap: wrap; gap: .3rem 2rem; margin: .6rem 0; } .facts b { font-weight: 600; }
.bar { display: inline-block; width: 7rem; height: .6rem; background: var(--line); vertical-align: middle; }
.bar i { display: block; height: 100%; background: var(--busy); }
.wide { width: 100%; } .gone, .quarantined { color: var(--bad); } .quiet { opacity: .65; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
";

/// The page about a run. Without `live` the coordinator has not taken its run over yet.
pub(crate) fn render(live: Option<&LiveRun>, history: &RunHistory) -> String {
    let name = live.map_or("a run", |live| live.run.as_str());
    let mut out = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content={REFRESH}>\
         <meta name=viewport content=\"width=device-width\"><title>{0} – dipaco</title><style>{STYLE}</style>\
         <h1>{0}</h1>",
        text(name)
    );
    match live {
        Some(live) => facts(&mut out, live, history),
        None => out.push_str("<p>The coordinator has not taken the run over yet.</p>"),
    }
    if let Some(chart) = curve::render(&history.training, &history.validation) {
        let _ = write!(out, "<h2>Loss in nats per token</h2>{chart}");
    }
    if let Some(live) = live {
        let _ = write!(out, "<h2>Modules</h2>{}", grid::render(live));
        paths(&mut out, live, history);
    }
    workers(&mut out, live, history);
    if !history.notes.is_empty() {
        out.push_str("<h2>Notes</h2><ul>");
        for note in history.notes.iter().rev() {
            let _ = write!(out, "<li>{}</li>", text(note));
        }
        out.push_str("</ul>");
    }
    let _ = write!(
        out,
        "<p class=quiet>Last event: {}. The same as data: <a href=/status.json>/status.json</a>, \
         <a href=/metrics>/metrics</a>.</p></html>",
        if history.last.is_empty() { "none".to_owned() } else { text(&history.last) }
    );
    out
}

fn facts(out: &mut String, live: &LiveRun, history: &RunHistory) {
    let steps: u64 = live.paths.iter().map(|path| path.steps + running(path)).sum();
    let all = live.inner_steps * u64::from(live.rounds) * live.paths.len() as u64;
    let connected = history.workers.values().filter(|worker| worker.connected).count();
    let linked = match live.bytes_linked {
        0 => String::new(),
        bytes => format!("<span>straight from the store <b>{}</b></span>", human::bytes(bytes)),
    };
    let bugs = match live.bugs {
        0 => String::new(),
        bugs => format!("<span>bugs of dipaco <b>{bugs}</b></span>"),
    };
    let _ = write!(
        out,
        "{}<div class=facts><span>round <b>{}</b> of {}</span><span>inner steps <b>{}</b> of {}</span>\
         <span>workers <b>{connected}</b></span><span>leases lost <b>{}</b></span><span>results refused <b>{}</b></span>\
         <span>sent <b>{}</b></span><span>received <b>{}</b></span>{linked}{bugs}<span>phase <b>{}</b></span>\
         <span>coordinator up <b>{}</b></span></div>",
        bar("bar wide", steps, all),
        live.rounds_done,
        live.rounds,
        human::integer(steps),
        human::integer(all),
        history.leases_lost,
        history.results_refused,
        human::bytes(live.bytes_sent),
        human::bytes(live.bytes_received),
        live.phase,
        human::duration(std::time::Duration::from_secs_f64(live.seconds.max(0.0))),
    );
}

/// Inner steps of the path's current lease.
fn running(path: &LivePath) -> u64 {
    path.lease.as_ref().map_or(0, |lease| lease.taken)
}

fn paths(out: &mut String, live: &LiveRun, history: &RunHistory) {
    out.push_str(
        "<h2>Paths</h2><table><tr><th>path<th class=text>modules<th>documents<th>tokens<th>rounds<th>loss\
         <th>held-out loss<th class=text>worker<th class=text>lease<th>last word</tr>",
    );
    for path in live.paths.iter().take(MOST_ROWS) {
        let known = history.paths.get(&path.path).cloned().unwrap_or_default();
        let modules = path.modules.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let (worker, lease, silent) = match &path.lease {
            Some(lease) => {
                (lease.worker.as_str(), bar("bar", lease.taken, lease.asked), seconds(lease.silent_seconds))
            }
            None if path.quarantined => ("", "in quarantine".to_owned(), String::new()),
            None => (known.worker.as_str(), String::new(), String::new()),
        };
        let _ = write!(
            out,
            "<tr{}><td>{}<td class=text>{modules}<td>{}<td>{}<td>{:.2}<td>{}<td>{}<td class=text>{}<td class=text>{lease}\
             <td>{silent}</tr>",
            if path.quarantined { " class=quarantined" } else { "" },
            path.path,
            human::integer(path.documents),
            human::integer(path.tokens),
            path.steps as f64 / live.inner_steps.max(1) as f64,
            loss(known.loss),
            loss(known.heldout_loss),
            text(worker),
        );
    }
    out.push_str("</table>");
    left_out(out, live.paths.len());
}

fn workers(out: &mut String, live: Option<&LiveRun>, history: &RunHistory) {
    if history.workers.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Workers</h2><table><tr><th class=text>worker<th class=text>state<th>paths<th>leases<th>steps/s\
         <th>waited<th>lost<th>refused<th>last event</tr>",
    );
    // Connected ones first, by name.
    let mut rows: Vec<(&String, &WorkerHistory)> = history.workers.iter().collect();
    rows.sort_by_key(|(name, worker)| (!worker.connected, *name));
    for (name, worker) in rows.iter().take(MOST_ROWS) {
        let held = live.iter().flat_map(|live| &live.paths);
        let held = held.filter(|path| path.lease.as_ref().is_some_and(|lease| lease.worker == **name));
        let held = held.map(|path| path.path.to_string()).collect::<Vec<_>>().join(" ");
        let rate = worker.steps.filter(|_| worker.seconds > 0.0).map(|steps| steps as f64 / worker.seconds);
        // A lease that it holds is newer than the one that has expired.
        let state = match held.is_empty() {
            true => worker.state(),
            false => WorkerHistory { silent: false, ..(*worker).clone() }.state(),
        };
        let _ = write!(
            out,
            "<tr{}><td class=text>{}<td class=text>{}<td>{held}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            if worker.connected { "" } else { " class=quiet" },
            text(name),
            text(&state),
            worker.leases,
            rate.map_or_else(String::new, |rate| format!("{rate:.2}")),
            seconds(worker.waited_seconds),
            worker.lost,
            worker.refused,
            text(&worker.last),
        );
    }
    out.push_str("</table>");
    left_out(out, rows.len());
}

fn left_out(out: &mut String, rows: usize) {
    if let Some(more) = rows.checked_sub(MOST_ROWS).filter(|more| *more > 0) {
        let _ =
            write!(out, "<p class=quiet>{more} more rows are in <a href=/status.json>/status.json</a>.</p>");
    }
}

fn bar(class: &str, done: u64, all: u64) -> String {
    let share = 100.0 * done.min(all) as f64 / all.max(1) as f64;
    format!("<span class=\"{class}\"><i style=\"width:{share:.1}%\"></i></span>")
}

fn loss(loss: Option<f64>) -> String {
    loss.map_or_else(|| "–".to_owned(), |loss| format!("{loss:.3}"))
}

fn seconds(seconds: f64) -> String {
    format!("{:.1} s", seconds.max(0.0))
}

/// Text of a peer or a user, harmless in a document and in an attribute.
pub(super) fn text(text: impl Display) -> String {
    let text = text.to_string();
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use dipaco_telemetry::{Event, EventRecord};
    use dipaco_topology::PathId;

    use super::*;

    #[test]
    fn the_speed_of_a_worker_is_that_of_its_last_lease_that_trained() {
        let lease = |steps, loss, seconds| Event::PathCompleted {
            path: PathId(0),
            round: 0,
            worker: "a".to_owned(),
            steps: Some(steps),
            loss,
            heldout_loss: None,
            best: false,
            seconds,
            waited_seconds: 0.0,
        };
        let mut history = RunHistory::default();
        // The first of several leases of a round, and one that only measures.
        for event in [lease(15, 4.0, 6.0), lease(0, f64::NAN, 6e-8)] {
            history.add(EventRecord { time: "2026-01-01T00:00:00.000Z".to_owned(), event });
        }
        let page = render(None, &history);
        assert!(page.contains("<td>2<td>2.50<td>"), "{page}");
    }
}
