//! Printing data to standard output.

use std::io::{self, Write};

use serde::Serialize;

use crate::error::CliError;

/// Writes text to standard output. A reader that closes the pipe early, as `head` does, is no error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    print_while_read(text).map(|_| ())
}

/// [`print()`] for commands that print again and again. Returns whether somebody still reads.
pub(crate) fn print_while_read(text: &str) -> Result<bool, CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(source) => Err(CliError::Io { action: "write to", path: "standard output".into(), source }),
    }
}

/// Writes a value as indented JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let failed = |error: serde_json::Error| CliError::Io {
        action: "write to",
        path: "standard output".into(),
        source: error.into(),
    };
    print(&(serde_json::to_string_pretty(value).map_err(failed)? + "\n"))
}
