//! `serve.reload_seconds`: a server beside a training takes up each round.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dipaco_tests::http::{get, post};
use dipaco_tests::process::{Process, Signal};
use dipaco_tests::run::Run;
use dipaco_tests::training::untrained;
use serde_json::json;

/// Versions of the weights that the tests wait for.
const VERSIONS: usize = 8;

/// A training of many short rounds, of which some are complete.
fn training(run: &Run) -> Process {
    let mut train = run.train("--workers 2 --set train.rounds=100000 --set train.inner_steps=1");
    for _ in 0..8 {
        train.line_with(" committed ");
    }
    train
}

/// Asks for equal prompts on a path with one seed, and returns the fingerprint of the weights and what they gave. All choices
/// are equal, unless they are of two rounds.
fn ask(address: &str, path: u16) -> (String, String) {
    let ask = json!({
        "model": format!("e2e/path-{path}"), "prompt": vec!["fn main() {"; 6], "max_tokens": 24, "ignore_eos": true,
        "seed": 7, "logprobs": 0,
    });
    let answer = post(address, "/v1/completions", &ask);
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    let choices = answer["choices"].as_array().unwrap();
    let all =
        |choice: &serde_json::Value| format!("{} {}", choice["text"], choice["logprobs"]["token_logprobs"]);
    assert!(choices.iter().all(|choice| all(choice) == all(&choices[0])), "two rounds are mixed: {answer}");
    (answer["system_fingerprint"].as_str().unwrap().to_owned(), all(&choices[0]))
}

/// Asks for these paths at once, again and again, until the answers have named enough versions of the weights. Checks that the
/// answer of a path follows from the version that it names.
fn until_many_versions(address: &str, paths: [u16; 4], after_each: impl Fn()) {
    let deadline = Instant::now() + Duration::from_secs(300);
    let (mut seen, mut versions) = (BTreeMap::new(), BTreeSet::new());
    while versions.len() < VERSIONS {
        assert!(Instant::now() < deadline, "the server shows only these weights: {versions:?}");
        let answers = std::thread::scope(|scope| {
            let answers = paths.map(|path| scope.spawn(move || (path, ask(address, path))));
            answers.map(|answer| answer.join().unwrap())
        });
        for (path, (version, text)) in answers {
            versions.insert(version.clone());
            let known = seen.entry((version, path)).or_insert_with(|| text.clone());
            assert_eq!(*known, text, "one version of the weights has two answers");
        }
        after_each();
    }
}

#[test]
fn a_server_beside_a_training_takes_up_new_rounds_and_no_answer_fails_or_is_mixed() {
    let run = untrained();
    let train = training(&run);
    let server = run.serve("--set serve.reload_seconds=0.05");
    until_many_versions(&server.address, [1; 4], || {});
    train.signal(Signal::INT);
    let _ = train.finish().failed(130, &[]);
}

#[test]
fn rounds_are_taken_up_under_a_limit_of_one_path() {
    let run = untrained();
    let train = training(&run);
    let only = run.serve("--set serve.preload=none");
    let limit = get(&only.address, "/info").json()["weight_bytes"].as_u64().unwrap();
    drop(only);
    let server = run.serve(&format!("--set serve.reload_seconds=0.05 --set serve.memory={limit}"));
    until_many_versions(&server.address, [0, 1, 2, 3], || {
        let info = get(&server.address, "/info").json();
        assert_eq!(info["weight_bytes_limit"], limit);
        assert!(info["weight_bytes"].as_u64().unwrap() <= limit, "{info}");
    });
    train.signal(Signal::INT);
    let _ = train.finish().failed(130, &[]);

    // The answers of the last round are those of a server that has room for all and knows no other round.
    let other = run.serve("");
    let expected = [0, 1, 2, 3].map(|path| ask(&other.address, path));
    let deadline = Instant::now() + Duration::from_secs(60);
    while ask(&server.address, 0).0 != expected[0].0 {
        assert!(Instant::now() < deadline, "the server does not take up the last round");
    }
    assert_eq!([0, 1, 2, 3].map(|path| ask(&server.address, path)), expected);
}
