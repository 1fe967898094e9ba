//! Workers that read weights and states straight from the run's object store, and what they do where they can't.
#![allow(clippy::unwrap_used)]

use dipaco_tests::object_store::{BUCKET, Fault, FaultyProxy, ObjectStore, Seen, environment};
use dipaco_tests::process::{Process, Signal, field};
use dipaco_tests::run::Run;
use dipaco_tests::training::{undisturbed, untrained};

/// True for a request through a link.
fn is_linked(seen: &Seen) -> bool {
    seen.line.contains("X-Amz-Signature=")
}

/// The requests through links.
fn linked(proxy: &FaultyProxy) -> Vec<Seen> {
    proxy.seen().into_iter().filter(is_linked).collect()
}

/// A run of its own in the store behind a proxy, with a seed and shards.
fn stored(proxy: &FaultyProxy, words: &str) -> Run {
    let run = untrained().with_environment(environment(&proxy.address));
    std::fs::remove_dir_all(run.file("store")).unwrap();
    let _ = run.dipaco(&format!("seed --set run.store=s3://{BUCKET}/run {words}")).succeeded();
    run
}

/// Trains a run with one worker on its machine. Returns the coordinator's summary. With two, paths change hands as the
/// machine's load wants it, and each time a worker reads a state once more.
fn train(run: &Run) -> serde_json::Value {
    let summary = run.train("--workers 1 --json").finish().succeeded().json();
    assert_eq!(run.bits(), undisturbed());
    summary
}

#[test]
fn most_bytes_go_straight_from_the_store_to_the_workers_with_the_same_bits() {
    let Some(server) = ObjectStore::start() else { return };
    let number = |summary: &serde_json::Value, key: &str| summary[key].as_u64().unwrap();
    let proxy = FaultyProxy::before(&server, |_| Fault::None);
    let run = stored(&proxy, "");
    let summary = train(&run);
    let (sent, read) = (number(&summary, "bytes_sent"), number(&summary, "bytes_linked"));
    let requests = linked(&proxy);
    assert!(
        requests.iter().map(|seen| seen.received as u64).sum::<u64>() >= read && read > 500_000,
        "{read}"
    );
    for seen in &requests {
        assert!(seen.line.starts_with("GET ") && seen.line.contains("X-Amz-Expires=900"), "{seen:?}");
        assert!(!seen.head.contains("authorization"), "{seen:?}");
    }
    for file in ["config.toml", "metrics.jsonl", "logs/local-1.log"] {
        let text = std::fs::read_to_string(run.file(file)).unwrap();
        assert!(!text.contains("X-Amz"), "{file} holds a link");
    }

    let Some(server) = ObjectStore::start() else { return };
    let proxy = FaultyProxy::before(&server, |_| Fault::None);
    let run = stored(&proxy, "--set run.links=false");
    let without = train(&run);
    assert!(linked(&proxy).is_empty() && number(&without, "bytes_linked") == 0, "{without}");
    // How often a module is read depends on the order of the leases, so the two runs are compared as a whole.
    assert!(sent < number(&without, "bytes_sent") / 4, "{sent} of {without}");
}

/// Trains with a synchronizer for each level and two workers that have nothing but a token. Returns what the
/// workers print.
fn train_apart(run: &Run) -> Vec<String> {
    let mut coordinator = run.coordinator("--listen 127.0.0.1:0");
    coordinator.line_with("listening for workers");
    let synchronizers = ["0", "1"].map(|level| run.synchronizer(level));
    for _ in &synchronizers {
        coordinator.line_with("takes the outer steps of these modules");
    }
    let workers = ["a", "b"].map(|name| run.worker(name));
    let _ = coordinator.finish().succeeded();
    assert_eq!(run.bits(), undisturbed());
    let ended = |process: Process| {
        // It may be on its way back to the coordinator, which has finished.
        process.signal(Signal::INT);
        let output = process.finish();
        assert!(matches!(output.status.code(), Some(0 | 130)), "{output:?}");
        assert!(!output.stderr.contains("X-Amz"), "{}", output.stderr);
        output.stderr
    };
    drop(synchronizers.map(&ended));
    workers.into_iter().map(ended).collect()
}

/// The bytes that a worker has downloaded, and those of them that came straight from the store.
fn downloaded(stderr: &str) -> (u64, u64) {
    let line = stderr.lines().find(|line| line.contains("bytes of this worker")).unwrap();
    let number = |name: &str| field(line, name).parse::<u64>().unwrap();
    (number("downloaded"), number("from_the_store"))
}

#[test]
fn workers_without_credentials_read_from_the_store_beside_synchronizers() {
    let Some(server) = ObjectStore::start() else { return };
    let proxy = FaultyProxy::before(&server, |_| Fault::None);
    let run = stored(&proxy, "");
    for worker in train_apart(&run) {
        let (all, store) = downloaded(&worker);
        assert!(0 < store && store < all, "{store} of {all}: shards come from the coordinator");
    }
}

#[test]
fn workers_go_on_with_one_warning_when_links_have_ended() {
    let Some(server) = ObjectStore::start() else { return };
    // As a store answers after the end of a link.
    let proxy =
        FaultyProxy::before(&server, |seen| if is_linked(seen) { Fault::Refuse(403) } else { Fault::None });
    let run = stored(&proxy, "");
    for worker in train_apart(&run) {
        assert_eq!(downloaded(&worker).1, 0);
        let warned: Vec<_> = worker.lines().filter(|line| line.contains("not from the store")).collect();
        assert_eq!(warned.len(), 1, "{worker}");
        assert!(warned[0].contains("the store answers with the HTTP status 403"), "{worker}");
    }
    // Each worker has at most eight pieces on their way when the first refusal arrives.
    let tried = linked(&proxy).len();
    assert!((2..=16).contains(&tried), "{tried}");
}
