//! The program and the fixtures, for the tests of commands.
#![allow(dead_code, reason = "each test program uses a part")]

use std::process::{Command, Stdio};

/// The configuration and the text of the end-to-end tests.
pub(crate) const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");

/// Runs `dipaco` with `words` and returns its exit code, standard output and standard error.
pub(crate) fn dipaco(words: &[&str]) -> (i32, String, String) {
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

/// Runs `dipaco` with `words`, which succeeds, and returns its standard output.
pub(crate) fn succeeds(words: &[&str]) -> String {
    let (code, out, err) = dipaco(words);
    assert_eq!(code, 0, "{words:?}: {out}{err}");
    out
}
