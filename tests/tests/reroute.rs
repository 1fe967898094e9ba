//! `route_every`: paths within a text are chosen as by `evaluate --reroute`, for every router.
#![allow(clippy::unwrap_used)]

use std::fs;

use dipaco_shards::TokenSet;
use dipaco_tests::fixtures::corpus;
use dipaco_tests::http::{get, post};
use dipaco_tests::run::{Run, Server, trained};
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
fn sequences(run: &Run, routing: &str) -> Vec<(u32, Vec<u32>)> {
    let mut sequences = Vec::new();
    for path in 0..4 {
        let file = TokenSet::open(run.file(&format!("{routing}/validation/path-{path:03}.json"))).unwrap();
        for document in 0..file.documents() {
            let tokens = file.document(document).to_vec();
            let counted = tokens.chunks(SEQUENCE).filter(|sequence| sequence.len() > PREFIX);
            sequences.extend(counted.map(|sequence| (path, sequence.to_vec())));
        }
    }
    sequences
}

/// The row of a model in what `evaluate --json` printed.
fn row(evaluated: &Value, model: &str) -> Value {
    let rows = evaluated.as_array().unwrap();
    rows.iter().find(|row| row["model"] == model).unwrap_or_else(|| panic!("no row {model}")).clone()
}

/// Scores all sequences with these fields of a request, and compares them with a row of the evaluation. Returns the number of
/// changes of paths.
fn compare(
    server: &Server,
    sequences: &[(u32, Vec<u32>)],
    fields: impl Fn(u32) -> Value,
    expected: &Value,
) -> u64 {
    let (mut sum, mut count, mut changes) = (0.0, 0, 0);
    for (path, tokens) in sequences {
        let mut ask = json!({
            "prompt": tokens, "max_tokens": 0, "echo": true, "logprobs": 0, "return_route": true,
        });
        ask.as_object_mut().unwrap().extend(fields(*path).as_object().unwrap().clone());
        let answer = post(&server.address, "/v1/completions", &ask).json();
        let choice = &answer["choices"][0];
        let scores = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert_eq!(scores.len(), tokens.len());
        sum -= scores[PREFIX..].iter().filter_map(Value::as_f64).sum::<f64>();
        count += scores.len() - PREFIX;
        changes += choice["dipaco"]["rerouted"].as_u64().unwrap();
    }
    assert_eq!(expected["tokens_counted"], count);
    let mean = sum / count as f64;
    let theirs = expected["nll_sum"].as_f64().unwrap() / count as f64;
    assert!((mean - theirs).abs() < 1e-5, "served {mean}, evaluated {theirs}");
    changes
}

/// Asks for the path of the document, and then for a new path every W tokens.
fn rerouted(path: u32) -> Value {
    json!({"path": path, "route_every": EVERY})
}

/// The run's own router chooses within a text, without a transformer router: serving has the scores of the evaluation.
/// `header` are parts of the router's header.
fn own_router_serves_as_it_evaluates(run: &Run, routing: &str, header: [&str; 2]) {
    let router = fs::read(run.file(&format!("{routing}/router.bin"))).unwrap();
    let router = String::from_utf8_lossy(&router);
    assert!(header.iter().all(|part| router.contains(part)), "the router is another than {header:?}");
    let words = format!("evaluate --route-window --reroute {EVERY} --reroute-by features --json");
    let evaluated = run.dipaco(&words).succeeded().json();
    let names: Vec<&Value> = evaluated.as_array().unwrap().iter().map(|row| &row["model"]).collect();
    let by_features = format!("re-routed every {EVERY} by features");
    assert_eq!(names, ["seed", "routed", "routed by window", &by_features]);

    let server = run.serve("--set serve.reroute_by=features --set serve.kv_type=f32");
    let info = get(&server.address, "/info").json();
    assert_eq!((&info["reroutes"], &info["reroute_by"]), (&true.into(), &"features".into()));
    let (texts, expected) = (sequences(run, routing), row(&evaluated, &by_features));
    let changes = compare(&server, &texts, rerouted, &expected);
    assert_eq!(expected["reroute"]["switches"], changes);
    assert!(changes > 10, "the paths were meant to change: {changes}");
    // A prompt without a path is routed by its own first tokens, as a window of the evaluation.
    let none = compare(&server, &texts, |_| json!({}), &row(&evaluated, "routed by window"));
    assert_eq!(none, 0);
}

#[test]
fn centroids_choose_paths_within_a_text() {
    own_router_serves_as_it_evaluates(trained(), "routing", [r#""kind":"kmeans""#, r#""features":"lsa""#]);
}

#[test]
fn features_of_the_seed_and_product_kmeans_choose_paths_within_a_text() {
    let run = Run::new();
    let _ = run.prepare(corpus()).succeeded();
    let _ = run.dipaco("seed").succeeded();
    let words = "--set routing.features=seed --set routing.kind=product-kmeans";
    let _ = run.dipaco(&format!("route fit {words}")).succeeded();
    let _ = run.dipaco("route assign").succeeded();
    let _ = run.dipaco("train --workers 2").succeeded();
    let header = [r#""kind":"product-kmeans""#, r#""features":"seed""#];
    own_router_serves_as_it_evaluates(&run, "routing", header);
}

#[test]
fn a_classifier_chooses_paths_within_a_text() {
    let run = untrained();
    let phase = "--set routing.phases.0.round=1 --set routing.overlap=3";
    let _ = run.train(&format!("{phase} --workers 2")).finish().succeeded();
    let header = [r#""kind":"discriminative""#, r#""features":"lsa""#];
    own_router_serves_as_it_evaluates(&run, "routing/phase-1", header);
}

#[test]
fn a_scored_text_has_the_scores_of_the_evaluation() {
    let run = with_transformer();
    // One command compares all ways to choose paths.
    let words = format!(
        "evaluate --route-window --reroute {EVERY} --reroute-by features --reroute-by transformer --json"
    );
    let evaluated = run.dipaco(&words).succeeded().json();
    let names: Vec<&Value> = evaluated.as_array().unwrap().iter().map(|row| &row["model"]).collect();
    let name = format!("re-routed every {EVERY}");
    assert_eq!(names, ["seed", "routed", "routed by window", &format!("{name} by features"), &name]);
    let expected = row(&evaluated, &name);

    // The evaluation does not round keys and values.
    let server = run.serve("--set serve.kv_type=f32");
    assert_eq!(get(&server.address, "/info").json()["reroutes"], true);
    let changes = compare(&server, &sequences(&run, "routing"), rerouted, &expected);
    assert_eq!(expected["reroute"]["switches"], changes);
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
    drop(server);

    // A router of another seed is refused before another model is evaluated.
    let header = run.file("routing/transformer.json");
    let mut other: Value = serde_json::from_slice(&fs::read(&header).unwrap()).unwrap();
    other["fitted_on"]["seed_hash"] = "another".into();
    fs::write(&header, other.to_string()).unwrap();
    let refused = run.dipaco("evaluate --reroute 16").failed(1, &["the transformer router's seed model"]);
    assert!(!refused.stderr.contains("sequences"), "{refused:?}");
}

#[test]
fn a_run_without_a_transformer_router_refuses() {
    let run = trained();
    let says = ["dipaco route fit-transformer", "serve.reroute_by"];
    let _ = run.dipaco("serve --set serve.route_every=16").failed(1, &says);
    let server = run.serve("");
    let ask = json!({"prompt": "a", "max_tokens": 1, "route_every": 16});
    let error = post(&server.address, "/v1/completions", &ask).error(400);
    assert_eq!(error["param"], "route_every");
    assert!(says.iter().all(|words| error["message"].as_str().unwrap().contains(words)), "{error}");
}
