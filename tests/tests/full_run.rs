//! Every step of a run through the real binary, from text to HTTP.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use dipaco_tests::fixtures::{corpus, pages};
use dipaco_tests::http::{get, post};
use dipaco_tests::process::{Process, Signal, output};
use dipaco_tests::run::{Run, snapshot, trained};
use serde_json::{Value, json};

#[test]
fn a_completed_step_reports_it_and_changes_nothing() {
    let run = trained().copy();
    let before = snapshot(&run.directory());
    let _ = run.prepare(corpus()).succeeded().says("nothing to do");
    let _ = run.dipaco("seed").succeeded().says("was there already");
    let _ = run.dipaco("route fit").succeeded().says("was there already");
    let _ = run.dipaco("route assign").succeeded().says("were there already");
    assert_eq!(snapshot(&run.directory()), before);
}

#[test]
fn a_completed_training_trains_no_further() {
    let run = trained().copy();
    let weights = run.weights();
    let _ = run.dipaco("train").succeeded().says("all 3 rounds of 5 inner steps have been trained");
    let summary = run.dipaco("train --resume --workers 2 --json").succeeded().json();
    assert_eq!(summary["finished"], true);
    assert_eq!(summary["new_rounds"], 0.0);
    assert_eq!(run.weights(), weights);
}

#[test]
fn the_router_of_trained_paths_stays() {
    let run = trained().copy();
    let before = snapshot(&run.file("routing"));
    let says = ["router.bin", "the trained paths", "another run directory"];
    let _ = run.dipaco("route fit --set routing.seed=9").failed(1, &says);
    assert_eq!(snapshot(&run.file("routing")), before);
    // The refused setting is not saved with the run.
    let _ = run.dipaco("route fit").succeeded().says("was there already");
    // A lost router is fitted again.
    fs::remove_file(run.file("routing/router.bin")).unwrap();
    let _ = run.dipaco("route fit").succeeded();
    assert_eq!(snapshot(&run.file("routing")), before);
}

#[test]
fn the_tokenizer_of_trained_paths_stays() {
    let run = trained().copy();
    let tokenizer = run.file("data/tokenizer.json");
    let before = fs::read(&tokenizer).unwrap();
    let says = ["another run directory", "prepare.tokenizer=", "data/tokenizer.json"];
    let _ = run.prepare([pages()]).failed(1, &says);
    assert_eq!(fs::read(&tokenizer).unwrap(), before);
    let _ = run.dipaco("evaluate").succeeded();
    // A lost tokenizer comes back with the text that it was trained on.
    fs::remove_file(&tokenizer).unwrap();
    let _ = run.prepare(corpus()).succeeded();
    assert_eq!(fs::read(&tokenizer).unwrap(), before);

    // Without trained paths the text decides.
    let run = Run::new();
    let _ = run.prepare([pages()]).succeeded();
    let _ = run.prepare(corpus()).succeeded();
    assert_eq!(fs::read(run.file("data/tokenizer.json")).unwrap(), before);
}

#[test]
fn every_step_reports_its_results_as_json() {
    let run = trained();
    let mut prepare = run.command("prepare --json");
    prepare.args(corpus());
    let report = output(prepare).succeeded().json();
    assert_eq!(report["skipped"], true);
    assert_eq!(report["tokenizer"]["vocab_size"], 384);
    let documents = report["train"]["documents"].as_u64().unwrap();
    assert!(documents > 100, "{report}");

    let seed = run.dipaco("seed --json").succeeded().json();
    assert_eq!((&seed["finished"], &seed["step"], &seed["new_steps"]), (&json!(true), &json!(40), &json!(0)));
    let router = run.dipaco("route fit --json").succeeded().json();
    assert_eq!((&router["paths"], &router["new"]), (&json!(4), &json!(false)));
    assert_eq!(router["fitted_on"]["documents"], documents);

    let shards = run.dipaco("route assign --json").succeeded().json();
    let count = |shards: &Value| -> u64 {
        shards["shards"].as_array().unwrap().iter().map(|shard| shard["documents"].as_u64().unwrap()).sum()
    };
    assert_eq!(count(&shards["train"]), documents, "every document goes to one path");
    assert_eq!(count(&shards["validation"]), report["validation"]["documents"].as_u64().unwrap());

    let statistics = run.dipaco("route inspect --json").succeeded().json();
    assert_eq!(statistics["rows"].as_array().unwrap().len(), 4);
    let status = run.status();
    let steps: Vec<_> =
        status["training"]["paths"].as_array().unwrap().iter().map(|path| &path["steps"]).collect();
    assert_eq!(steps, [15, 15, 15, 15]);
    let accounts = run.dipaco("status --data --json").succeeded().json();
    assert_eq!(accounts["wrong"], json!([]));
    for account in accounts["paths"].as_array().unwrap() {
        assert_eq!((&account["counted_steps"], &account["waiting_steps"]), (&json!([15, 15]), &json!(0)));
        assert_eq!(account["sequences"], 15 * 4);
    }
    let _ = run.dipaco("status --data").succeeded().says("every inner step counts once");
    assert_eq!(status["training"]["modules"].as_array().unwrap().len(), 4);
}

#[test]
fn the_routed_model_has_learnt_from_its_text() {
    let run = trained().copy();
    let rows = run.dipaco("evaluate --json").succeeded().json();
    let perplexity = |model: &str| {
        let row = rows.as_array().unwrap().iter().find(|row| row["model"] == model).unwrap();
        assert_eq!(row["prefix_tokens"], 32);
        row["perplexity"].as_f64().unwrap()
    };
    // The perplexity of an untrained model is the size of its vocabulary.
    assert!(perplexity("seed").is_finite() && perplexity("seed") < 384.0, "{rows}");
    assert!(perplexity("routed") < perplexity("seed"), "{rows}");
    let path = run.dipaco("evaluate --path 1 --json").succeeded().json();
    assert!(path[0]["perplexity"].as_f64().unwrap() < 384.0, "{path}");
    // Other uses of the same paths: no choice of a path for each document is better than the best one in hindsight.
    let others =
        run.dipaco("evaluate --no-seed --ensemble 2 --oracle --random-path --json").succeeded().json();
    let loss = |model: &str| {
        let row = others.as_array().unwrap().iter().find(|row| row["model"] == model).unwrap();
        assert_eq!(row["tokens_counted"], rows[0]["tokens_counted"]);
        row["nll_sum"].as_f64().unwrap()
    };
    assert!(others.as_array().unwrap().iter().all(|row| row["model"] != "seed"), "{others}");
    let best = loss("best path in hindsight");
    assert!(best <= loss("routed") && best < loss("random path") && loss("ensemble of 2") > 0.0, "{others}");
    let _ = run.dipaco("evaluate --soup --path 1").failed(2, &["--soup", "--path"]);
    let _ = run.dipaco("evaluate --ensemble 2 --ensemble-temperature 0").failed(2, &["above 0"]);
    let _ = run.dipaco("evaluate --path 4").failed(2, &["no path 4", "paths 0 to 3"]);
}

/// The values of a safetensors file of f32 tensors, behind its header.
fn values(bytes: &[u8]) -> (&[u8], Vec<f32>) {
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let (header, values) = bytes.split_at(8 + length);
    (header, values.chunks(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect())
}

#[test]
fn the_mean_of_all_paths_is_that_of_their_exports() {
    let run = trained();
    let rows = run.dipaco("evaluate --soup --json").succeeded().json();
    let soup = rows.as_array().unwrap().iter().find(|row| row["model"] == "mean of all paths").unwrap();
    // The mean of the four exported models, imported into a run of its own.
    let other = Run::new();
    let mut mean = Vec::new();
    let folder = |path: u32| other.folder().join(format!("path-{path}"));
    for path in 0..4 {
        let _ = run.dipaco(&format!("export --path {path} --out {}", folder(path).display())).succeeded();
        let bytes = fs::read(folder(path).join("model.safetensors")).unwrap();
        let (_, values) = values(&bytes);
        mean.resize(values.len(), 0.0);
        mean.iter_mut().zip(values).for_each(|(mean, value)| *mean += f64::from(value) / 4.0);
    }
    let file = folder(0).join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    let mut joined = values(&bytes).0.to_vec();
    joined.extend(mean.iter().flat_map(|value| (*value as f32).to_le_bytes()));
    fs::write(&file, joined).unwrap();
    let import = format!("seed --import {} --set seed_model.steps=0", folder(0).display());
    let _ = other.dipaco(&import).succeeded();
    let _ = other.prepare(corpus()).succeeded();
    let _ = other.dipaco("seed").succeeded();
    let dense = other.dipaco("evaluate --seed --json").succeeded().json();
    for key in ["nll_sum", "tokens_counted"] {
        assert_eq!(dense[0][key], soup[key], "{key}: {dense} {soup}");
    }
}

#[test]
fn the_served_model_answers_and_the_exported_path_is_there() {
    let run = trained();
    let server = run.serve("");
    assert_eq!(get(&server.address, "/health").status, 200);
    let ask = json!({"model": "e2e", "prompt": "fn main() {", "max_tokens": 8, "temperature": 0});
    let answer = post(&server.address, "/v1/completions", &ask);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 8);
    let again = post(&server.address, "/v1/completions", &ask);
    assert_eq!(answer.json()["choices"], again.json()["choices"], "greedy answers repeat themselves");
    assert!(answer.head.contains("x-dipaco-path: "), "{answer:?}");
    let route = post(&server.address, "/v1/route", &json!({"prompt": "fn main() {"}));
    let path = route.json()["path"].as_u64().unwrap_or_else(|| panic!("{route:?}"));
    assert!(answer.head.contains(&format!("x-dipaco-path: {path}")), "{answer:?} {route:?}");
    let metrics = get(&server.address, "/metrics");
    assert!(metrics.status == 200 && metrics.body.contains("dipaco_"), "{metrics:?}");

    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("path-1");
    let words = format!("export --path 1 --out {}", out.display());
    let _ = run.dipaco(&words).succeeded().says("path 1");
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        assert!(out.join(file).exists(), "{file}");
    }
    let _ = run.dipaco(&words).failed(2, &["config.json is there already", "--force"]);
}

#[test]
fn an_interrupted_seed_ends_with_the_weights_of_an_uninterrupted_one() {
    let long = "seed --json --set seed_model.steps=250 --set seed_model.checkpoint_every=5";
    let whole = Run::new();
    let _ = whole.prepare(corpus()).succeeded();
    let parts = whole.copy();
    let seed = whole.dipaco(long).succeeded().json();
    assert_eq!(seed["new_steps"], 250);

    let mut process = Process::start(parts.command(long));
    let checkpoint = parts.file("store/seed");
    process.until("its first checkpoint", || checkpoint.exists());
    process.signal(Signal::INT);
    let output = process.finish().failed(130, &["interrupted"]);
    let first = output.json()["step"].as_u64().unwrap();
    assert!(first < 250, "{output:?}");
    let rest = parts.dipaco(long).succeeded().json();
    assert_eq!(rest["new_steps"].as_u64().unwrap(), 250 - first);
    assert_eq!(parts.weights(), whole.weights());
    assert_eq!(rest["validation_loss"], seed["validation_loss"]);
}

#[test]
fn a_killed_seed_goes_on_with_its_settings() {
    // The first seed of a run, and one that takes the place of another.
    for is_first in [true, false] {
        let run = Run::new();
        let _ = run.prepare(corpus()).succeeded();
        let mut long = "seed --set seed_model.steps=250 --set seed_model.checkpoint_every=5".to_owned();
        if !is_first {
            let _ = run.dipaco("seed --set seed_model.steps=2").succeeded();
            long += " --restart";
        }
        // The files of the snapshots: those of another seed go when the manifest names the new one.
        let files = |folder: PathBuf| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<BTreeSet<_>>()
        };
        let snapshots = || files(run.file("store/seed")).into_iter().flat_map(files).collect::<BTreeSet<_>>();
        let before = snapshots();
        let mut process = Process::start(run.command(&long));
        process.until("its first checkpoint", || {
            let now = snapshots();
            !now.is_empty() && now.is_disjoint(&before)
        });
        process.signal(Signal::KILL);
        let _ = process.finish().killed();
        assert_eq!(run.dipaco("seed --json").succeeded().json()["step"], 250);
    }
}

#[test]
fn tokens_for_single_workers_are_issued_and_revoked() {
    let run = trained().copy();
    let file = run.directory().join("gpu-3.token");
    let _ = run.dipaco(&format!("token issue gpu-3 --days 1 --out {}", file.display())).succeeded();
    assert!(fs::read_to_string(&file).unwrap().starts_with("dipaco1."));
    let _ = run.dipaco("token issue gpu-4 --advertise 10.0.0.1:7440").succeeded().says("dipaco1.");
    let _ = run.dipaco("token issue Not_A_Name").failed(1, &["lower-case letters"]);
    let _ = run.dipaco("token issue gpu-3 --days 0").failed(2, &["--days"]);
    let _ = run.dipaco("token revoke gpu-3").succeeded().says("refused from the next request on");
    let _ = run.dipaco("token revoke gpu-3").succeeded().says("revoked before");
    let _ = run.dipaco("token issue gpu-3").failed(2, &["has been revoked", "another name"]);
}
