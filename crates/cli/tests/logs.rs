//! What standard error says: as much as `--quiet` leaves, in the format of `--log-format`.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

mod support;

use serde_json::Value;
use support::dipaco;

#[test]
fn quiet_hides_progress_and_keeps_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("none").to_str().unwrap().to_owned();
    // It warns of its address, and then finds no run.
    let said = |quiet: &str| {
        let (code, out, err) = dipaco(&[quiet, "coordinator", "--listen", "0.0.0.0:7440", "--run", &run]);
        assert_eq!(code, 2, "{out}{err}");
        assert!(err.contains("error: there is no run in"), "{err}");
        err.contains("give the address of this machine with --advertise")
    };
    assert!(said("-q"), "a warning is no progress");
    assert!(!said("-qq"));
}

#[test]
fn an_error_in_a_log_of_json_is_json_too() {
    let error = |words: &[&str]| -> Value {
        let (code, out, err) = dipaco(&[&["--log-format", "json"][..], words].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        let mut lines: Vec<Value> = err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let last = lines.pop().unwrap();
        assert_eq!((&last["level"], &last["exit_code"]), (&"ERROR".into(), &2.into()), "{err}");
        last
    };
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("none");
    let none = error(&["status", "--run", run.to_str().unwrap()]);
    assert!(none["message"].as_str().unwrap().starts_with("there is no run in"), "{none}");
    assert_eq!((&none["because"], &none["try"]), (&Value::Array(Vec::new()), &Value::Null));

    let two = error(&["config", "check", "--set", "train.batch=0", "--set", "train.rounds=0"]);
    let message = two["message"].as_str().unwrap();
    assert!(message.contains("train.batch") && message.contains("train.rounds"), "{two}");
    assert!(two["try"].as_str().unwrap().contains("`dipaco config keys`"), "{two}");

    let file = error(&["config", "check", "--config", run.to_str().unwrap()]);
    assert_eq!(file["because"].as_array().unwrap().len(), 1, "{file}");

    let usage = error(&["serve", "--address", "localhost:1"]);
    let message = usage["message"].as_str().unwrap();
    assert!(message.starts_with("invalid value 'localhost:1' for '--address"), "{usage}");
    assert!(!message.contains("For more information"), "{usage}");
    assert_eq!(usage["try"], "--help shows the commands and their options");
}
