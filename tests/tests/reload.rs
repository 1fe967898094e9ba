//! `serve.reload_seconds`: a server beside a training takes up each round.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dipaco_tests::http::post;
use dipaco_tests::process::Signal;
use dipaco_tests::training::untrained;
use serde_json::json;

/// Versions of the weights that the test waits for.
const VERSIONS: usize = 8;

#[test]
fn a_server_beside_a_training_takes_up_new_rounds_and_no_answer_fails_or_is_mixed() {
    let run = untrained();
    let mut train = run.train("--workers 2 --set train.rounds=100000 --set train.inner_steps=1");
    for _ in 0..8 {
        train.line_with(" committed ");
    }
    let server = run.serve("--set serve.reload_seconds=0.05");
    let ask = |seed: u64| {
        // Equal prompts on one path with one seed: all choices have one text, unless they are of two rounds.
        let prompt = vec!["fn main() {"; 6];
        let ask = json!({
            "model": "e2e/path-1", "prompt": prompt, "max_tokens": 24, "ignore_eos": true, "seed": seed, "logprobs": 0,
        });
        let answer = post(&server.address, "/v1/completions", &ask);
        assert_eq!(answer.status, 200, "{answer:?}");
        let answer = answer.json();
        let choices = answer["choices"].as_array().unwrap();
        let all = |choice: &serde_json::Value| {
            (choice["text"].clone(), choice["logprobs"]["token_logprobs"].clone())
        };
        assert!(
            choices.iter().all(|choice| all(choice) == all(&choices[0])),
            "two rounds are mixed: {answer}"
        );
        (answer["system_fingerprint"].as_str().unwrap().to_owned(), all(&choices[0]).1.to_string())
    };
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut seen = BTreeSet::new();
    while seen.iter().map(|(fingerprint, _)| fingerprint).collect::<BTreeSet<_>>().len() < VERSIONS {
        assert!(Instant::now() < deadline, "the server shows only these weights: {seen:?}");
        std::thread::scope(|scope| {
            let answers: Vec<_> = (0..4).map(|_| scope.spawn(|| ask(7))).collect();
            seen.extend(answers.into_iter().map(|answer| answer.join().unwrap()));
        });
    }
    // A fingerprint belongs to one text: an answer names the weights that made it.
    let fingerprints: BTreeSet<_> = seen.iter().map(|(fingerprint, _)| fingerprint).collect();
    assert_eq!(fingerprints.len(), seen.len(), "one fingerprint has two texts: {seen:?}");
    train.signal(Signal::INT);
    let _ = train.finish().failed(130, &[]);
}
