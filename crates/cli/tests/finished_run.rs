//! Commands on a run that is complete, and on a run that does not exist.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::fs;

mod support;

use support::{FIXTURES, dipaco};

#[test]
fn training_a_complete_run_again_says_so_and_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run").to_str().unwrap().to_owned();
    let (config, text) = (format!("{FIXTURES}/tiny.toml"), format!("{FIXTURES}/corpus"));
    let short = ["--set", "seed_model.steps=4", "--set", "train.rounds=2", "--set", "train.inner_steps=2"];
    let prepare = [&["prepare", "--config", &config, "--run", &run, &text][..], &short].concat();
    let steps: [&[&str]; 5] = [
        &prepare,
        &["seed", "--run", &run],
        &["route", "fit", "--run", &run],
        &["route", "assign", "--run", &run],
        &["train", "--run", &run, "--workers", "1"],
    ];
    for words in steps {
        let (code, out, err) = dipaco(words);
        assert_eq!(code, 0, "{words:?}: {out}{err}");
    }
    for more in [&[][..], &["--resume"]] {
        let (code, out, err) = dipaco(&[&["train", "--run", &run, "--workers", "1"], more].concat());
        assert_eq!(code, 0, "{out}{err}");
        assert_eq!(out, "the run is complete: all 2 rounds of 2 inner steps have been trained\n", "{err}");
        // `--resume` reads all objects of the run. They are sound, so no task of it stopped early.
        assert!(!err.contains("stopped"), "{err}");
        assert_eq!(err.contains("verify"), more == ["--resume"], "{err}");
    }

    // Another configuration is another training, complete or not. A refused command leaves the saved configuration.
    let saved = fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    let others: [&[&str]; 3] = [&["train"], &["coordinator"], &["route", "assign"]];
    for step in others {
        let (code, out, err) = dipaco(&[step, &["--run", &run, "--set", "train.rounds=3"]].concat());
        assert_eq!(code, 1, "{step:?}: {out}{err}");
        assert!(err.contains("another configuration"), "{step:?}: {err}");
        assert_eq!(fs::read_to_string(folder.path().join("run/config.toml")).unwrap(), saved, "{step:?}");
    }
    // Settings that no weight depends on may change.
    let (code, out, err) = dipaco(&["train", "--run", &run, "--set", "serve.slots=3"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(fs::read_to_string(folder.path().join("run/config.toml")).unwrap().contains("slots = 3"));
}

#[test]
fn a_run_that_does_not_exist_is_not_begun_by_a_later_step() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("typo");
    let run = run.to_str().unwrap();
    for step in [&["seed"][..], &["route", "fit"], &["route", "assign"], &["train"]] {
        let (code, out, err) = dipaco(&[step, &["--run", run]].concat());
        assert_eq!(code, 2, "{step:?}: {out}{err}");
        assert!(err.contains("there is no run in") && err.contains("dipaco prepare"), "{err}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{step:?} creates nothing");
    }
}
