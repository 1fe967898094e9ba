//! What can go wrong for a user, how it is told and with which exit code.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;

use dipaco_config::ConfigError;
use dipaco_experiment::ExperimentError;
use dipaco_telemetry::LogsError;
use thiserror::Error;

use crate::steps::error::StepError;

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
    /// The user asked to stop.
    #[error("interrupted; what was finished is kept, and the same command goes on (training with --resume)")]
    Interrupted,
    /// A simulated run broke a rule.
    #[error(
        "{what}\nthis is a fault of dipaco; `dipaco simulate chaos --from SEED --seeds 1` plays it again"
    )]
    Violated {
        /// Which seeds, and what they broke.
        what: String,
    },
    /// A server's address.
    #[error("can't listen on {address}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A load test or a transfer trial.
    #[error(transparent)]
    Bench(#[from] dipaco_bench::BenchError),
    /// A step of a run.
    #[error(transparent)]
    Step(#[from] StepError),
    /// An experiment, or its results.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// Cells of experiments that failed, each told when it did.
    #[error("{failed} of {of} cells failed")]
    Cells {
        /// How many.
        failed: usize,
        /// Of how many.
        of: usize,
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
            Self::Interrupted => INTERRUPTED,
            Self::Step(step) if step.is_configuration() => USAGE,
            Self::Experiment(error) if error.is_configuration() => USAGE,
            Self::Step(_)
            | Self::Bench(_)
            | Self::Io { .. }
            | Self::Listen { .. }
            | Self::Experiment(_)
            | Self::Cells { .. }
            | Self::Violated { .. }
            | Self::Doctor { .. } => FAILURE,
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
            Self::Listen { source, .. } => match source.kind() {
                io::ErrorKind::AddrInUse => {
                    Some("name another port with --address, or stop what uses this one".into())
                }
                kind => Some(format!("name an address of this machine with --address ({kind})")),
            },
            Self::Violated { .. } => {
                Some("report it: this is a fault of dipaco, and --from SEED --seeds 1 plays it again".into())
            }
            Self::Cells { .. } => Some("run the same command again: what is finished is not repeated".into()),
            Self::Experiment(ExperimentError::Read { source, .. }) => io_remedy(source).map(str::to_owned),
            Self::Experiment(ExperimentError::Configuration { .. }) => {
                Some("`dipaco config keys` explains every key".into())
            }
            Self::Logs(_) | Self::Interrupted | Self::Bench(_) | Self::Step(_) | Self::Experiment(_) => None,
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

/// Converts errors of libraries through [`StepError`].
macro_rules! through_step_error {
    ($($error:path),+ $(,)?) => {
        $(impl From<$error> for CliError {
            fn from(error: $error) -> Self {
                StepError::from(error).into()
            }
        })+
    };
}

through_step_error!(
    dipaco_model::ModelError,
    dipaco_net::NetError,
    dipaco_path::PathError,
    dipaco_protocol::PlanError,
    dipaco_routing::RoutingError,
    dipaco_server::ServerError,
    dipaco_shards::ShardsError,
    dipaco_store::StoreError,
    dipaco_telemetry::EventsError,
    dipaco_train::CoordinatorError,
    dipaco_train::HostError,
    dipaco_train::RouterError,
    dipaco_train::SeedError,
    dipaco_train::SynchronizerError,
    dipaco_train::TrainError,
    dipaco_train::WorkerError,
);

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
