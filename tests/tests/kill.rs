//! Processes that are killed in the middle of a round do not change what a run becomes.
#![allow(clippy::unwrap_used)]

#[path = "kill/process.rs"]
mod process;
#[path = "kill/run.rs"]
mod run;

use process::{Process, field, signal};
use run::{Run, undisturbed};

/// Reads on until the run is in the middle of its second round, and returns the worker that has just got a lease.
fn middle_of_a_round(leader: &mut Process) -> String {
    for _ in 0..6 {
        leader.line(" committed ");
    }
    field(&leader.line(" lease "), "worker").to_owned()
}

#[test]
fn four_worker_processes_make_what_one_makes() {
    let run = Run::new();
    run.train(&["--workers", "4"]).succeed();
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn a_killed_worker_changes_nothing() {
    let run = Run::new();
    let mut train = run.train(&["--workers", "2"]);
    let worker = middle_of_a_round(&mut train);
    signal("KILL", train.worker_process(&worker));
    train.line("a worker ended and is started again");
    train.succeed();
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn a_killed_coordinator_leaves_no_worker_and_resumes_to_the_same_bits() {
    let run = Run::new();
    let mut train = run.train(&["--workers", "2"]);
    middle_of_a_round(&mut train);
    train.kill();
    let (status, ..) = train.end();
    assert_eq!(status.code(), None);
    let (status, _, log) = run.train(&["--workers", "2"]).end();
    assert_eq!(status.code(), Some(1));
    assert!(log.contains("--resume"), "{log}");
    run.train(&["--workers", "3", "--resume"]).succeed();
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn an_interrupted_training_leaves_no_process_and_resumes_to_the_same_bits() {
    let run = Run::new();
    let mut train = run.train(&["--workers", "2"]);
    middle_of_a_round(&mut train);
    train.interrupt();
    let (status, _, log) = train.end();
    assert_eq!(status.code(), Some(130), "{log}");
    run.train(&["--workers", "2", "--resume"]).succeed();
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn workers_outlive_a_killed_coordinator() {
    let run = Run::new();
    let mut first = run.coordinator(&["--listen", "127.0.0.1:0"]);
    let address = field(&first.line("listening for workers"), "address").to_owned();
    let workers = ["a", "b"].map(|name| run.worker(name));
    middle_of_a_round(&mut first);
    first.kill();
    first.end();
    let second = run.coordinator(&["--listen", &address, "--resume"]);
    second.succeed();
    // One that was still on its way back when the other had finished the run would go on trying.
    for worker in workers {
        worker.interrupt();
        let (status, _, log) = worker.end();
        assert!(matches!(status.code(), Some(0 | 130)), "{status}:\n{log}");
    }
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn synchronizers_in_processes_of_their_own_make_the_same_bits_and_may_be_killed() {
    let run = Run::new();
    let mut coordinator = run.coordinator(&["--listen", "127.0.0.1:0"]);
    coordinator.line("listening for workers");
    let synchronizers = ["0", "1"].map(|level| run.synchronizer(level));
    for _ in &synchronizers {
        coordinator.line("takes the outer steps of these modules");
    }
    let workers = ["a", "b"].map(|name| run.worker(name));
    middle_of_a_round(&mut coordinator);
    let [first, mut second] = synchronizers;
    second.kill();
    second.end();
    coordinator.line("left; the coordinator takes its outer steps");
    coordinator.succeed();
    let (status, output, log) = first.end();
    assert!(status.success(), "{status}:\n{log}");
    let summary: serde_json::Value = serde_json::from_str(&output).unwrap();
    // Two modules take three steps each.
    assert_eq!(summary["outer_steps"], 6, "{log}");
    assert!(summary["bytes_received"].as_u64() > Some(10_000), "{summary}");
    for worker in workers {
        worker.interrupt();
        let (status, _, log) = worker.end();
        assert!(matches!(status.code(), Some(0 | 130)), "{status}:\n{log}");
    }
    assert_eq!(run.bits(), undisturbed());
}

/// Fragments that are sent while training goes on, in four bits both ways; moments that stay with the workers.
const STREAMING: &str = "--set sync.fragments=2 --set sync.overlap_steps=3 --set sync.blend=0.5 \
    --set outer.compression=e3m0 --set outer.broadcast=e3m0 --set train.state_every=3 --set train.held_paths=2";

fn streaming<'a>(words: &[&'a str]) -> Vec<&'a str> {
    words.iter().copied().chain(STREAMING.split_whitespace()).collect()
}

#[test]
fn streaming_survives_killed_workers_and_coordinators_to_the_same_bits() {
    // The first fragment is sent after 3, 15 and 27 steps and at the end, after 36; the second one after 9 and 21, and at the
    // end instead of three steps before it.
    let versions = [4, 3];
    let calm = Run::new();
    calm.train(&streaming(&["--workers", "1"])).succeed();
    let run = Run::new();
    let mut train = run.train(&streaming(&["--workers", "2"]));
    let worker = middle_of_a_round(&mut train);
    signal("KILL", train.worker_process(&worker));
    train.line("a worker ended and is started again");
    middle_of_a_round(&mut train);
    train.kill();
    train.end();
    run.train(&streaming(&["--workers", "3", "--resume"])).succeed();
    assert_eq!(run.bits_at(&versions), calm.bits_at(&versions));
}
