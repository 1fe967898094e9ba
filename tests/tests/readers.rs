//! Commands that read a run while its training replaces the weights.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use dipaco_tests::http::post;
use dipaco_tests::process::{Process, Signal, field};
use dipaco_tests::run::Run;
use dipaco_tests::training::untrained;
use serde_json::json;

/// Reads of each kind. `scripts/readers-beside-training.sh` repeats them 200 times.
const READS: usize = 3;
/// Rounds for which a reader stands still.
const ROUNDS: u64 = 20;
/// Modules of the run.
const MODULES: usize = 4;
/// Most readers that start until one stands still at the right moment.
const READERS: usize = 100;

/// A training of many rounds of one inner step, of which two are complete.
fn training(run: &Run) -> Process {
    let mut train = run.train("--workers 2 --set train.rounds=100000 --set train.inner_steps=1");
    for _ in 0..8 {
        train.line_with(" committed ");
    }
    train
}

/// Reads on until a path is this many rounds past the round of the manifest.
fn more_rounds(run: &Run, train: &mut Process, rounds: u64) {
    // The lines that have not been read yet tell of earlier rounds.
    let paths = run.status()["training"]["paths"].clone();
    let now = paths.as_array().unwrap().iter().map(|path| path["steps"].as_u64().unwrap()).max().unwrap();
    while field(&train.line_with(" committed "), "round").parse::<u64>().unwrap() < now + rounds {}
}

/// The objects that readers have pinned.
fn pinned(run: &Run) -> BTreeSet<String> {
    let pins = std::fs::read_dir(run.file("store/readers")).into_iter().flatten();
    // An unfinished write has no name yet.
    let pins = pins.map(|pin| pin.unwrap().path()).filter(|pin| !pin.to_string_lossy().contains('#'));
    let pins =
        pins.filter_map(|pin| serde_json::from_slice::<serde_json::Value>(&std::fs::read(pin).ok()?).ok());
    let objects = |pin: serde_json::Value| pin["objects"].as_array().unwrap().clone();
    pins.flat_map(objects).map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Stops a reader. Returns the objects that it has pinned and that nothing deletes just now.
fn stop(run: &Run, train: &mut Process, reader: &Process) -> BTreeSet<String> {
    reader.signal(Signal::STOP);
    // What the training deletes just now was dropped before the pin.
    more_rounds(run, train, 2);
    pinned(run).into_iter().filter(|name| run.file("store").join(name).exists()).collect()
}

/// Starts a reader, and stops it when it has pinned its weights. Returns it with the pinned objects. A reader that is done
/// before, or whose pin came too late for some weights and will be made again, ends, and another one starts.
fn stopped(run: &Run, train: &mut Process, words: &str) -> (Process, BTreeSet<String>) {
    for _ in 0..READERS {
        let mut reader = Process::start(run.command(words));
        while reader.is_running() && pinned(run).is_empty() {
            std::thread::yield_now();
        }
        if reader.is_running() {
            let needed = stop(run, train, &reader);
            if needed.len() >= MODULES {
                return (reader, needed);
            }
            reader.signal(Signal::CONT);
        }
        let _ = reader.finish().succeeded();
    }
    panic!("{words}: none of {READERS} readers stood still with its weights pinned");
}

/// Checks that the training deletes nothing that a stopped reader needs for many rounds, and lets the reader go on.
fn stand_still(run: &Run, train: &mut Process, reader: &Process, needed: &BTreeSet<String>, what: &str) {
    more_rounds(run, train, ROUNDS);
    let exists = |name: &String| run.file("store").join(name).exists();
    assert!(needed.iter().all(exists), "{what}: the training has deleted what a reader has pinned");
    let manifest = run.status().to_string();
    let superseded = needed.iter().filter(|name| !manifest.contains(&format!("\"{name}\"")));
    assert!(superseded.count() >= MODULES, "{what}: all modules have had {ROUNDS} outer steps");
    reader.signal(Signal::CONT);
}

#[test]
fn a_reader_that_stands_still_for_many_rounds_loses_nothing() {
    let run = untrained();
    let mut train = training(&run);
    let out = run.folder().join("path-1");
    // Over the files of an export that was done too early.
    let export = format!("export --path 1 --force --out {}", out.display());
    for words in ["evaluate --json", "route score", &export] {
        let (reader, needed) = stopped(&run, &mut train, words);
        stand_still(&run, &mut train, &reader, &needed, words);
        let _ = reader.finish().succeeded();
    }
    train.signal(Signal::INT);
    let _ = train.finish().failed(130, &[]);
    assert_eq!(pinned(&run), BTreeSet::new(), "each reader has ended its pin");
}

#[test]
fn a_server_that_stands_still_for_many_rounds_loses_no_path() {
    let run = untrained();
    let mut train = training(&run);
    // Only path 0 is in memory when it stops.
    let server = run.serve("--set serve.preload=none");
    let needed = stop(&run, &mut train, &server.process);
    stand_still(&run, &mut train, &server.process, &needed, "serve");
    for path in 0..4 {
        let ask = json!({"model": format!("e2e/path-{path}"), "prompt": [1, 2, 3], "max_tokens": 2});
        let answer = post(&server.address, "/v1/completions", &ask);
        assert_eq!(answer.status, 200, "path {path}: {}", answer.body);
    }
    server.process.signal(Signal::INT);
    let _ = server.process.finish().succeeded();
    train.signal(Signal::INT);
    let _ = train.finish().failed(130, &[]);
    assert_eq!(pinned(&run), BTreeSet::new(), "the server has ended its pin");
}

#[test]
fn readers_beside_a_training_of_very_short_rounds_never_miss_an_object() {
    let run = untrained();
    let train = training(&run);
    for number in 0..READS {
        let export =
            format!("export --path 1 --out {}", run.folder().join(format!("path-{number}")).display());
        for words in ["evaluate --json", "route score", "plot", &export] {
            let _ = run.dipaco(words).succeeded();
        }
    }
    train.signal(Signal::INT);
    let _ = train.finish().failed(130, &[]);
    let pins = std::fs::read_dir(run.file("store/readers")).map_or(0, Iterator::count);
    assert_eq!(pins, 0, "each reader has ended its pin");
}
