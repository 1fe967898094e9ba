//! Commands on a run that is complete, and on a run that does not exist.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Two paths of one block that train in seconds.
const CONFIG: &str = r#"
[run]
name = "tiny"
[model]
hidden_size = 16
blocks = 1
heads = 2
head_dim = 8
ffn_size = 24
context = 64
[[topology.levels]]
modules = 2
blocks = "0"
embedding = true
head = true
[prepare]
vocab_size = 300
text_document_bytes = 256
validation_fraction = 0.1
[seed_model]
steps = 4
batch = 2
sequence_tokens = 64
[routing]
prefix_tokens = 8
[train]
rounds = 2
inner_steps = 2
batch = 2
sequence_tokens = 64
holdout_sequences = 2
"#;

/// Runs `dipaco` with `words` and returns its exit code, standard output and standard error.
fn dipaco(words: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_dipaco"))
        .args(words)
        .env_remove("RUST_LOG")
        .env("DIPACO_DEVICE", "cpu")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// 60 kB of text on two subjects.
fn write_text(file: &Path) {
    let mut text = String::new();
    for number in 0..1_000 {
        match number / 4 % 2 {
            0 => text += &format!("The ship number {number} sails over the sea to island {}.\n", number % 17),
            _ => text += &format!("let value_{number} = array[{}] + {};\n", number % 13, number * 7),
        }
    }
    fs::write(file, text).unwrap();
}

#[test]
fn training_a_complete_run_again_says_so_and_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("tiny.toml"), CONFIG).unwrap();
    write_text(path("text.txt").as_ref());
    let run = path("run");
    let (config, text) = (path("tiny.toml"), path("text.txt"));
    let steps: [&[&str]; 5] = [
        &["prepare", "--config", &config, "--run", &run, &text],
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
    }

    // Another configuration is another training, complete or not.
    let (code, out, err) = dipaco(&["train", "--run", &run, "--set", "train.rounds=3"]);
    assert_eq!(code, 1, "{out}{err}");
    assert!(err.contains("another configuration"), "{err}");
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
