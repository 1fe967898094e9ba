//! `status --watch` whose output nobody reads any more.

use std::io::pipe;
use std::process::{Command, Stdio};

#[test]
fn a_watch_ends_with_its_reader() {
    // A run in which nothing has been trained is not complete.
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    // With a limit, because a watch that does not notice goes on for ever.
    let output = Command::new("timeout")
        .args(["60", env!("CARGO_BIN_EXE_dipaco"), "status", "--watch", "--run"])
        .arg(folder.path())
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
