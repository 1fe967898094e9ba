//! `route_every`: paths within a text are chosen as by `evaluate --reroute`.
#![allow(clippy::unwrap_used)]

use dipaco_shards::TokenSet;
use dipaco_tests::http::{get, post};
use dipaco_tests::run::Run;
use dipaco_tests::training::untrained;
use serde_json::{Value, json};

/// W.
const EVERY: usize = 16;
/// `sequence_tokens` and the prefix of the evaluation, with the tests' configuration.
const SEQUENCE: usize = 64;
const PREFIX: usize = 32;

/// A trained run with a transformer router of a few steps.
fn with_transformer() -> Run {
    let run = untrained();
    let _ = run.train("--workers 2").finish().succeeded();
    let words = "route fit-transformer --set transformer_router.steps=20 --set transformer_router.schedule.warmup_steps=2";
    let _ = run.dipaco(words).succeeded();
    run
}

/// The sequences of the validation documents, with the paths of their documents.
fn sequences(run: &Run) -> Vec<(u32, Vec<u32>)> {
    let mut sequences = Vec::new();
    for path in 0..4 {
        let file = TokenSet::open(run.file(&format!("routing/validation/path-{path:03}.json"))).unwrap();
        for document in 0..file.documents() {
            let tokens = file.document(document).to_vec();
            let counted = tokens.chunks(SEQUENCE).filter(|sequence| sequence.len() > PREFIX);
            sequences.extend(counted.map(|sequence| (path, sequence.to_vec())));
        }
    }
    sequences
}

#[test]
fn a_scored_text_has_the_scores_of_the_evaluation() {
    let run = with_transformer();
    let evaluated = run.dipaco(&format!("evaluate --reroute {EVERY} --json")).succeeded().json();
    let name = format!("re-routed every {EVERY}");
    let expected =
        evaluated.as_array().unwrap().iter().find(|row| row["model"] == name.as_str()).unwrap().clone();

    // The evaluation does not round keys and values.
    let server = run.serve("--set serve.kv_type=f32");
    assert_eq!(get(&server.address, "/info").json()["reroutes"], true);
    let (mut sum, mut count, mut changes) = (0.0, 0, 0);
    for (path, tokens) in sequences(&run) {
        let ask = json!({
            "prompt": tokens, "path": path, "route_every": EVERY, "max_tokens": 0, "echo": true, "logprobs": 0,
            "return_route": true,
        });
        let answer = post(&server.address, "/v1/completions", &ask).json();
        let choice = &answer["choices"][0];
        let scores = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert_eq!(scores.len(), tokens.len());
        sum -= scores[PREFIX..].iter().filter_map(Value::as_f64).sum::<f64>();
        count += scores.len() - PREFIX;
        changes += choice["dipaco"]["rerouted"].as_u64().unwrap();
    }
    assert_eq!(expected["tokens_counted"], count);
    assert_eq!(expected["reroute"]["switches"], changes);
    let mean = sum / count as f64;
    let theirs = expected["nll_sum"].as_f64().unwrap() / count as f64;
    assert!((mean - theirs).abs() < 1e-5, "served {mean}, evaluated {theirs}");
    let metrics = get(&server.address, "/metrics").body;
    assert!(
        metrics.contains(&format!("dipaco_reroutes_total{{model_name=\"e2e\"}} {changes}\n")),
        "{metrics}"
    );

    // Without the field a pinned path stays, and the other requests follow the configuration.
    let ask = json!({"prompt": "fn main() {", "max_tokens": 50, "ignore_eos": true, "seed": 1, "return_route": true});
    let plain = post(&server.address, "/v1/completions", &ask).json()["choices"].clone();
    drop(server);
    let server = run.serve(&format!("--set serve.kv_type=f32 --set serve.route_every={EVERY}"));
    let mut asked = ask.clone();
    asked["route_every"] = 0.into();
    assert_eq!(post(&server.address, "/v1/completions", &asked).json()["choices"], plain);
    asked["route_every"] = EVERY.into();
    let rerouted = post(&server.address, "/v1/completions", &asked).json()["choices"].clone();
    assert_eq!(post(&server.address, "/v1/completions", &ask).json()["choices"], rerouted);
}

#[test]
fn a_run_without_a_transformer_router_refuses() {
    let run = dipaco_tests::run::trained();
    let _ = run.dipaco("serve --set serve.route_every=16").failed(1, &["dipaco route fit-transformer"]);
    let server = run.serve("");
    let ask = json!({"prompt": "a", "max_tokens": 1, "route_every": 16});
    let error = post(&server.address, "/v1/completions", &ask).error(400);
    assert_eq!(error["param"], "route_every");
    assert!(error["message"].as_str().unwrap().contains("dipaco route fit-transformer"), "{error}");
}
