//! The HTTP port of a coordinator: probes, metrics, and a page that needs nothing from elsewhere.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use dipaco_tests::http::{exchange, get, request};
use dipaco_tests::process::{Process, Signal};
use dipaco_tests::training::untrained;

/// The address of the page in the coordinator's log.
fn address(coordinator: &mut Process) -> String {
    let line = coordinator.line_with("can be watched at http://");
    line.split("http://").nth(1).unwrap().trim_end_matches('/').to_owned()
}

/// The names of metrics that have values, after a check of their form: HELP, TYPE, then values of this name only.
fn metrics(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            current = help.split(' ').next().unwrap().to_owned();
            assert!(help.ends_with('.'), "{line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, current);
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        } else {
            let (name, rest) = line.split_once('{').unwrap();
            assert_eq!(name, current, "{line}");
            rest.rsplit_once("} ").unwrap().1.parse::<f64>().unwrap();
            names.insert(name.to_owned());
        }
    }
    names
}

#[test]
fn a_training_can_be_watched_by_probes_prometheus_and_people_also_after_a_restart() {
    let run = untrained();
    let mut first = run.coordinator("--listen 127.0.0.1:0 --http 0");
    let http = address(&mut first);
    assert_eq!(get(&http, "/health").status, 200);
    let workers = ["<i>a", "b"].map(|name| run.worker(name));
    for _ in 0..6 {
        first.line_with(" committed ");
    }
    assert_eq!(get(&http, "/ready").status, 200);
    let names = metrics(&get(&http, "/metrics").body);
    for name in
        ["ready", "rounds_done", "path_loss_nats", "path_steps", "udp_bytes_total", "workers_connected"]
    {
        assert!(names.contains(&format!("dipaco_{name}")), "{name} is missing: {names:?}");
    }
    let status = get(&http, "/status.json").json();
    let live = &status["live"];
    assert_eq!(live["paths"].as_array().unwrap().len(), 4, "{status}");
    assert_eq!(live["modules"].as_array().unwrap().len(), 4, "{status}");
    assert!(live["bytes_received"].as_u64() > Some(10_000), "{status}");
    assert_eq!(status["history"]["workers"]["b"]["connected"], true, "{status}");
    let losses = status["history"]["training"].as_array().unwrap().clone();
    assert!(!losses.is_empty(), "{status}");

    let page = get(&http, "/");
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
    assert!(page.body.contains("<svg") && page.body.contains("round <b>"), "{}", page.body);
    assert!(page.body.contains("&lt;i&gt;a") && !page.body.contains("<i>a"), "{}", page.body);
    for elsewhere in ["<script", "src=", "http://", "https://", "@import", "url("] {
        assert!(!page.body.contains(elsewhere), "the page has {elsewhere}");
    }
    // The port changes nothing.
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(exchange(&http, &request(method, "/", b"")).status, 405, "{method}");
    }

    first.signal(Signal::KILL);
    let _ = first.finish().killed();
    let mut second = run.coordinator("--listen 127.0.0.1:0 --http 0 --resume");
    let http = address(&mut second);
    let again = get(&http, "/status.json").json();
    assert!(again["history"]["training"].as_array().unwrap().starts_with(&losses), "{again}");
    let _ = second.finish().succeeded();
    for worker in workers {
        worker.signal(Signal::INT);
        let _ = worker.finish();
    }
    let watched = run.dipaco("status --watch").succeeded();
    let _ = watched.says("paths: 3 of 3 rounds").says("<i>a");
}
