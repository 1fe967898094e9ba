//! Unsuitable text, routers and labels: each error names a remedy, and usable input is used.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

use dipaco_tests::process::{dipaco, output};
use dipaco_tests::run::{Run, routed, trained};

/// A file of C4's form with these texts as its documents.
fn documents(run: &Run, name: &str, texts: impl IntoIterator<Item = String>) -> PathBuf {
    let lines: String = texts
        .into_iter()
        .enumerate()
        .map(|(i, text)| format!("{}\n", serde_json::json!({ "text": text, "url": format!("{name}/{i}") })))
        .collect();
    let file = run.folder().join(name);
    fs::write(&file, lines).unwrap();
    file
}

/// Prepares these texts, with a tokenizer trained on them, and pretrains the seed.
fn seeded(texts: impl IntoIterator<Item = String>) -> Run {
    let run = Run::new();
    let train = documents(&run, "train.jsonl", texts);
    let validation = documents(&run, "validation.jsonl", (0..20).map(|i| format!("{i} is held out")));
    let mut command = run.command("prepare --set prepare.vocab_size=280");
    command.arg(train).arg("--validation").arg(validation);
    let _ = output(command).succeeded();
    let _ = run.dipaco("seed").succeeded();
    run
}

fn sentence(i: usize) -> String {
    format!("The {i}th of all sentences speaks of {} and of {}.", i * i % 97, i * 31 % 89)
}

#[test]
fn fewer_documents_than_paths_are_refused() {
    let run = seeded((0..3).map(sentence));
    let _ = run.dipaco("route fit").failed(1, &["3", "4", "paths"]);
}

#[test]
fn identical_documents_are_refused() {
    let run = seeded((0..60).map(|_| sentence(1)));
    let _ = run.dipaco("route fit").failed(1, &["all 60 points are the same", "seed model"]);
}

#[test]
fn a_dominant_domain_is_reported_and_every_path_still_gets_text() {
    // Nearly all documents are the same sentence with different numbers.
    let run = seeded((0..400).map(|i| match i % 40 {
        0 => format!("{}{}", "fn main() { }\n".repeat(1 + i / 40), sentence(i)),
        1 => format!("{}{}", "0123456789 ".repeat(1 + i / 40), sentence(i)),
        2 => format!("{}{}", "== ?! ".repeat(3 + i / 40), sentence(i)),
        _ => format!("The sun has risen over the hills for day number {}.", i % 7),
    }));
    let said = run.dipaco("route fit").succeeded().stderr;
    assert!(said.contains("of the 400 documents that the router is fitted on"), "{said}");
    let _ = run.dipaco("route assign").succeeded();
    let shards = run.dipaco("route inspect --json").succeeded().json();
    let sizes: Vec<u64> =
        shards["rows"].as_array().unwrap().iter().map(|row| row["documents"].as_u64().unwrap()).collect();
    assert!(sizes.len() == 4 && sizes.iter().all(|&size| size > 0), "{sizes:?}");
    // The text says what the JSON says.
    let mut text = run.dipaco("route inspect").succeeded();
    text = text.says(&format!("{:.2} bits per token", shards["token_gain"].as_f64().unwrap()));
    let warnings = shards["warnings"].as_array().unwrap();
    assert!(!warnings.is_empty());
    for warning in warnings {
        text = text.says(&format!("warning: {}", warning.as_str().unwrap()));
    }
}

#[test]
fn a_router_of_another_seed_is_refused_before_anything_is_written() {
    let run = routed().copy();
    let other = routed().copy();
    fs::remove_dir_all(other.file("store")).unwrap();
    fs::remove_dir_all(other.file("routing")).unwrap();
    let _ = other.dipaco("seed --set seed_model.adamw.learning_rate=0.003").succeeded();
    let _ = other.dipaco("route fit").succeeded();
    fs::copy(other.file("routing/router.bin"), run.file("routing/router.bin")).unwrap();
    let shards = run.file("routing/train/shards.json");
    fs::remove_file(&shards).unwrap();
    let _ = run.dipaco("route assign").failed(1, &["the router's seed model", "run route fit again"]);
    assert!(!shards.exists());
}

#[test]
fn labels_of_other_text_are_refused() {
    let run = trained();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("labels.jsonl");
    let evaluate = |words: &str| {
        let mut command = run.command(&format!("evaluate --set evaluation.max_documents=4 {words}"));
        command.arg("--labels").arg(&file);
        output(command)
    };
    let _ = evaluate("").failed(1, &["labels.jsonl"]);
    fs::write(&file, "{\"url\": \"a\", \"domain\": \"b\"}\n{\"url\": 3}\n").unwrap();
    let _ = evaluate("").failed(1, &["labels.jsonl", "line 2"]);
    fs::write(&file, "{\"url\": \"http://elsewhere\", \"domain\": \"news\"}\n").unwrap();
    // The text of the run is plain, so it has no addresses.
    let _ = evaluate("").failed(1, &["labels.jsonl", "no document of the text has one", "`url`"]);
    let text = folder.path().join("text.jsonl");
    fs::write(&text, "{\"url\": \"http://here\", \"text\": \"c\"}\n").unwrap();
    let words = format!("--labelled-text {}", text.display());
    let _ = evaluate(&words).failed(1, &["labels.jsonl", "http://elsewhere", "http://here"]);
    let _ = dipaco("evaluate --labels").failed(2, &["--labels"]);
}
