//! A run whose own paths divide the text again. It is killed and continued between the steps of that division.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::OnceLock;

use dipaco_tests::process::{Process, Signal};
use dipaco_tests::run::Run;
use dipaco_tests::training::{self, untrained};
use serde_json::Value;

/// On so little text some path may be the best path of no document. Overlapping shards give it documents nevertheless.
const PHASE: &str = "--set routing.phases.0.round=1 --set routing.overlap=3";

fn train(run: &Run, words: &str) -> Process {
    run.train(&format!("{PHASE} {words}"))
}

fn routing(run: &Run, name: &str) -> PathBuf {
    run.file("routing").join(name)
}

/// The results of one undisturbed worker: the bits, and the second router.
fn undisturbed() -> &'static (Vec<String>, Vec<u8>) {
    static BITS: OnceLock<(Vec<String>, Vec<u8>)> = OnceLock::new();
    BITS.get_or_init(|| {
        let run = untrained();
        let _ = train(&run, "--workers 1").finish().succeeded();
        (run.bits(), std::fs::read(routing(&run, "phase-1/router.bin")).unwrap())
    })
}

fn assert_undisturbed(run: &Run) {
    let router = std::fs::read(routing(run, "phase-1/router.bin")).unwrap();
    assert_eq!((run.bits(), router), *undisturbed());
}

#[test]
fn two_workers_give_the_bits_of_one_and_commands_use_the_last_phase() {
    let run = untrained();
    let _ = train(&run, "--workers 2").finish().succeeded();
    assert_undisturbed(&run);
    assert_ne!(run.bits(), *training::undisturbed(), "a run without phases has other results");

    let status = run.status();
    assert_eq!(status["training"]["phase"], 1);
    let shards: Value =
        serde_json::from_str(&std::fs::read_to_string(routing(&run, "phase-1/train/shards.json")).unwrap())
            .unwrap();
    let hashes = |value: &Value, key: &str| {
        value["shards"].as_array().unwrap().iter().map(|shard| shard[key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(hashes(&status["training"], "hash"), hashes(&shards, "content_hash"));
    let inspected = run.dipaco("route inspect --json").succeeded().json();
    assert_eq!(inspected["router_hash"], shards["router_hash"]);
    let _ = run.dipaco("evaluate").succeeded();
    // No step is left to be done again.
    let _ = run.dipaco("train --resume").succeeded().says("all 3 rounds");
}

#[test]
fn a_run_killed_at_any_step_between_phases_resumes_to_the_same_bits() {
    for step in [
        "the text is divided among the paths anew",
        "the reserved documents are scored",
        "a discriminative router is fitted",
        "the router of the next phase is fitted",
    ] {
        let run = untrained();
        let mut process = train(&run, "--workers 2");
        process.line_with(step);
        process.signal(Signal::KILL);
        let _ = process.finish().killed();
        let _ = train(&run, "--workers 2 --resume").finish().succeeded();
        assert_undisturbed(&run);
    }
}

#[test]
fn the_steps_can_be_taken_by_hand_and_in_parts() {
    let run = untrained();
    let stopped = train(&run, "--workers 2 --stop-at-phase").finish().succeeded();
    let _ = stopped.says("1 of 3 rounds").says("dipaco route score");

    let _ = run.dipaco("route score --part 1/2").succeeded();
    let _ = run.dipaco("route refit").failed(1, &["no scores of path 1", "dipaco route score"]);
    let _ = run.dipaco("route score --part 2/2").succeeded();
    let _ = run.dipaco("route score").succeeded().says("4 had been scored before");
    let _ = run.dipaco("route refit").succeeded();
    let _ = run.dipaco("route refit").succeeded().says("the shards were there already");

    let _ = train(&run, "--workers 2 --resume").finish().succeeded();
    assert_undisturbed(&run);
    let _ = run.dipaco("route refit").failed(1, &["the last of its configuration"]);
}

#[test]
fn a_run_that_is_to_stop_at_phases_goes_on_to_the_next_boundary() {
    let two = format!("{PHASE} --set routing.phases.1.round=2");
    let train =
        |run: &Run, words: &str| run.train(&format!("{two} --workers 2 {words}")).finish().succeeded();
    let run = untrained();
    let _ = train(&run, "--stop-at-phase").says("1 of 3 rounds");
    // Without a router for the next phase there is nothing to go on to.
    let _ = train(&run, "--stop-at-phase --resume").says("1 of 3 rounds");
    for done in ["2 of 3 rounds", "3 of 3 rounds"] {
        let _ = run.dipaco("route score").succeeded();
        let _ = run.dipaco("route refit").succeeded();
        let _ = train(&run, "--stop-at-phase --resume").says(done);
    }
    let undisturbed = untrained();
    let _ = train(&undisturbed, "");
    assert_eq!(run.bits(), undisturbed.bits());
    let router = |run: &Run| std::fs::read(routing(run, "phase-2/router.bin")).unwrap();
    assert_eq!(router(&run), router(&undisturbed));
}

#[test]
fn a_run_that_went_back_stops_at_a_boundary_until_a_router_is_fitted_for_its_weights() {
    let late = "--set routing.phases.0.round=2 --set routing.overlap=3 --workers 2";
    let train = |run: &Run, words: &str| run.train(&format!("{late} {words}")).finish().succeeded();
    let run = untrained();
    let _ = train(&run, "--stop-at-phase").says("2 of 3 rounds");
    let _ = run.dipaco("route score").succeeded();
    let _ = run.dipaco("route refit").succeeded();
    let _ = run.dipaco("rollback --round 1").succeeded();
    // This training gives the same bits again. The test makes the scores of path 0 those of other weights, as if it did not.
    let header = routing(&run, "scores/path-000.json");
    let mut scored: Value = serde_json::from_str(&std::fs::read_to_string(&header).unwrap()).unwrap();
    scored["modules"][0][1][0][1] = "other weights".into();
    std::fs::write(&header, scored.to_string()).unwrap();
    for _ in 0..2 {
        let _ = train(&run, "--stop-at-phase --resume").says("2 of 3 rounds");
    }
    let _ = run.dipaco("route score").succeeded().says("3 had been scored before");
    let _ = run.dipaco("route refit").succeeded();
    // The run comes to the boundary once more with the weights that the router was fitted for, and has nothing to stop for.
    let _ = run.dipaco("rollback --round 1").succeeded();
    let _ = train(&run, "--stop-at-phase --resume").says("3 of 3 rounds");
    let calm = untrained();
    let _ = train(&calm, "");
    assert_eq!(run.bits(), calm.bits());
}

#[test]
fn a_training_that_goes_on_keeps_a_router_that_was_fitted_with_other_settings() {
    let run = untrained();
    let _ = train(&run, "--workers 2 --stop-at-phase").finish().succeeded();
    let _ = run.dipaco("route score").succeeded();
    let _ = run.dipaco("route refit --set routing.least_share=0.9").succeeded();
    let fitted = std::fs::read(routing(&run, "phase-1/router.bin")).unwrap();
    assert_ne!(fitted, undisturbed().1);
    let _ = train(&run, "--workers 2 --resume").finish().succeeded();
    assert_eq!(std::fs::read(routing(&run, "phase-1/router.bin")).unwrap(), fitted);
}

#[test]
fn a_phase_without_reserved_documents_is_refused_before_training() {
    let run = untrained();
    let words = "--workers 1 --set routing.router_share=0";
    let _ = train(&run, words).finish().failed(2, &["routing.router_share is 0"]);
}

#[test]
fn random_shards_go_on_to_a_router_of_the_default_features() {
    let run = untrained();
    std::fs::remove_dir_all(run.file("routing")).unwrap();
    let _ = run.dipaco("route fit --set routing.kind=random").succeeded();
    let _ = run.dipaco("route assign").succeeded();
    let _ = train(&run, "--workers 2").finish().succeeded();
    // The first router knows no text, so the second one makes its own vectors of it.
    let routers = ["router.bin", "phase-1/router.bin"]
        .map(|name| std::fs::metadata(routing(&run, name)).unwrap().len());
    assert!(routers[0] < routers[1], "{routers:?}");
    let _ = run.dipaco("evaluate").succeeded();
}
