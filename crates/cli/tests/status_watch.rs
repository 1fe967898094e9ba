//! `status --watch`: what it prints, and its end when nobody reads any more.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write, pipe};
use std::path::Path;
use std::process::{Command, Stdio};

/// A watch of the run in `folder`. It has a limit: one that does not notice that its reader has gone goes on for ever.
fn watch(folder: &Path) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["60", env!("CARGO_BIN_EXE_dipaco"), "status", "--watch", "--run"])
        .arg(folder)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    command
}

#[test]
fn a_watch_ends_with_its_reader() {
    // A run in which nothing has been trained is not complete.
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let output = watch(folder.path()).stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_worker_sends_no_commands_to_the_terminal_of_an_operator() {
    let folder = tempfile::tempdir().unwrap();
    let events = folder.path().join("metrics.jsonl");
    let left = |reason: &str| {
        let left = serde_json::json!({
            "time": "2026-01-01T00:00:00.000Z", "event": "worker_left", "worker": "gpu-1\u{9b}2J", "reason": reason,
        });
        format!("{left}\n")
    };
    fs::write(&events, left("\u{1b}[2J")).unwrap();
    let mut child = watch(folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let row = lines.map(Result::unwrap).find(|line| line.contains("gpu-1")).unwrap();
    assert!(row.contains("gpu-1\\u{9b}2J") && row.contains("left: \\u{1b}[2J"), "{row:?}");
    assert!(!row.contains(char::is_control), "{row:?}");
    // The reader has gone, and the watch ends at the next change.
    OpenOptions::new().append(true).open(&events).unwrap().write_all(left("again").as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}
