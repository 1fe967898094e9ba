//! Extending a finished run through the real binary: new paths for new text, old paths bit for bit.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use dipaco_tests::fixtures::{corpus, fixture, root};
use dipaco_tests::http::{get, post};
use dipaco_tests::process::{Output, command, output};
use dipaco_tests::run::{Run, routed, snapshot, trained};
use serde_json::{Value, json};

/// Documents unlike the corpus: tables of sums.
fn sums() -> String {
    let mut text = String::new();
    for number in 0u32..9000 {
        let (one, other) = (number * 7919 % 1000, number * 104_729 % 1000);
        let _ = writeln!(text, "{one:04} + {other:04} = {:04};", one + other);
    }
    text
}

/// Runs `dipaco extend` from one run to another.
fn extend(to: &Run, from: &Run, words: &str) -> Output {
    let mut extend = command(["extend"].into_iter().chain(words.split_whitespace()));
    extend.arg("--run").arg(to.directory()).arg("--from").arg(from.directory());
    output(extend)
}

/// The weights of an exported path.
fn exported(run: &Run, path: u32) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("path");
    let _ = run.dipaco(&format!("export --path {path} --out {}", out.display())).succeeded();
    fs::read(out.join("model.safetensors")).unwrap()
}

fn bits_per_byte(rows: &Value) -> f64 {
    rows[0]["bits_per_byte"].as_f64().unwrap_or_else(|| panic!("{rows}"))
}

fn new_text(folder: &Path) -> PathBuf {
    let file = folder.join("sums.txt");
    fs::write(&file, sums()).unwrap();
    file
}

#[test]
fn a_new_path_learns_new_text_and_every_old_path_keeps_its_bits() {
    // A copy, because readers of the other test leave files for a moment.
    let old = &trained().copy();
    let (before, new) = (snapshot(&old.directory()), Run::new());
    let words = "--add 1 --level 1 --json --set train.rounds=4 --set train.inner_steps=10";
    let made = extend(&new, old, words).succeeded().json();
    assert_eq!(made["new"], true);
    assert_eq!(
        made["paths"][4],
        json!({"path": 4, "copy_of": 1, "modules": ["0/0", "1/2"], "trained_modules": ["1/2"]})
    );
    assert_eq!(made["paths"][3]["trained_modules"], json!([]));
    let again = extend(&new, old, words).succeeded().json();
    assert_eq!(again["new"], false);
    a_later_setting_makes_no_other_run(&new, old, words);
    let _ = extend(&new, old, "--add 0").failed(1, &["has a seed or another extension already"]);

    let _ = new.prepare([new_text(new.folder())]).succeeded();
    // The seed came along, although its text is another one.
    let _ = new.dipaco("seed").succeeded().says("the seed was there already");
    let _ = new.dipaco("seed --restart").failed(1, &["descend from its seed"]);
    let router = new.dipaco("route fit --json").succeeded().json();
    assert_eq!((&router["paths"], &router["new"]), (&json!(5), &json!(true)));
    let _ = new.dipaco("route fit").succeeded().says("was there already");
    let _ = new.dipaco("route assign").succeeded();
    let _ = new.dipaco("train --workers 2").succeeded();
    let _ = new.dipaco("status --data").succeeded().says("every inner step counts once");
    let _ = new.dipaco("train").succeeded().says("have been trained");

    for path in 0..4 {
        assert!(exported(&new, path) == exported(old, path), "path {path} has other bits");
    }
    assert!(exported(&new, 4) != exported(old, 1), "the new path has not been trained");
    let steps: Vec<_> = new.status()["training"]["modules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|module| module["fragments"][0]["version"].clone())
        .collect();
    assert_eq!(steps, [0, 0, 0, 0, 4], "only the new module takes outer steps");

    // Path 1 is where path 4 began.
    let of =
        |path: u32| bits_per_byte(&new.dipaco(&format!("evaluate --path {path} --json")).succeeded().json());
    let (learnt, best) = (of(4), (0..4).map(of).fold(f64::INFINITY, f64::min));
    assert!(learnt < best - 0.05, "path 4 has {learnt} bits per byte on its text, the best old path {best}");
    let routed = new.dipaco("evaluate --json").succeeded().json();
    let rows = routed.as_array().unwrap();
    let routed = rows.iter().find(|row| row["model"] == "routed").unwrap()["bits_per_byte"].as_f64().unwrap();
    assert!(routed < best, "{rows:?}");

    assert_eq!(snapshot(&old.directory()), before, "the finished run stays as it is");

    let (one, other) = (new.serve(""), old.serve(""));
    let route = |address: &str, prompt: &str| {
        post(address, "/v1/route", &json!({"prompt": prompt})).json()["path"].as_u64().unwrap()
    };
    assert_eq!(route(&one.address, &sums()[..200]), 4);
    let prompt = "fn main() { let mut numbers = Vec::new(); for number in 0..10 { numbers.push(number); } }";
    assert_eq!(route(&one.address, prompt), route(&other.address, prompt));

    a_removed_path_leaves_the_run_as_it_was(&new, old);
}

/// `words` made `new` of `old` with `train.rounds=4`. The command stays the same when a later step changes that.
fn a_later_setting_makes_no_other_run(new: &Run, old: &Run, words: &str) {
    let made = fs::read_to_string(new.file("config.toml")).unwrap();
    let later = made.replace("\nrounds = 4\n", "\nrounds = 6\n");
    assert_ne!(later, made);
    fs::write(new.file("config.toml"), &later).unwrap();
    assert_eq!(extend(new, old, words).succeeded().json()["new"], false);
    let _ = extend(new, old, "--add 1 --level 1 --set train.rounds=5")
        .failed(2, &["train.rounds = 4", "--set train.rounds=5"]);
    assert_eq!(fs::read_to_string(new.file("config.toml")).unwrap(), later);
    fs::write(new.file("config.toml"), made).unwrap();
}

/// `new` is `old` with a path 4.
fn a_removed_path_leaves_the_run_as_it_was(new: &Run, old: &Run) {
    let less = Run::new();
    let _ = extend(&less, new, "--remove 4").succeeded().says("it is complete");
    assert_eq!(less.weights(), old.weights());
    let router = |run: &Run| fs::read(run.file("routing/router.bin")).unwrap();
    let answer = |run: &Run| {
        let server = run.serve("");
        let ask = json!({"model": "e2e", "prompt": "fn main() {", "max_tokens": 8, "temperature": 0});
        post(&server.address, "/v1/completions", &ask).json()["choices"].clone()
    };
    assert_eq!(answer(&less), answer(old));
    assert_ne!(router(&less), router(new));
    let _ = less.dipaco("train").succeeded().says("have been trained");
    // It shows the text of the finished run, and replaces it by no other text.
    let before = snapshot(&new.file("data"));
    let other = less.folder().join("other.txt");
    fs::write(&other, "other text\n".repeat(9000)).unwrap();
    let _ = less.prepare([&other]).failed(1, &["the prepared text of a finished run", "run.data=DIR"]);
    assert_eq!(snapshot(&new.file("data")), before, "the finished run stays as it is");
    // It needs nothing of the finished run but the text to evaluate.
    let (path, answered) = (exported(&less, 0), answer(&less));
    let elsewhere = new.folder().join("elsewhere");
    fs::rename(new.directory(), &elsewhere).unwrap();
    assert!(exported(&less, 0) == path);
    assert_eq!(answer(&less), answered);
    fs::rename(&elsewhere, new.directory()).unwrap();
    // Text of its own may be replaced.
    let own = less.folder().join("own");
    let mut prepare = less.command(&format!("prepare --set run.data={}", own.display()));
    prepare.arg(new_text(less.folder()));
    let _ = output(prepare).succeeded();
    let first = fs::read(own.join("train.json")).unwrap();
    let _ = less.prepare(corpus()).succeeded();
    assert_ne!(fs::read(own.join("train.json")).unwrap(), first);
    assert_eq!(snapshot(&new.file("data")), before, "the finished run stays as it is");
    // Path 0 is gone, so path 1 of the old run is path 0. Settings that count paths fit those that are left.
    let shifted = Run::new();
    let words = "--remove 0 --set train.paths_per_round=2 --set routing.overlap=4";
    let _ = extend(&shifted, old, words).succeeded();
    assert!(exported(&shifted, 0) == exported(old, 1));
    let _ = shifted.dipaco("export --path 3 --out never").failed(2, &["no path 3"]);
}

#[test]
fn an_extension_that_was_broken_off_in_a_prepared_run_is_completed() {
    let (old, new) = (trained(), Run::new());
    let tokenizer = old.file("data/tokenizer.json");
    let words = format!("prepare --set prepare.tokenizer={}", tokenizer.display());
    let mut prepare = new.command(&words);
    prepare.arg(new_text(new.folder()));
    let _ = output(prepare).succeeded();
    let saved = fs::read(new.file("config.toml")).unwrap();
    let words = "--add 1 --level 1 --json";
    assert_eq!(extend(&new, old, words).succeeded().json()["new"], true);
    let made = fs::read(new.file("config.toml")).unwrap();
    // The store has the extension, and the run's own files are those from before.
    fs::write(new.file("config.toml"), saved).unwrap();
    fs::remove_dir_all(new.file("extended")).unwrap();
    assert_eq!(extend(&new, old, words).succeeded().json()["new"], true);
    assert!(new.file("extended/router.bin").exists() && new.file("extended/tokenizer.json").exists());
    assert_eq!(fs::read(new.file("config.toml")).unwrap(), made);
    assert!(String::from_utf8(made).unwrap().contains("kept_paths = 4"));
    assert_eq!(extend(&new, old, words).succeeded().json()["new"], false);
}

#[test]
fn what_can_not_be_extended_is_refused_and_nothing_is_written() {
    let (old, new) = (trained(), Run::new());
    let refused = |from: &Run, words: &str, code: i32, says: &[&str]| {
        let _ = extend(&new, from, words).failed(code, says);
        assert!(!new.directory().exists(), "{words}");
    };
    refused(routed(), "--add 0", 1, &["has no trained paths", "dipaco train"]);
    refused(&Run::new(), "--add 0", 2, &["no run in"]);
    refused(old, "--add 4", 2, &["no path 4", "0 to 3"]);
    refused(old, "--remove 7", 2, &["no path 7"]);
    refused(old, "--add 0 --level 2", 2, &["no level 2"]);
    refused(old, "--remove 0 --remove 1 --remove 2 --remove 3", 2, &["no path is left"]);
    refused(old, "--add 0 --set model.context=128", 2, &["model differs"]);
    let rests = "--add 0 --level 1 --set train.paths_per_round=2";
    refused(old, rests, 2, &["train.paths_per_round is 2 but 1 paths train"]);
    refused(old, "", 2, &["--add"]);
    let _ = extend(old, old, "--add 0").failed(2, &["is the run to extend"]);

    // Text that was prepared with another tokenizer.
    let _ = new.prepare(corpus()).succeeded();
    let tokenizer = new.file("data/tokenizer.json");
    if fs::read(&tokenizer).unwrap() == fs::read(old.file("data/tokenizer.json")).unwrap() {
        fs::remove_dir_all(new.directory()).unwrap();
        let _ = new.prepare([new_text(new.folder())]).succeeded();
    }
    let _ = extend(&new, old, "--add 0").failed(1, &["is not the tokenizer of the run to extend"]);
}

/// A trained run that began with a pretrained model.
fn trained_from_a_model() -> Run {
    let run = Run::new();
    fs::copy(fixture("imported.toml"), run.config()).unwrap();
    let model = root().join("crates/model/tests/fixtures/pretrained");
    let _ = run.dipaco(&format!("seed --import {}", model.display())).succeeded();
    run.route();
    let _ = run.dipaco("train --workers 1").succeeded();
    run
}

/// The files of a folder by name.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// The files of an exported path, in both formats. The README.md names the number of paths of the run.
fn exported_files(run: &Run, path: u32) -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let (out, gguf) = (folder.path().join("path"), folder.path().join("path/path.gguf"));
    let export = format!("export --path {path} --out {} --gguf {}", out.display(), gguf.display());
    let _ = run.dipaco(&export).succeeded();
    let mut files = files(&out);
    files.remove("README.md");
    files
}

/// `new` extends `old`, whose tokenizer has a second token that can end a text, and has no text yet.
fn documents_end_as_those_of_the_finished_run(new: &Run, old: &Run) {
    let other_end = r#"prepare --set prepare.end_of_text="<|im_end|>""#;
    let mut prepare = new.command(other_end);
    prepare.arg(new_text(new.folder()));
    let _ = output(prepare).failed(1, &["is <|im_end|>", "'prepare.end_of_text=\"<|endoftext|>\"'"]);

    let prepared = Run::new();
    let tokenizer = old.file("imported/tokenizer.json");
    let words = format!("{other_end} --set prepare.tokenizer={}", tokenizer.display());
    let mut prepare = prepared.command(&words);
    prepare.arg(new_text(prepared.folder()));
    let _ = output(prepare).succeeded();
    let _ = extend(&prepared, old, "--add 1 --level 1").failed(1, &["has another end-of-text token"]);
}

#[test]
fn an_extended_run_keeps_what_came_with_its_pretrained_model() {
    let (old, new) = (trained_from_a_model(), Run::new());
    let _ = extend(&new, &old, "--add 1 --level 1").succeeded();
    // It has all of this in its own folder.
    let new = new.moved(&["config.toml", "extended", "imported", "store"]);
    let brought = files(&old.file("imported"));
    let expected = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(brought.keys().collect::<Vec<_>>(), expected);
    assert_eq!(files(&new.file("imported")), brought);
    for key in ["weights", "imported"] {
        assert_eq!(new.status()["seed"][key], old.status()["seed"][key], "{key}");
    }

    documents_end_as_those_of_the_finished_run(&new, &old);
    let _ = new.prepare([new_text(new.folder())]).succeeded();
    for step in ["route fit", "route assign", "train --workers 1"] {
        let _ = new.dipaco(step).succeeded();
    }
    assert_eq!(fs::read(new.file("data/tokenizer.json")).unwrap(), brought["tokenizer.json"]);
    for path in 0..4 {
        let (ours, theirs) = (exported_files(&new, path), exported_files(&old, path));
        let differ: Vec<_> = theirs.keys().filter(|name| ours.get(*name) != theirs.get(*name)).collect();
        assert!(differ.is_empty() && ours.len() == theirs.len(), "path {path}: {differ:?}");
    }
    // The new path differs from its copy in the weights only.
    let (copied, added) = (exported_files(&new, 1), exported_files(&new, 4));
    let differ: Vec<_> = copied.keys().filter(|name| added.get(*name) != copied.get(*name)).collect();
    assert_eq!(differ, ["model.safetensors", "path.gguf"]);
    for name in ["generation_config.json", "chat_template.jinja", "tokenizer.json", "tokenizer_config.json"] {
        assert_eq!(added[name], brought[name], "{name}");
    }
    let config = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap()["eos_token_id"].clone();
    assert_eq!(config(&added["config.json"]), json!([2, 0]));

    let server = new.serve("");
    let info = get(&server.address, "/tokenizer_info").json();
    assert_eq!(info["chat_template"].as_str().unwrap().as_bytes(), brought["chat_template.jinja"]);
}
