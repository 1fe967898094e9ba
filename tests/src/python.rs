//! Clients written in Python, with the packages that `scripts/python.sh` installs.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::fixtures::root;
use crate::process::{clean, output};

/// Runs `tests/python/SCRIPT` with `.venv` and returns its output, which is JSON.
///
/// Returns `None`, with a message, when its package is not installed and this is not CI.
///
/// # Panics
/// In CI when the package is missing, and when the script fails.
#[must_use]
pub fn python(package: &str, script: &str, args: &[&str]) -> Option<Value> {
    let python = interpreter(package)?;
    let mut command = clean(Command::new(python), [root().join("tests/python").join(script)]);
    command.args(args).env("HF_HUB_OFFLINE", "1").env("PYTHONDONTWRITEBYTECODE", "1");
    Some(output(command).succeeded().json())
}

/// The interpreter of `.venv`, if it has this package.
///
/// Returns `None`, with a message, when the package is not installed and this is not CI.
///
/// # Panics
/// In CI when the package is missing.
#[must_use]
pub fn interpreter(package: &str) -> Option<PathBuf> {
    let python = root().join(".venv/bin/python");
    let installed = python.exists()
        && output(clean(Command::new(&python), ["-c", &format!("import {package}")])).status.success();
    if !installed {
        let missing = format!(".venv has no {package}: run scripts/python.sh");
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}");
        eprintln!("skipped: {missing}");
        return None;
    }
    Some(python)
}
