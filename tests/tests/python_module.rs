//! The Python module `dipaco` reads a run as the program does.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dipaco_tests::fixtures::root;
use dipaco_tests::http::post;
use dipaco_tests::process::{clean, extension, output};
use dipaco_tests::python::interpreter;
use dipaco_tests::run::{Run, routed, trained};
use serde_json::{Value, json};

const TEXT: &str = "fn main() {";

/// The package `dipaco` as a wheel installs it.
fn package(folder: &Path) {
    let package = folder.join("dipaco");
    fs::create_dir(&package).unwrap();
    for entry in fs::read_dir(root().join("crates/python/python/dipaco")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), package.join(entry.file_name())).unwrap();
    }
    fs::copy(extension(), package.join("_dipaco.abi3.so")).unwrap();
}

/// Runs a client with the module. `None`, with a message, without NumPy and h5py outside of CI.
fn python(script: &str, args: &[&Path]) -> Option<Value> {
    python_in(&root(), script, args)
}

/// The same in a working folder.
fn python_in(place: &Path, script: &str, args: &[&Path]) -> Option<Value> {
    let python = interpreter("numpy, h5py")?;
    let folder = tempfile::tempdir().unwrap();
    package(folder.path());
    let mut command = clean(Command::new(python), [root().join("tests/python").join(script)]);
    command
        .args(args)
        .current_dir(place)
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    Some(output(command).succeeded().json())
}

/// The numbers of two lists are equal to this precision, and `null` stands at the same places.
fn close(found: &Value, expected: &Value, precision: f64) {
    let (found, expected) = (found.as_array().unwrap(), expected.as_array().unwrap());
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let near = match (found.as_f64(), expected.as_f64()) {
            (Some(found), Some(expected)) => (found - expected).abs() <= precision,
            (found, expected) => found == expected,
        };
        assert!(near, "{found} is not {expected}");
    }
}

/// The text and the path of the server's greedy continuation.
fn served(address: &str, model: &str, tokens: u32) -> (Value, Value) {
    let ask =
        json!({"model": model, "prompt": TEXT, "max_tokens": tokens, "temperature": 0, "return_route": true});
    let answer = post(address, "/v1/completions", &ask);
    assert_eq!(answer.status, 200, "{answer:?}");
    let path = answer.head.split("x-dipaco-path: ").nth(1).unwrap().lines().next().unwrap().trim().to_owned();
    (answer.json()["choices"][0]["text"].clone(), json!(path.parse::<u32>().unwrap()))
}

#[test]
fn python_finds_what_the_program_and_its_server_say() {
    // With f32 the engine and the evaluation give each token the same log-probability to 1e-5.
    let run = &trained().copy();
    let config = fs::read_to_string(run.file("config.toml")).unwrap();
    assert!(config.contains("kv_type = \"bf16\""), "{config}");
    fs::write(run.file("config.toml"), config.replace("kv_type = \"bf16\"", "kv_type = \"f32\"")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("python");
    fs::create_dir(&out).unwrap();
    let Some(found) = python("reading.py", &[&run.directory(), &out]) else { return };
    let version = env!("CARGO_PKG_VERSION");
    let (name, place) = ("e2e", run.directory().display().to_string());
    let shown = format!("Run('{place}', name='e2e', paths=4)");
    assert_eq!(found["facts"], json!([shown, place, name, 4, 64, 384, version]));
    assert_eq!(found["decoded"], TEXT);

    texts(run, &found);
    evaluation(run, &found);
    tokens_and_events(run, &found);
    exports(run, folder.path());
    exceptions(&found["raised"], run.directory().as_path());
    assert_eq!(found["kept"], json!([["README.md"], "mine"]), "the file of somebody stays as it is");
    assert_eq!((&found["lowest_error"], &found["forked"]), (&json!([true, true]), &json!(0)));
}

/// Routes, scores and continuations are those of the server.
fn texts(run: &Run, found: &Value) {
    let server = run.serve("");
    for (route, text) in
        found["routes"].as_array().unwrap().iter().zip([TEXT, "Copyright", "[[package]]\nname = "])
    {
        let theirs = post(&server.address, "/v1/route", &json!({"prompt": text})).json();
        assert_eq!(route["path"], theirs["path"], "{text}");
        close(&route["distances"], &theirs["distances"], 1e-6);
    }
    assert_eq!(found["routes"][0], found["routes"][3], "the same text has the same route");
    assert_eq!(found["same_route_of_ids"], true);

    let (text, path) = served(&server.address, "e2e", 12);
    for greedy in found["greedy"].as_array().unwrap() {
        assert_eq!((&greedy["text"], &greedy["path"]), (&text, &path));
        assert_eq!(
            (greedy["tokens"].as_array().unwrap().len(), &greedy["finish_reason"]),
            (12, &json!("length"))
        );
    }
    let (text, _) = served(&server.address, "e2e/path-2", 4);
    assert_eq!(found["pinned"], json!({"path": 2, "text": text}));
    let stop = found["stopped"][0].as_str().unwrap();
    let whole = found["greedy"][0]["text"].as_str().unwrap();
    assert_eq!(found["stopped"][1].as_str(), whole.split(stop).next());
    let drawn = &found["drawn"];
    assert!(drawn[0] == drawn[1] && drawn[0][0] == drawn[0][1], "the same seed gives the same text: {drawn}");
    assert_ne!(drawn[0], drawn[2], "another seed gives another text");

    let ask = json!({"model": "e2e", "prompt": TEXT, "max_tokens": 3, "temperature": 0, "logprobs": 0, "echo": true});
    let answer = post(&server.address, "/v1/completions", &ask).json();
    let theirs = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    let (prompt, continued) = theirs.split_at(theirs.len() - 3);
    close(&found["score"]["log_probs"], &json!(prompt), 1e-6);
    close(&json!(found["greedy"][0]["log_probs"].as_array().unwrap()[..3]), &json!(continued), 1e-6);
    assert_eq!(found["score"]["path"], found["routes"][0]["path"]);
}

/// Perplexities are those of `dipaco evaluate`, and log-probabilities add up to them.
fn evaluation(run: &Run, found: &Value) {
    let run = run.copy();
    let rows = run.dipaco("evaluate --json").succeeded().json();
    let path = run.dipaco("evaluate --path 1 --json").succeeded().json();
    let rows: Vec<&Value> = rows.as_array().unwrap().iter().chain(path.as_array().unwrap()).collect();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let mut expected = row.clone();
        let model = expected.as_object_mut().unwrap().remove("model").unwrap();
        // A comparison of rows, and Python has one model at a time.
        expected.as_object_mut().unwrap().remove("against_first");
        assert_eq!(found["evaluated"][model.as_str().unwrap()], expected, "{model}");
    }
    let (routed, by_hand) = (&found["evaluated"]["routed"], &found["by_hand"]);
    assert_eq!(by_hand[1], routed["tokens_counted"]);
    let tokens = by_hand[1].as_f64().unwrap();
    let (sum, expected) = (by_hand[0].as_f64().unwrap(), routed["nll_sum"].as_f64().unwrap());
    assert!((sum - expected).abs() / tokens < 1e-5, "{sum} {expected}");
    let each = found["assigned"].as_array().unwrap();
    for (path, routes) in each.iter().enumerate().filter(|(_, routes)| **routes != json!([])) {
        assert_eq!(*routes, json!([path]), "a document of a shard has the path of the shard");
    }
}

fn tokens_and_events(run: &Run, found: &Value) {
    let tokens = &found["tokens"];
    for fact in ["same_as_h5py", "part", "views", "mapped", "pickled", "iterated"] {
        assert_eq!(tokens[fact], true, "{fact}: {tokens}");
    }
    assert_eq!((&tokens["dtype"], &tokens["writeable"]), (&json!("uint16"), &json!(false)));
    assert_eq!(tokens["documents"], tokens["shards"], "every document goes to one path");
    let end = &tokens["last"][2];
    assert_eq!(tokens["last"], json!([end, end, end]));
    let lines = fs::read_to_string(run.file("metrics.jsonl")).unwrap();
    let events: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].clone()).collect();
    assert_eq!(found["events"], json!(events));
    assert!(events.contains(&json!("path_completed")) && found["completed"] == true);
}

/// Exported files have the bytes of `dipaco export`.
fn exports(run: &Run, folder: &Path) {
    let [ours, theirs] = ["python", "program"].map(|name| folder.join(name));
    for (what, name) in [
        ("--path 1 --out", "path-1"),
        ("--seed --out", "seed"),
        ("--path 1 --format q8_0 --gguf", "path-1.gguf"),
    ] {
        let _ = run.dipaco(&format!("export {what} {}", theirs.join(name).display())).succeeded();
    }
    let files = |folder: &Path| -> Vec<(PathBuf, Vec<u8>)> {
        let entries = ["path-1", "seed"].iter().flat_map(|name| fs::read_dir(folder.join(name)).unwrap());
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.push(folder.join("path-1.gguf"));
        files.sort();
        files
            .iter()
            .map(|file| (file.strip_prefix(folder).unwrap().to_owned(), fs::read(file).unwrap()))
            .collect()
    };
    let (ours, theirs) = (files(&ours), files(&theirs));
    assert_eq!(ours.len(), 15);
    assert!(ours == theirs, "{:?}", ours.iter().map(|(name, _)| name).collect::<Vec<_>>());
}

fn exceptions(raised: &Value, run: &Path) {
    let folder = run.display().to_string();
    for (case, class, says) in [
        ("no run", "RunError", &["nowhere", "config.toml"][..]),
        ("no path", "ValueError", &["prompt 0", "path 99", "paths 0 to 3"]),
        ("no path to evaluate", "ValueError", &["no path 4", "paths 0 to 3"]),
        ("no shard", "ValueError", &["no path 4", "paths 0 to 3"]),
        ("two models", "ValueError", &["a path or seed=True"]),
        ("empty", "ValueError", &["prompt 1", "the prompt is empty: give at least one token"]),
        ("long", "ValueError", &["prompt 0", "is 64", "shorten the prompt"]),
        ("token", "ValueError", &["token 99999 is not in the vocabulary"]),
        ("temperature", "ValueError", &["temperature is 3", "from 0 to 2"]),
        ("no list", "TypeError", &["`str`"]),
        ("text as tokens", "ValueError", &["decode takes token ids"]),
        ("bytes to score", "TypeError", &["bytes are neither a text nor token ids", "decode them to a str"]),
        ("bytes to continue", "TypeError", &["bytes are neither a text nor token ids"]),
        ("bytes to decode", "TypeError", &["bytes are neither a text nor token ids"]),
        ("view of bytes", "TypeError", &["bytes are neither a text nor token ids"]),
        ("there already", "FileExistsError", &["config.json is there already", "force=True"]),
        ("file of somebody", "FileExistsError", &["README.md is there already", "force=True"]),
        ("format", "ValueError", &["gguf is \"f64\"", "q8_0"]),
        ("nothing to export", "ValueError", &["give a path, or seed=True"]),
        ("document", "IndexError", &[folder.as_str(), "documents"]),
        ("document before the first", "IndexError", &["documents, no number -"]),
        ("no token file", "RunError", &["config.toml", "dipaco-tokens"]),
        ("write", "ValueError", &["read-only"]),
    ] {
        let error = &raised[case];
        assert_eq!(error[0], class, "{case}: {error}");
        let text = error[1].as_str().unwrap();
        for words in says {
            assert!(text.contains(words), "{case} does not say {words:?}: {text}");
        }
    }
}

#[test]
fn scores_are_those_of_a_server_that_changes_paths_within_a_text() {
    let run = trained().copy();
    let mut config = fs::read_to_string(run.file("config.toml")).unwrap();
    for (from, to) in [
        ("route_every = 0", "route_every = 16"),
        ("reroute_by = \"transformer\"", "reroute_by = \"features\""),
    ] {
        assert!(config.contains(from), "{config}");
        config = config.replace(from, to);
    }
    fs::write(run.file("config.toml"), config).unwrap();
    let Some(found) = python("reading_rerouted.py", &[&run.directory()]) else { return };
    let server = run.serve("");
    let mut changes = 0;
    for text in found.as_array().unwrap() {
        for model in ["e2e", "e2e/path-2"] {
            let ask = json!({
                "model": model, "prompt": text["tokens"], "max_tokens": 0, "echo": true, "logprobs": 0,
                "return_route": true,
            });
            let answer = post(&server.address, "/v1/completions", &ask).json();
            let choice = &answer["choices"][0];
            close(&text[model], &choice["logprobs"]["token_logprobs"], 1e-6);
            changes += choice["dipaco"]["rerouted"].as_u64().unwrap();
        }
    }
    assert!(changes > 0, "the paths were meant to change");
}

#[test]
fn threads_of_python_work_at_the_same_time_and_signals_end_a_call() {
    let Some(found) = python("reading_threads.py", &[&trained().directory()]) else { return };
    for call in ["ticks", "ticks_of_encode"] {
        assert!(found[call].as_u64().unwrap() > 0, "the lock was held: {found}");
    }
    assert_eq!(found["same"], json!([true, true, true, true, true]));
    assert_eq!((&found["interrupted"], &found["goes_on"]), (&json!(true), &json!(true)));
}

#[test]
fn a_damaged_or_unfinished_run_raises_what_the_program_says() {
    let damaged = |file: &str, at: usize| {
        let run = trained().copy();
        let mut bytes = fs::read(run.file(file)).unwrap();
        bytes[at] ^= 1;
        fs::write(run.file(file), bytes).unwrap();
        run
    };
    let status = trained().status();
    let object = status["training"]["modules"][0]["fragments"][0]["weights"]["name"].as_str().unwrap();
    let weights = damaged(&format!("store/{object}"), 900);
    let header = damaged("data/pieces/00000-train.h5", 40);
    let shard = damaged("routing/train/path-000/00000.h5", 40);
    let length = fs::metadata(trained().file("data/pieces/00000-train.h5")).unwrap().len();
    let tokens = damaged("data/pieces/00000-train.h5", length as usize / 2);
    let config = damaged("config.toml", 0);
    let cut = trained().copy();
    let events = fs::read(cut.file("metrics.jsonl")).unwrap();
    fs::write(cut.file("metrics.jsonl"), &events[..events.len() - 5]).unwrap();
    let untrained = routed();
    let cases: [(&str, &Run, &str, &[&str]); 9] = [
        ("generate", &weights, "RunError", &[object]),
        ("evaluate", &weights, "RunError", &[object]),
        ("tokens", &header, "RunError", &["00000-train.h5"]),
        ("verify", &tokens, "RunError", &["00000-train.h5", "hash"]),
        ("shard", &shard, "RunError", &["path-000/00000.h5"]),
        ("open", &config, "RunError", &["config.toml"]),
        ("generate", untrained, "RunError", &["dipaco train"]),
        ("tokens", untrained, "", &[]),
        ("metrics", &cut, "", &[]),
    ];
    let directories: Vec<PathBuf> = cases.iter().map(|(_, run, ..)| run.directory()).collect();
    let names = cases.iter().map(|(call, ..)| Path::new(call));
    let args: Vec<&Path> = names.zip(&directories).flat_map(|(name, run)| [name, run.as_path()]).collect();
    let Some(found) = python("reading_damaged.py", &args) else { return };
    for ((call, run, class, says), found) in cases.iter().zip(found.as_array().unwrap()) {
        let place = run.directory();
        assert_eq!(found[0], *class, "{call} {}: {found}", place.display());
        for words in *says {
            assert!(found[1].as_str().unwrap().contains(words), "{call} does not say {words}: {found}");
        }
    }
    let lines = events.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    assert_eq!(found[8][1], json!(lines - 1), "a cut line costs only itself");
}

#[test]
fn the_types_for_checkers_are_those_of_the_module() {
    let Some(wrong) = python("reading_types.py", &[]) else { return };
    assert_eq!(wrong, json!([]));
}

#[test]
fn the_cells_of_the_notebook_run() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("runs")).unwrap();
    std::os::unix::fs::symlink(trained().directory(), folder.path().join("runs/quickstart")).unwrap();
    let notebook = root().join("docs/reading.ipynb");
    let Some(cells) = python_in(folder.path(), "notebook.py", &[&notebook]) else { return };
    assert!(cells.as_u64() >= Some(8), "{cells}");
}
