//! What `seed` says of a seed that is there.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::path::Path;
use std::process::{Command, Stdio};

mod support;

use support::{FIXTURES, succeeds};

/// Runs `dipaco` in a folder and returns its standard output.
fn succeeds_in(folder: &Path, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dipaco"));
    command.args(words).current_dir(folder).env("DIPACO_DEVICE", "cpu").stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_seed_in_a_store_with_a_relative_name_is_there_in_every_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (around, inside) = (folder.path(), folder.path().join("inside"));
    std::fs::create_dir(&inside).unwrap();
    let (config, text) = (format!("{FIXTURES}/tiny.toml"), format!("{FIXTURES}/corpus/pages.txt.gz"));
    let prepare = ["prepare", "--run", "run", "--config", &config, "--set", "seed_model.steps=4"];
    succeeds_in(&inside, &[&prepare[..], &["--set", "run.data=text", &text]].concat());
    let trained = succeeds_in(&inside, &["seed", "--run", "run", "--set", "run.store=weights"]);
    assert!(trained.starts_with("the seed is done: 4 steps"), "{trained}");
    let again = succeeds_in(around, &["seed", "--run", "inside/run"]);
    assert!(again.starts_with("the seed was there already: 4 steps"), "{again}");
    assert!(inside.join("text").is_dir() && inside.join("weights").is_dir());
    assert_eq!(std::fs::read_dir(around).unwrap().count(), 1, "no other store is begun");
}

#[test]
fn a_seed_that_is_copied_or_there_already_is_reported_as_one_that_was_trained() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (theirs, own, config) = (place("theirs"), place("own"), format!("{FIXTURES}/tiny.toml"));
    let text = format!("{FIXTURES}/corpus/pages.txt.gz");
    for run in [&theirs, &own] {
        succeeds(&["prepare", "--config", &config, "--run", run, "--set", "seed_model.steps=4", &text]);
    }
    let json = |words: &[&str]| serde_json::from_str::<serde_json::Value>(&succeeds(words)).unwrap();
    let trained = json(&["seed", "--run", &theirs, "--json"]);
    assert!(trained["step"] == 4 && trained["validation_loss"].is_number(), "{trained}");

    // The second command finds the copy of the first.
    for _ in 0..2 {
        let copied = json(&["seed", "--run", &own, "--from", &theirs, "--json"]);
        assert!(copied["finished"] == true && copied["new_steps"] == 0, "{copied}");
        for key in ["step", "validation_loss"] {
            assert_eq!(copied[key], trained[key], "{key}: {copied}");
        }
        let keys = |summary: &serde_json::Value| {
            summary.as_object().unwrap().keys().cloned().collect::<Vec<String>>()
        };
        assert_eq!(keys(&copied), keys(&trained));
    }
    let said = succeeds(&["seed", "--run", &own, "--from", &theirs]);
    assert!(said.starts_with(&format!("the seed is that of {theirs}: 4 steps, validation loss ")), "{said}");
    for run in [&theirs, &own] {
        let again = succeeds(&["seed", "--run", run]);
        assert!(again.starts_with("the seed was there already: 4 steps"), "{again}");
        assert!(!again.contains("tokens"), "nothing was trained: {again}");
    }
}
