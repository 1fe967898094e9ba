//! A run whose text is divided anew by its own paths, killed and continued between the steps of that.
#![allow(clippy::unwrap_used)]
// Every test file compiles these helpers and uses some of them.
#![allow(dead_code)]

#[path = "kill/process.rs"]
mod process;
#[path = "kill/run.rs"]
mod run;

use std::path::PathBuf;
use std::sync::OnceLock;

use process::Process;
use run::{Run, dipaco};

/// On so little text some path is the best of no document; overlapping shards give it documents all the same.
const PHASE: [&str; 4] = ["--set", "routing.phases.0.round=1", "--set", "routing.overlap=3"];

fn train(run: &Run, words: &[&str]) -> Process {
    run.train(&[&PHASE, words].concat())
}

fn routing(run: &Run, name: &str) -> PathBuf {
    PathBuf::from(run.path()).join("routing").join(name)
}

/// What one worker makes of the run when nobody disturbs it: the bits, and the second router.
fn undisturbed() -> &'static (Vec<String>, Vec<u8>) {
    static BITS: OnceLock<(Vec<String>, Vec<u8>)> = OnceLock::new();
    BITS.get_or_init(|| {
        let run = Run::new();
        train(&run, &["--workers", "1"]).succeed();
        (run.bits(), std::fs::read(routing(&run, "phase-1/router.bin")).unwrap())
    })
}

fn assert_undisturbed(run: &Run) {
    let router = std::fs::read(routing(run, "phase-1/router.bin")).unwrap();
    assert_eq!((run.bits(), router), *undisturbed());
}

#[test]
fn two_workers_make_what_one_makes_and_the_run_is_used_in_its_last_phase() {
    let run = Run::new();
    train(&run, &["--workers", "2"]).succeed();
    assert_undisturbed(&run);
    assert_ne!(run.bits(), *run::undisturbed(), "a run without phases is another one");

    let (path, json) = (run.path(), "--json");
    let status: serde_json::Value = serde_json::from_str(&dipaco(&["status", "--run", &path, json])).unwrap();
    assert_eq!(status["training"]["phase"], 1);
    let shards: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(routing(&run, "phase-1/train/shards.json")).unwrap())
            .unwrap();
    let hashes = |value: &serde_json::Value, key: &str| {
        value["shards"].as_array().unwrap().iter().map(|shard| shard[key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(hashes(&status["training"], "hash"), hashes(&shards, "content_hash"));
    let inspected: serde_json::Value =
        serde_json::from_str(&dipaco(&["route", "inspect", "--run", &path, json])).unwrap();
    assert_eq!(inspected["router_hash"], shards["router_hash"]);
    dipaco(&["evaluate", "--run", &path]);
    // Nothing is left to be done anew.
    let said = dipaco(&["train", "--resume", "--run", &path]);
    assert!(said.contains("3 of 3 rounds"), "{said}");
}

#[test]
fn a_run_killed_at_any_step_of_the_boundary_goes_on_to_the_same_bits() {
    for said in [
        "the text is divided among the paths anew",
        "the reserved documents are scored",
        "a discriminative router is fitted",
        "the paths chose their router",
    ] {
        let run = Run::new();
        let mut killed = train(&run, &["--workers", "2"]);
        killed.line(said);
        killed.kill();
        assert_eq!(killed.end().0.code(), None, "{said}");
        train(&run, &["--workers", "2", "--resume"]).succeed();
        assert_undisturbed(&run);
    }
}

#[test]
fn the_steps_can_be_taken_by_hand_and_divided() {
    let run = Run::new();
    let path = run.path();
    let said = train(&run, &["--workers", "2", "--stop-at-phase"]).succeed();
    assert!(said.contains("1 of 3 rounds") && said.contains("dipaco route score"), "{said}");

    dipaco(&["route", "score", "--run", &path, "--part", "1/2"]);
    let (status, _, log) = Process::start(&["route", "refit", "--run", &path]).end();
    assert_eq!(status.code(), Some(1));
    assert!(log.contains("no scores of path 1") && log.contains("dipaco route score"), "{log}");
    dipaco(&["route", "score", "--run", &path, "--part", "2/2"]);
    let again = dipaco(&["route", "score", "--run", &path]);
    assert!(again.contains("4 had been scored before"), "{again}");
    dipaco(&["route", "refit", "--run", &path]);
    let again = dipaco(&["route", "refit", "--run", &path]);
    assert!(again.contains("the shards were there already"), "{again}");

    train(&run, &["--workers", "2", "--resume"]).succeed();
    assert_undisturbed(&run);
    let (status, _, log) = Process::start(&["route", "refit", "--run", &path]).end();
    assert_eq!(status.code(), Some(1));
    assert!(log.contains("no later one"), "{log}");
}

#[test]
fn a_phase_without_reserved_documents_is_refused_before_training() {
    let run = Run::new();
    let (status, _, log) = train(&run, &["--workers", "1", "--set", "routing.router_share=0"]).end();
    assert_eq!(status.code(), Some(2), "{log}");
    assert!(log.contains("routing.router_share is 0"), "{log}");
}
