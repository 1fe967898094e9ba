//! Errors of commands, with their exit codes and remedies.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;

use dipaco_config::ConfigError;
use dipaco_experiment::ExperimentError;
use dipaco_monitor::TensorBoardError;
use dipaco_telemetry::{LogFormat, LogsError, causes};
use thiserror::Error;

use crate::plain_text::without_commands;
use dipaco_pipeline::PipelineError;

/// Exit code of a failure.
const FAILURE: u8 = 1;
/// Exit code of wrong usage or configuration.
pub(crate) const USAGE: u8 = 2;
/// Exit code of a coordinator whose run another coordinator has taken over.
const REPLACED: u8 = 3;
/// Exit code of a process that may be started again later: it can't reach its coordinator, or another command has the run.
/// EX_TEMPFAIL of sysexits.h.
const COME_BACK_LATER: u8 = 75;
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
    /// An argument that clap can't check.
    #[error("{message}")]
    Usage {
        /// The mistake.
        message: String,
        /// The remedy.
        remedy: String,
    },
    /// The forced set of kernels can't run.
    #[error(transparent)]
    Kernels(#[from] dipaco_model::KernelSetError),
    /// A file or stream.
    #[error("can't {action} {}", path.display())]
    Io {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The file or stream.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The user asked to stop.
    #[error(
        "interrupted; finished work is kept: repeat the command to continue, `dipaco train` with --resume"
    )]
    Interrupted,
    /// The user asked an evaluation to stop. It can't be continued.
    #[error("interrupted; {}", if *finished == 0 { "no row is finished" } else { "the rows above are finished" })]
    InterruptedEvaluation {
        /// Number of finished rows.
        finished: usize,
    },
    /// A simulated run broke an invariant.
    #[error(
        "{what}\nthis is a fault of dipaco; `dipaco simulate chaos --from SEED --seeds 1` with the same --peers plays it again"
    )]
    Violated {
        /// The seeds and the broken invariants.
        what: String,
    },
    /// A server's address.
    #[error("can't listen on {address}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The option or key that names it.
        setting: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A load test or a transfer trial.
    #[error(transparent)]
    Bench(#[from] dipaco_bench::BenchError),
    /// A step of a run.
    #[error(transparent)]
    Step(PipelineError),
    /// Files for TensorBoard.
    #[error(transparent)]
    TensorBoard(#[from] TensorBoardError),
    /// An experiment, or its results.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// Cells of experiments that failed. Each failure is logged.
    #[error("{failed} of {of} cells failed")]
    Cells {
        /// Number of failed cells.
        failed: usize,
        /// Number of cells.
        of: usize,
    },
    /// The quickstart needs the sources of crates.
    #[error("there are no sources of crates in {}: give text of your own with --data", folder.display())]
    NoCrates {
        /// Cargo's folder of sources.
        folder: PathBuf,
    },
    /// A file that is a part of this program.
    #[error("internal fault of dipaco: its own {file} can't be read; please report it")]
    OwnFile {
        /// The file.
        file: &'static str,
        /// The reason.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// The quickstart's own server.
    #[error("{url} does not answer")]
    Request {
        /// The requested address.
        url: String,
        /// The reason.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The quickstart's own server.
    #[error("internal fault of dipaco: the answer of {what} has another form; please report it")]
    Answer {
        /// The request's path.
        what: &'static str,
    },
    /// `status --complete` of a run that is not.
    #[error("the training of {} is not complete", run.display())]
    Incomplete {
        /// The run's directory.
        run: PathBuf,
    },
    /// `doctor` found a fault.
    #[error("{failed} of the checks failed")]
    Doctor {
        /// Number of failed checks.
        failed: usize,
    },
}

impl CliError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Usage { .. } | Self::Kernels(_) | Self::Logs(_) => USAGE,
            Self::Interrupted | Self::InterruptedEvaluation { .. } => INTERRUPTED,
            Self::Step(step) if step.is_configuration() => USAGE,
            Self::Step(step) if step.is_replaced() => REPLACED,
            Self::Step(step) if step.is_unreachable() || step.is_busy() => COME_BACK_LATER,
            Self::Experiment(error) if error.is_configuration() => USAGE,
            Self::Step(_)
            | Self::Bench(_)
            | Self::TensorBoard(_)
            | Self::Io { .. }
            | Self::Listen { .. }
            | Self::Experiment(_)
            | Self::Cells { .. }
            | Self::Violated { .. }
            | Self::NoCrates { .. }
            | Self::OwnFile { .. }
            | Self::Request { .. }
            | Self::Answer { .. }
            | Self::Incomplete { .. }
            | Self::Doctor { .. } => FAILURE,
        }
    }

    /// A remedy that the message does not contain.
    fn remedy(&self) -> Option<String> {
        match self {
            Self::Usage { remedy, .. } => Some(remedy.clone()),
            Self::Doctor { .. } => Some("the remedy below each failed check".into()),
            Self::Io { source, .. } => io_remedy(source).map(str::to_owned),
            Self::Config(ConfigError::Read { source, .. }) => io_remedy(source).map(str::to_owned),
            Self::TensorBoard(TensorBoardError::Io { source, .. }) => io_remedy(source).map(str::to_owned),
            Self::Config(_) => Some("`dipaco config keys` explains every key".into()),
            Self::Step(PipelineError::Server(
                dipaco_server::ServerError::KeyFile { source, .. }
                | dipaco_server::ServerError::ChatTemplateFile { source, .. },
            )) => Some(io_remedy(source).unwrap_or("name a file of text, or leave the key out").into()),
            Self::Listen { setting, source, .. } => Some(match source.kind() {
                io::ErrorKind::AddrInUse => {
                    format!("give {setting} another port, or stop the program that uses this one")
                }
                kind => format!("give {setting} an address of this machine ({kind})"),
            }),
            Self::Violated { .. } => {
                Some("report it: this is a fault of dipaco, and --from SEED --seeds 1 plays it again".into())
            }
            Self::Incomplete { .. } => Some("`dipaco status` says how far it is".into()),
            Self::Cells { .. } => Some("run the same command again: finished cells are not repeated".into()),
            Self::Experiment(ExperimentError::Read { source, .. }) => io_remedy(source).map(str::to_owned),
            Self::Experiment(ExperimentError::Configuration { .. }) => {
                Some("`dipaco config keys` explains every key".into())
            }
            Self::Logs(_)
            | Self::Kernels(_)
            | Self::Interrupted
            | Self::InterruptedEvaluation { .. }
            | Self::Bench(_)
            | Self::TensorBoard(_)
            | Self::Step(_)
            | Self::Experiment(_)
            | Self::NoCrates { .. }
            | Self::OwnFile { .. }
            | Self::Request { .. }
            | Self::Answer { .. } => None,
        }
    }

    /// Reports the error on standard error, in the format of the logs.
    pub(crate) fn report(&self, format: LogFormat) {
        let text = match format {
            LogFormat::Pretty => without_commands(&self.text()),
            LogFormat::Json => format!("{}\n", self.json()),
        };
        // Nothing is left to report to when standard error is closed.
        let _ = io::stderr().write_all(text.as_bytes());
    }

    fn text(&self) -> String {
        match self {
            Self::Config(ConfigError::Problems(problems)) => {
                let lines = problems.iter().map(|problem| render(problem, None, None));
                lines.chain(self.remedy().map(|remedy| format!("  try: {remedy}\n"))).collect()
            }
            _ => render(self, self.source(), self.remedy()),
        }
    }

    fn json(&self) -> serde_json::Value {
        let message = self.to_string();
        serde_json::json!({
            "level": "ERROR",
            "because": causes(&message, self.source()),
            "message": message,
            "try": self.remedy(),
            "exit_code": self.exit_code(),
        })
    }
}

/// `error: …`, one `because: …` for each cause, `try: …`.
fn render(
    what: &dyn std::fmt::Display,
    cause: Option<&(dyn Error + 'static)>,
    remedy: Option<String>,
) -> String {
    let what = what.to_string();
    let mut out = format!("error: {what}\n");
    for cause in causes(&what, cause) {
        let _ = writeln!(out, "  because: {cause}");
    }
    if let Some(remedy) = remedy {
        let _ = writeln!(out, "  try: {remedy}");
    }
    out
}

/// Remedies for the usual errors of files.
fn io_remedy(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::NotFound => Some("check the name, or make the file or folder first"),
        io::ErrorKind::PermissionDenied => Some("check its owner and permissions"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Some("free some space, then run the command again")
        }
        io::ErrorKind::ReadOnlyFilesystem => Some("name a directory that can be written"),
        _ => None,
    }
}

impl From<PipelineError> for CliError {
    fn from(error: PipelineError) -> Self {
        match error {
            PipelineError::Interrupted => Self::Interrupted,
            error => Self::Step(error),
        }
    }
}

/// Converts errors of libraries through [`PipelineError`].
macro_rules! through_step_error {
    ($($error:path),+ $(,)?) => {
        $(impl From<$error> for CliError {
            fn from(error: $error) -> Self {
                PipelineError::from(error).into()
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
    dipaco_train::client::TokenPlaceError,
    dipaco_train::TrainError,
    dipaco_train::WorkerError,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_chain_is_reported_once() {
        let source = io::Error::new(io::ErrorKind::NotFound, "no such file");
        let error = CliError::Config(ConfigError::Read { path: "a.toml".into(), source });
        assert_eq!(
            render(&error, error.source(), error.remedy()),
            "error: the configuration file a.toml can't be read\n  because: no such file\n  \
             try: check the name, or make the file or folder first\n"
        );
    }
}
