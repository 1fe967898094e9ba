//! The HTTP ports of coordinator and synchronizer: probes, metrics, and a page that needs nothing from elsewhere.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use dipaco_tests::fixtures::root;
use dipaco_tests::grafana::{exported, metrics_of_row};
use dipaco_tests::http::{exchange, get, request};
use dipaco_tests::process::{Process, Signal};
use dipaco_tests::python::python;
use dipaco_tests::run::{Run, snapshot};
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

/// The value of a metric without labels of its own.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// The metrics that the page lists, in the table of the coordinator or that of the synchronizer.
fn listed(of_synchronizer: bool) -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("docs/deploy.md")).unwrap();
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `dipaco_")?.split('|').next());
    let names = cells.flat_map(|cell| cell.split('`')).filter(|name| !name.contains([' ', ',']));
    let names = names.filter(|name| !name.is_empty()).map(|name| name.trim_start_matches("dipaco_"));
    let names = names.filter(|name| name.starts_with("synchronizer_") == of_synchronizer);
    names.map(|name| format!("dipaco_{name}")).collect()
}

/// Asserts that the page lists exactly these metrics, and that the dashboard asks for no others. The loss on validation
/// text comes later than the first leases, if at all.
fn documented(exported: &BTreeSet<String>) {
    let listed = listed(false);
    let later = BTreeSet::from(["dipaco_validation_loss_nats".to_owned()]);
    let now: BTreeSet<String> = exported.difference(&later).cloned().collect();
    assert_eq!(listed.difference(&later).cloned().collect::<BTreeSet<_>>(), now);
    let asked = metrics_of_row("Training");
    let unknown: Vec<_> = asked.difference(&listed).collect();
    assert!(unknown.is_empty(), "deploy/grafana asks for {unknown:?}");
}

/// Every file below `folder` by its path in it, with the hash of its content.
fn snapshots(folder: &std::path::Path) -> BTreeMap<String, u64> {
    let files = snapshot(folder).into_iter();
    files.map(|(file, hash)| (file.strip_prefix(folder).unwrap().display().to_string(), hash)).collect()
}

/// Asserts that TensorBoard shows the loss of each path and of each round as `metrics.jsonl` has it. A step that was
/// repeated counts with its last value.
fn same_values(run: &Run, read: &serde_json::Value) {
    let mut expected: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    for line in fs::read_to_string(run.file("metrics.jsonl")).unwrap().lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let folder = match event["event"].as_str().unwrap() {
            "path_completed" => format!("path-{}", event["path"]),
            "round_completed" => "training".to_owned(),
            _ => continue,
        };
        // A lease without inner steps, at the end of a run, has no loss.
        let Some(loss) = event["loss"].as_f64() else { continue };
        let step = event["round"].as_u64().unwrap() + 1;
        let curve = expected.entry(folder).or_default();
        curve.retain(|known, _| *known < step);
        curve.insert(step, loss);
    }
    assert_eq!(expected.len(), 5, "four paths and their mean");
    for (folder, curve) in expected {
        let points = read[&folder]["loss"].as_array().unwrap_or_else(|| panic!("no {folder}: {read}"));
        let points: BTreeMap<u64, f64> =
            points.iter().map(|point| (point[0].as_u64().unwrap(), point[1].as_f64().unwrap())).collect();
        assert_eq!(points.keys().collect::<Vec<_>>(), curve.keys().collect::<Vec<_>>(), "{folder}");
        for (step, value) in curve {
            assert!(
                (points[&step] - value).abs() < 1e-6 * value,
                "{folder} {step}: {} {value}",
                points[&step]
            );
        }
    }
    assert!(
        read["module-0-1"]["outer_gradient_norm"].as_array().is_some_and(|points| points.len() == 3),
        "{read}"
    );
    assert!(read["seed"]["seed/loss"].as_array().is_some_and(|points| !points.is_empty()), "{read}");
}

/// The bytes on the wire of each coordinator, as its last event tells them.
fn bytes_of_coordinators(run: &Run) -> Vec<u64> {
    let mut bytes = Vec::new();
    for line in fs::read_to_string(run.file("metrics.jsonl")).unwrap().lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        if event["event"] == "coordinator_started" {
            bytes.push(0);
        }
        let directions = ["sent", "received"].map(|direction| event["wire_bytes"][direction].as_u64());
        if let [Some(sent), Some(received)] = directions {
            *bytes.last_mut().unwrap() = sent + received;
        }
    }
    bytes
}

#[test]
fn a_training_can_be_watched_by_probes_prometheus_and_people_also_after_a_restart() {
    let run = untrained();
    let curves = run.folder().join("curves");
    let start = format!("--listen 127.0.0.1:0 --http 0 --tensorboard {}", curves.display());
    let mut first = run.coordinator(&start);
    let http = address(&mut first);
    assert_eq!(get(&http, "/health").status, 200);
    first.line_with("listening for workers");
    let workers = ["<i>a", "b"].map(|name| run.worker(name));
    for _ in 0..6 {
        first.line_with(" committed ");
    }
    assert_eq!(get(&http, "/ready").status, 200);
    let text = get(&http, "/metrics").body;
    documented(&exported(&text));
    let names = metrics(&text);
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
    let mut second = run.coordinator(&format!("{start} --resume"));
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
    let (bytes, progress) = (bytes_of_coordinators(&run), run.status()["progress"].clone());
    assert!(bytes.len() == 2 && bytes.iter().all(|bytes| *bytes > 10_000), "{bytes:?}");
    assert_eq!(progress["wire_bytes"], bytes.iter().sum::<u64>());
    assert!(progress["seconds"].as_f64() > Some(0.0), "{progress}");

    // The files of the training are those that are made of its events afterwards.
    let made = run.dipaco("tensorboard --json").succeeded().json();
    assert_eq!(snapshots(&run.file("tensorboard")), snapshots(&curves), "{made}");
    let read = python("tensorboard", "tensorboard_values.py", &[curves.to_str().unwrap()]);
    if let Some(read) = read {
        same_values(&run, &read);
    }
}

#[test]
fn a_killed_worker_is_seen_within_the_time_of_a_lease() {
    const LEASE: Duration = Duration::from_secs(8);
    // The time that a loaded machine may take to notice and to show it. QUIC notices a dead peer after 20 seconds, so
    // what is seen earlier is seen through the lease.
    const SLACK: Duration = Duration::from_secs(6);
    let run = untrained();
    let settings = format!("--set train.lease_seconds={} --set train.inner_steps=100000", LEASE.as_secs());
    let mut coordinator = run.coordinator(&format!("--listen 127.0.0.1:0 --http 0 {settings}"));
    let http = address(&mut coordinator);
    coordinator.line_with("listening for workers");
    let worker = run.worker("a");
    let status = || get(&http, "/status.json").json();
    let leases = |status: &serde_json::Value| {
        // Without a state before the coordinator has taken the run over.
        let paths = status["live"]["paths"].as_array();
        paths
            .into_iter()
            .flatten()
            .map(|path| path["lease"].clone())
            .filter(|lease| !lease.is_null())
            .collect::<Vec<_>>()
    };
    coordinator.until("the worker trains", || {
        leases(&status()).iter().any(|lease| lease["worker"] == "a" && lease["taken"].as_u64() > Some(0))
    });
    worker.signal(Signal::KILL);
    let killed = Instant::now();
    let _ = worker.finish().killed();
    coordinator.until("the worker is gone", || {
        let seen = status();
        let worker = &seen["history"]["workers"]["a"];
        leases(&seen).is_empty() && (worker["silent"] == true || worker["connected"] == false)
    });
    let took = killed.elapsed();
    assert!(took < LEASE + SLACK, "{took:?}");
    assert_eq!(status()["history"]["leases_lost"], 1);
    let text = get(&http, "/metrics").body;
    assert_eq!(
        (value(&text, "dipaco_leases_lost_total"), value(&text, "dipaco_leases")),
        (1.0, 0.0),
        "{text}"
    );
    let page = get(&http, "/").body;
    assert!(page.contains("silent: its lease has expired") || page.contains("left: "), "{page}");
    assert!(page.contains("the lease of a expired"), "{page}");
}

/// A synchronizer of level 0 with a port.
fn synchronizer(run: &Run) -> Process {
    Process::start(run.command("synchronizer -v --json --modules 0 --name 0 --http 0"))
}

#[test]
fn a_synchronizer_answers_probes_and_prometheus() {
    let run = untrained();
    let mut coordinator = run.coordinator("--listen 127.0.0.1:0");
    coordinator.line_with("listening for workers");
    let mut synchronizer = synchronizer(&run);
    let http = address(&mut synchronizer);
    assert_eq!(get(&http, "/health").status, 200);
    synchronizer.until("its modules", || get(&http, "/ready").status == 200);
    let before = get(&http, "/status.json").json();
    let modules = before["live"]["modules"].as_array().unwrap();
    assert_eq!(modules.iter().map(|module| &module["level"]).collect::<Vec<_>>(), [0, 0], "{before}");
    assert_eq!((&before["live"]["outer_steps"], &before["live"]["outer_steps_lost"]), (&0.into(), &0.into()));

    // Two modules take three outer steps each, and the third ones end the run.
    let worker = run.worker("a");
    synchronizer.until("four outer steps", || {
        let live = get(&http, "/status.json").json()["live"].clone();
        live["outer_steps"].as_u64() >= Some(4)
    });
    let text = get(&http, "/metrics").body;
    assert_eq!(metrics(&text), listed(true), "{text}");
    let name = before["live"]["run"].as_str().unwrap();
    assert!(text.contains(&format!("dipaco_synchronizer_ready{{run=\"{name}\"}} 1\n")), "{text}");
    assert!(get(&http, "/status.json").json()["live"]["bytes_received"].as_u64() > Some(10_000));
    assert_eq!((get(&http, "/").status, get(&http, "/nothing").status), (404, 404));
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(exchange(&http, &request(method, "/metrics", b"")).status, 405, "{method}");
    }
    let _ = coordinator.finish().succeeded();
    let summary = synchronizer.finish().succeeded().json();
    assert_eq!(summary["outer_steps"], 6);
    worker.signal(Signal::INT);
    let _ = worker.finish();
}

#[test]
fn a_synchronizer_without_a_coordinator_lives_and_is_not_ready() {
    let run = untrained();
    let coordinator = run.coordinator("--listen 127.0.0.1:0");
    let token = run.file("secrets/synchronizer.token");
    let mut coordinator = coordinator;
    coordinator.line_with("listening for workers");
    coordinator.signal(Signal::KILL);
    let _ = coordinator.finish().killed();
    assert!(token.exists());
    let mut synchronizer = synchronizer(&run);
    let http = address(&mut synchronizer);
    assert_eq!(get(&http, "/health").status, 200);
    let ready = get(&http, "/ready");
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("the coordinator has not given the synchronizer its modules"), "{ready:?}");
    assert!(get(&http, "/metrics").body.contains("dipaco_synchronizer_ready{} 0\n"));
    assert!(get(&http, "/status.json").json()["live"].is_null());
    synchronizer.signal(Signal::INT);
    let _ = synchronizer.finish().failed(130, &["interrupted"]);
}
