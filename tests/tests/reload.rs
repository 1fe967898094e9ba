//! A server and a validation beside a training: both take up new rounds, and the last one.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use dipaco_tests::http::{get, post};
use dipaco_tests::process::{Process, Signal};
use dipaco_tests::run::Run;
use dipaco_tests::training::untrained;
use serde_json::{Value, json};

/// Versions of the weights that the tests wait for.
const VERSIONS: usize = 8;

/// A training of many short rounds, of which some are complete.
fn training(run: &Run, settings: &str) -> Process {
    let endless = "--set train.rounds=100000 --set train.inner_steps=1";
    let mut train = run.train(&format!("--workers 2 {endless} {settings}"));
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
    let all = |choice: &Value| format!("{} {}", choice["text"], choice["logprobs"]["token_logprobs"]);
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

/// The validations that the training has recorded.
fn validations(run: &Run) -> Vec<Value> {
    let lines = fs::read_to_string(run.file("metrics.jsonl")).unwrap();
    // The last line may be incomplete.
    let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == "validated").collect()
}

/// Asserts that the loss on validation text is finite and falls, and that `status` and `plot` show it with its cost.
fn validation_is_shown(run: &Run) {
    let found = validations(run);
    let losses: Vec<f64> = found.iter().map(|event| event["loss"].as_f64().unwrap()).collect();
    assert!(losses.last() < losses.first(), "{losses:?}");
    let (progress, last) = (run.status()["progress"].clone(), found.last().unwrap());
    for key in ["rounds", "loss", "bits_per_byte"] {
        assert_eq!(progress["validation"][key], last[key], "{key}: {progress} {last}");
    }
    assert!(progress["inner_steps"].as_u64() >= last["steps"].as_u64(), "{progress} {last}");
    assert!(progress["tokens"].as_u64() >= last["trained_tokens"].as_u64(), "{progress} {last}");
    assert!(progress["seconds"].as_f64() > Some(0.0), "{progress}");
    assert!(progress["wire_bytes"].as_u64() > Some(10_000), "{progress}");
    let text = run.dipaco("status").succeeded();
    let _ = text.says("training: loss ").says(" on the wire\nvalidation: loss ");
    let _ = run.dipaco("plot").succeeded();
    for against in ["steps", "tokens", "seconds", "bytes"] {
        let chart = fs::read_to_string(run.file(&format!("plots/loss-{against}.svg"))).unwrap();
        assert!(chart.contains("e2e, training") && chart.contains("e2e, validation"), "{against}");
    }
}

#[test]
fn a_server_and_a_validation_beside_a_training_take_up_new_rounds_and_no_answer_fails_or_is_mixed() {
    let run = untrained();
    let mut train = training(&run, "--set train.validate_every=1");
    let server = run.serve("--set serve.reload_seconds=0.05");
    until_many_versions(&server.address, [1; 4], || {});
    train.until("validations of two rounds far apart", || {
        let rounds = |event: Option<&Value>| event.and_then(|event| event["rounds"].as_u64());
        let found = validations(&run);
        rounds(found.first()).is_some_and(|first| rounds(found.last()) > Some(2 * first + 20))
    });
    train.signal(Signal::INT);
    let _ = train.finish().failed(130, &[]);
    validation_is_shown(&run);
}

#[test]
fn the_last_round_of_a_training_is_validated_and_agrees_with_the_evaluation() {
    let run = untrained();
    // So short that no round has its turn before the end.
    let settings = "--set train.rounds=3 --set train.inner_steps=1 --set train.validate_every=100 \
                    --set train.validation_documents=5";
    let _ = run.train(&format!("--workers 2 {settings}")).finish().succeeded();
    let [last] = &validations(&run)[..] else { panic!("{:?}", validations(&run)) };
    assert_eq!((&last["rounds"], &last["steps"]), (&json!(3), &json!(3)));
    let evaluated =
        run.dipaco("evaluate --no-seed --json --set evaluation.max_documents=5").succeeded().json();
    let perplexity = evaluated[0]["perplexity"].as_f64().unwrap();
    assert!((last["loss"].as_f64().unwrap().exp() / perplexity - 1.0).abs() < 1e-9, "{last} {evaluated}");
    assert_eq!(last["bits_per_byte"], evaluated[0]["bits_per_byte"]);
}

#[test]
fn rounds_are_taken_up_under_a_limit_of_one_path() {
    let run = untrained();
    let train = training(&run, "");
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
