//! What can go wrong for a user, how it is told and with which exit code.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;

use dipaco_config::ConfigError;
use dipaco_telemetry::LogsError;
use thiserror::Error;

/// Exit code of a failure.
const FAILURE: u8 = 1;
/// Exit code of wrong usage or configuration.
pub(crate) const USAGE: u8 = 2;
/// Exit code of an interrupted command, as shells have it for SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum CliError {
    /// The configuration can't be read or used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Logs can't be set up.
    #[error(transparent)]
    Logs(#[from] LogsError),
    /// An argument that clap can't judge.
    #[error("{message}")]
    Usage {
        /// What is wrong.
        message: String,
        /// What to do.
        remedy: String,
    },
    /// A file or stream.
    #[error("can't {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// `doctor` found what will not work.
    #[error("{failed} of the checks failed")]
    Doctor {
        /// How many.
        failed: usize,
    },
}

impl CliError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Usage { .. } | Self::Logs(_) => USAGE,
            Self::Io { .. } | Self::Doctor { .. } => FAILURE,
        }
    }

    /// What to do, when it is not said by the message.
    fn remedy(&self) -> Option<String> {
        match self {
            Self::Usage { remedy, .. } => Some(remedy.clone()),
            Self::Doctor { .. } => Some("what stands below each check that failed".into()),
            Self::Io { source, .. } => io_remedy(source).map(str::to_owned),
            Self::Config(ConfigError::Read { source, .. }) => io_remedy(source).map(str::to_owned),
            Self::Config(_) => Some("`dipaco config keys` explains every key".into()),
            Self::Logs(_) => None,
        }
    }

    /// Tells the user, on standard error.
    pub(crate) fn report(&self) {
        let text = match self {
            Self::Config(ConfigError::Problems(problems)) => {
                let lines = problems.iter().map(|problem| render(problem, None, None));
                lines.chain(self.remedy().map(|remedy| format!("  try: {remedy}\n"))).collect()
            }
            _ => render(self, self.source(), self.remedy()),
        };
        // Nothing is left to report to when standard error is closed.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

/// `error: …`, one `because: …` for each cause, `try: …`.
fn render(
    what: &dyn std::fmt::Display,
    cause: Option<&(dyn Error + 'static)>,
    remedy: Option<String>,
) -> String {
    let mut last = what.to_string();
    let mut out = format!("error: {last}\n");
    for cause in std::iter::successors(cause, |&cause| cause.source()) {
        let text = cause.to_string();
        // Some libraries repeat their source in their own message.
        if !last.contains(&text) {
            let _ = writeln!(out, "  because: {text}");
        }
        last = text;
    }
    if let Some(remedy) = remedy {
        let _ = writeln!(out, "  try: {remedy}");
    }
    out
}

/// What to do about the usual failures of files.
fn io_remedy(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::NotFound => Some("check the name, or make what it names first"),
        io::ErrorKind::PermissionDenied => Some("check who owns it and its permissions"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Some("free some space, then run the command again")
        }
        io::ErrorKind::ReadOnlyFilesystem => Some("name a directory that can be written"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_chain_is_told_once() {
        let source = io::Error::new(io::ErrorKind::NotFound, "no such file");
        let error = CliError::Config(ConfigError::Read { path: "a.toml".into(), source });
        assert_eq!(
            render(&error, error.source(), error.remedy()),
            "error: the configuration file a.toml can't be read\n  because: no such file\n  \
             try: check the name, or make what it names first\n"
        );
    }
}
