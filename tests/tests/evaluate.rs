//! `evaluate`: what it compares, what it refuses, and how it ends.
#![allow(clippy::unwrap_used)]

use std::fs;

use dipaco_tests::fixtures::corpus;
use dipaco_tests::process::{Process, Signal, dipaco, output};
use dipaco_tests::run::{Run, trained};
use serde_json::json;

#[test]
fn a_dense_run_is_evaluated_with_the_settings_of_the_run_beside_it() {
    let (run, dense) = (trained(), Run::new());
    let one_path = r#"topology.levels=[{modules=1,blocks="0..2",embedding=true,head=true}]"#;
    let mut prepare = dense.command(&format!("prepare --set {one_path}"));
    prepare.args(corpus());
    let _ = output(prepare).succeeded();
    dense.seed_and_route();
    let _ = dense.dipaco("train --workers 1").succeeded();
    let compare = |settings: &str| {
        let words = format!("evaluate --no-seed --json {settings} --dense {}", dense.directory().display());
        run.dipaco(&words).succeeded().json()
    };
    let rows = compare("--set evaluation.sequence_tokens=56 --set evaluation.prefix_tokens=40");
    assert_eq!((&rows[0]["model"], &rows[1]["model"]), (&json!("dense"), &json!("routed")));
    for row in [&rows[0], &rows[1]] {
        assert_eq!((&row["sequence_tokens"], &row["prefix_tokens"]), (&json!(56), &json!(40)), "{rows}");
    }
    assert_eq!(rows[0]["tokens_counted"], rows[1]["tokens_counted"]);
    assert!(rows[1]["against_first"]["bits_per_byte"].is_number(), "{rows}");
    assert_eq!(compare("--set evaluation.max_documents=3")[0]["documents"], 3);
}

#[test]
fn a_run_of_several_paths_is_no_dense_run() {
    let run = trained();
    let words = format!("evaluate --dense {}", run.directory().display());
    let _ = run.dipaco(&words).failed(2, &["--dense", "has 4 paths", "try: name a run of one path"]);
}

#[test]
fn options_without_an_effect_are_refused() {
    let without_effect = [
        "--reroute 64",
        "--reroute-by features",
        "--route-window",
        "--ensemble 2",
        "--ensemble-temperature 1",
        "--oracle",
        "--random-path",
        "--soup",
        "--no-seed",
    ];
    let pairs = without_effect.iter().flat_map(|other| [("--path 0", *other), ("--seed", *other)]);
    for (one, other) in pairs.chain([("--seed", "--path 0"), ("--seed", "--early-stopping")]) {
        let [one_name, other_name] = [one, other].map(|words| words.split(' ').next().unwrap());
        let refused = dipaco(&format!("evaluate {one} {other}"));
        let _ = refused.failed(2, &["cannot be used with", one_name, other_name]);
    }
}

#[test]
fn results_are_printed_where_the_event_file_can_not_be_written() {
    let run = trained().copy();
    let events = run.file("metrics.jsonl");
    fs::remove_file(&events).unwrap();
    fs::create_dir(&events).unwrap();
    let output = run.dipaco("evaluate --json").succeeded();
    assert_eq!(output.json().as_array().unwrap().len(), 2, "{output:?}");
    let said = "the results are not in the run's event file";
    assert!(output.stderr.contains(said) && output.stderr.contains("metrics.jsonl"), "{output:?}");
}

#[test]
fn an_interrupted_evaluation_says_so() {
    // So many rows that the signal finds it at work.
    let words = format!("evaluate {}", "--ensemble 4 ".repeat(100));
    for signal in [Signal::INT, Signal::TERM] {
        let run = trained().copy();
        let mut process = Process::start(run.command(&words));
        let readers = run.file("store/readers");
        process.until("its weights are pinned", || {
            fs::read_dir(&readers).is_ok_and(|mut pins| pins.next().is_some())
        });
        process.signal(signal);
        let _ = process.finish().failed(130, &["interrupted"]);
    }
}
