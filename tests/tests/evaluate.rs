//! `evaluate`: what it compares, what it refuses, and how it ends.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use dipaco_tests::fixtures::{corpus, root};
use dipaco_tests::process::{Output, Process, Signal, dipaco, output};
use dipaco_tests::run::{Run, routed, trained};
use serde_json::{Value, json};

#[test]
fn a_dense_run_is_evaluated_with_the_settings_of_the_run_beside_it() {
    let (run, dense) = (trained(), Run::new());
    let one_path = r#"topology.levels=[{modules=1,blocks="0..2",embedding=true,head=true}]"#;
    // Its context is twice that of the other run.
    let mut prepare = dense.command(&format!("prepare --set {one_path} --set model.context=128"));
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
    // Where no length is set, both read sequences that both can read.
    let rows = compare("");
    assert_eq!(
        (&rows[0]["sequence_tokens"], &rows[1]["sequence_tokens"]),
        (&json!(64), &json!(64)),
        "{rows}"
    );
    assert_eq!(rows[0]["tokens_counted"], rows[1]["tokens_counted"]);
}

/// The loss on the first row of `evaluate --json` with these words.
fn loss(run: &Run, words: &str) -> Value {
    let rows = run.dipaco(&format!("evaluate --json {words}")).succeeded().json();
    rows[0]["nll_sum"].clone()
}

#[test]
fn with_early_stopping_a_dense_run_is_compared_at_its_best_version_too() {
    let (run, dense) = (trained(), Run::new());
    let one_path = r#"topology.levels=[{modules=1,blocks="0..2",embedding=true,head=true}]"#;
    // A rate at which the outer step makes the seed worse, so that the seed stays the best version.
    let outer = "--set outer.nesterov.learning_rate=50 --set outer.nesterov.momentum=0";
    let mut prepare = dense.command(&format!("prepare --set {one_path} --set train.rounds=1 {outer}"));
    prepare.args(corpus());
    let _ = output(prepare).succeeded();
    dense.seed_and_route();
    let _ = dense.dipaco("train --workers 1").succeeded();
    let (best, last) = (loss(&dense, "--path 0 --early-stopping"), loss(&dense, "--path 0"));
    assert!(best.as_f64() < last.as_f64(), "{best} {last}");

    let words = format!("--no-seed --dense {}", dense.directory().display());
    assert_eq!(loss(run, &format!("{words} --early-stopping")), best);
    assert_eq!(loss(run, &words), last);
    let names = run.dipaco(&format!("evaluate {words} --early-stopping")).succeeded();
    let _ = names.says("\ndense, early stopping ").says("\nrouted, early stopping ");
}

#[test]
fn early_stopping_tells_what_it_can_not_choose() {
    let run = trained();
    let rows = run.dipaco("evaluate --early-stopping --json").succeeded();
    let names = rows.json().as_array().unwrap().iter().map(|row| row["model"].clone()).collect::<Vec<_>>();
    assert_eq!(names, ["seed", "routed, early stopping"], "the seed has one version");
    let status = run.status();
    let paths = status["training"]["paths"].as_array().unwrap();
    let lacking = paths.iter().filter(|path| path["best"].is_null()).count();
    let told = format!("{lacking} of 4 paths have no held-out loss");
    assert_eq!(rows.stderr.contains(&told), lacking > 0, "{rows:?}");

    let run = routed().copy();
    let _ = run.dipaco("train --workers 1 --set train.rounds=1 --set train.holdout_sequences=0").succeeded();
    let says = ["no path of the run", "has a held-out loss", "--early-stopping", "train.holdout_sequences"];
    let _ = run.dipaco("evaluate --early-stopping").failed(1, &says);
    let folder = run.folder().join("exported");
    let export = format!("export --early-stopping --path 0 --out {}", folder.display());
    let _ = run.dipaco(&export).failed(1, &says);
    let _ = run.dipaco("evaluate --no-seed").succeeded();
}

#[test]
fn a_ranking_without_a_prompt_says_why() {
    let output = trained().dipaco("evaluate --no-seed --rank 500").succeeded();
    let row = output.stdout.lines().nth(1).unwrap();
    assert!(row.starts_with("routed") && row.ends_with("0 of 0"), "{output:?}");
    for says in
        ["no continuation is ranked", "a document of 65 tokens", "500 documents, with labels of one domain"]
    {
        assert!(output.stderr.contains(says), "{output:?}");
    }
}

#[test]
fn a_dense_run_of_other_text_is_refused() {
    let (run, other) = (trained(), Run::new());
    let mut prepare = other.command("prepare --set prepare.validation_fraction=0.1");
    prepare.args(corpus());
    let _ = output(prepare).succeeded();
    let own_text = format!("--set run.data={}", run.file("data").display());
    let says =
        ["from other files, other text or another tokenizer", "try: compare runs of the same", &own_text];
    let _ = run.dipaco(&format!("evaluate --dense {}", other.directory().display())).failed(2, &says);
}

fn nothing_evaluated(output: Output) {
    assert!(!output.stderr.contains("sequences"), "{output:?}");
}

#[test]
fn what_a_model_lacks_is_told_before_another_one_is_evaluated() {
    nothing_evaluated(routed().dipaco("evaluate").failed(1, &["have not been trained", "dipaco train"]));
    let reroute = trained().dipaco("evaluate --reroute 64");
    nothing_evaluated(reroute.failed(1, &["there is no transformer router", "fit-transformer"]));
}

#[test]
fn what_does_not_fit_a_model_is_told_before_another_one_is_evaluated() {
    let ranked = trained().dipaco("evaluate --rank 2 --set evaluation.sequence_tokens=60");
    let says = ["evaluation.sequence_tokens is 60", "prompt and continuation have 64 tokens"];
    nothing_evaluated(ranked.failed(2, &says));

    let run = trained().copy();
    fs::remove_file(run.file("routing/validation/path-003.json")).unwrap();
    let says = ["the validation shard of path 3 can't be used", "path-003.json"];
    nothing_evaluated(run.dipaco("evaluate").failed(1, &says));

    let (run, other) = (trained().copy(), routed().copy());
    for folder in ["store", "routing"] {
        fs::remove_dir_all(other.file(folder)).unwrap();
    }
    let _ = other.dipaco("seed --set seed_model.adamw.learning_rate=0.003").succeeded();
    let _ = other.dipaco("route fit").succeeded();
    fs::copy(other.file("routing/router.bin"), run.file("routing/router.bin")).unwrap();
    for by_own_tokens in ["--route-window", "--ensemble 2", "--reroute 16 --reroute-by features"] {
        let refused = run.dipaco(&format!("evaluate {by_own_tokens}"));
        nothing_evaluated(refused.failed(1, &["the router's seed model", "run route fit again"]));
    }
}

#[test]
fn an_ensemble_of_more_paths_than_the_run_has_is_refused() {
    let refused = trained().dipaco("evaluate --ensemble 2 --ensemble 9");
    let _ = refused.failed(2, &["--ensemble 9: this run has 4 paths", "try: give at most 4"]);
}

/// A run of a few steps on text of two domains, and the file with its labels.
fn labelled() -> (Run, PathBuf) {
    let run = Run::new();
    let (text, labels) = (run.folder().join("text.jsonl"), run.folder().join("labels.jsonl"));
    let (mut documents, mut domains) = (String::new(), String::new());
    for i in 0..120 {
        let domain = ["river", "stone"][i % 2];
        let url = format!("http://{domain}/{i}");
        let sentence =
            |j: usize| format!("The {domain} number {} lies {} miles from here. ", i * j % 83, j * 31 % 97);
        let content: String = (1..16).map(sentence).collect();
        documents += &format!("{}\n", json!({ "url": url, "text": content }));
        domains += &format!("{}\n", json!({ "url": url, "domain": domain }));
    }
    fs::write(&text, documents).unwrap();
    fs::write(&labels, domains).unwrap();
    let short = "--set seed_model.steps=4 --set train.rounds=1 --set train.inner_steps=1";
    let mut prepare = run.command(&format!("prepare {short} --set prepare.validation_fraction=0.2"));
    prepare.arg(&text);
    let _ = output(prepare).succeeded();
    run.seed_and_route();
    let _ = run.dipaco("train --workers 1").succeeded();
    (run, labels)
}

/// Adds the names of all fields of `value`, as the documentation writes them.
fn add_names(value: &Value, place: &str, names: &mut BTreeSet<String>) {
    if let Some(fields) = value.as_object() {
        for (field, value) in fields {
            let name = if place.is_empty() { field.clone() } else { format!("{place}.{field}") };
            add_names(value, &name, names);
            names.insert(name);
        }
    }
    for element in value.as_array().into_iter().flatten() {
        add_names(element, &format!("{place}[]"), names);
    }
}

#[test]
fn the_documentation_has_every_field_of_the_results() {
    let (run, labels) = labelled();
    let words = "evaluate --json --documents --rank 2 --reroute 40 --reroute-by features --labels";
    let rows = run.dipaco(&format!("{words} {}", labels.display())).succeeded().json();
    let mut found = BTreeSet::new();
    for row in rows.as_array().unwrap() {
        add_names(row, "", &mut found);
    }
    let page = fs::read_to_string(root().join("docs/training.md")).unwrap();
    let (_, section) = page.split_once("## The fields of `evaluate --json`\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    // Each name stands between two backticks.
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    assert_eq!(names.map(str::to_owned).collect::<BTreeSet<String>>(), found);
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
fn an_interrupted_evaluation_keeps_its_finished_rows() {
    // So many rows that the signal finds it at work.
    let words = format!("evaluate {}", "--ensemble 4 ".repeat(100));
    for signal in [Signal::INT, Signal::TERM] {
        let run = trained().copy();
        let recorded = || {
            let events = fs::read_to_string(run.file("metrics.jsonl")).unwrap();
            events.matches(r#""event":"evaluated""#).count()
        };
        // The other tests evaluate the run, too.
        let before = recorded();
        let mut process = Process::start(run.command(&words));
        process.until("a row is recorded", || recorded() > before);
        process.signal(signal);
        let output = process.finish().failed(130, &["interrupted; the rows above are finished"]);
        assert!(!output.stderr.contains("repeat the command to continue"), "{output:?}");
        let rows = output.stdout.lines().skip(1).take_while(|line| !line.is_empty()).count();
        assert_eq!(rows, recorded() - before, "{output:?}");
        let _ = output.says("model ").says("\nseed ");
    }
}
