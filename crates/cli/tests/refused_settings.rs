//! Settings that a command refuses: the run keeps those that it had.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::fs;
use std::path::Path;

mod support;

use support::{FIXTURES, dipaco, succeeds};

#[test]
fn a_quickstart_that_refuses_its_text_gives_the_run_no_settings() {
    let folder = tempfile::tempdir().unwrap();
    let (text, run) = (folder.path().join("text.jsonl"), folder.path().join("run"));
    // Equal documents come to one side of the division, so the other side has none.
    let document = serde_json::json!({ "text": "the path of the router ".repeat(40) });
    fs::write(&text, format!("{document}\n{document}\n")).unwrap();
    let words = ["quickstart", "--data", text.to_str().unwrap(), "--run", run.to_str().unwrap()];
    let (code, out, err) = dipaco(&words);
    assert!(code == 1 && err.contains("prepare.validation_fraction (0.25)"), "{out}{err}");
    assert!(!run.join("config.toml").exists(), "nobody gave this fraction");
}

#[test]
fn a_load_test_refuses_times_that_no_training_takes() {
    for training in ["-1", "nan", "1e30"] {
        let (code, out, err) = dipaco(&["bench", "workers", &format!("--training={training}")]);
        assert!(code == 2 && err.contains("from 0 to 86400"), "{training}: {out}{err}");
    }
}

#[test]
fn a_seed_that_refuses_settings_leaves_those_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run").to_str().unwrap().to_owned();
    let (config, text) = (format!("{FIXTURES}/imported.toml"), format!("{FIXTURES}/corpus/pages.txt.gz"));
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/fixtures/pretrained");
    succeeds(&["seed", "--run", &run, "--config", &config, "--import", model]);
    succeeds(&["prepare", "--run", &run, &text]);
    let saved = || fs::read_to_string(format!("{run}/config.toml")).unwrap();
    let before = saved();
    let seed = ["seed", "--run", &run, "--set"];
    // Pretraining is still to begin, with imported weights of another shape.
    let (code, out, err) = dipaco(&[&seed[..], &["model.ffn_size=48"]].concat());
    assert!(code == 1 && err.contains("is not a module file of this model"), "{out}{err}");
    assert_eq!(saved(), before);
    let (code, out, err) = dipaco(&[&seed[..], &["seed_model.steps=3", "--device", "cuda:7"]].concat());
    assert_ne!(code, 0, "{out}{err}");
    assert_eq!(saved(), before);

    let out = succeeds(&[&seed[..], &["seed_model.steps=3"]].concat());
    assert!(out.starts_with("the seed is done: 3 steps"), "{out}");
    let config: toml::Table = saved().parse().unwrap();
    assert_eq!(config["seed_model"]["steps"].as_integer(), Some(3));
}

#[test]
fn a_training_for_which_all_memory_is_not_enough_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run").to_str().unwrap().to_owned();
    let (config, text) = (format!("{FIXTURES}/tiny.toml"), format!("{FIXTURES}/corpus/pages.txt.gz"));
    succeeds(&["prepare", "--run", &run, "--config", &config, &text]);
    let saved = || fs::read_to_string(format!("{run}/config.toml")).unwrap();
    let before = saved();
    // 6 TB and more.
    let large = ["--set", "model.hidden_size=65536", "--set", "model.ffn_size=1048576"];
    let commands: [(&[&str], &str); 2] =
        [(&["seed"], "the seed needs "), (&["train", "--workers", "2"], "the workers on this machine need ")];
    for (command, says) in commands {
        let (code, out, err) = dipaco(&[command, &["--run", &run], &large[..]].concat());
        assert!(code == 2 && err.contains(says) && err.contains(" in all"), "{command:?}: {out}{err}");
        assert!(err.contains("a smaller model or a larger machine"), "{err}");
        assert_eq!(saved(), before);
    }
}

#[test]
fn a_preparation_into_the_folder_of_its_text_leaves_the_text_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    fs::create_dir(&text).unwrap();
    fs::copy(format!("{FIXTURES}/corpus/pages.txt.gz"), text.join("pages.txt.gz")).unwrap();
    let (config, run) = (format!("{FIXTURES}/tiny.toml"), folder.path().join("run"));
    let (text, run) = (text.to_str().unwrap(), run.to_str().unwrap());
    let prepare = |run: &str, more: &[&str]| {
        dipaco(&[&["prepare", "--config", &config, "--run", run, text], more].concat())
    };
    // The folder of the run, and that of its prepared text.
    for (run, set) in [(text, "train.rounds=1".to_owned()), (run, format!("run.data={text}"))] {
        let (code, out, err) = prepare(run, &["--set", &set]);
        assert!(code == 1 && err.contains("keep it out of the folder of a run"), "{out}{err}");
        for (place, entries) in [(folder.path(), 1), (Path::new(text), 1)] {
            assert_eq!(fs::read_dir(place).unwrap().count(), entries, "{}", place.display());
        }
    }
    let (code, out, err) = prepare(run, &[]);
    assert_eq!(code, 0, "{out}{err}");
}
