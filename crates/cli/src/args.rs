//! The command line.

use std::io::IsTerminal;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use dipaco_telemetry::{LogFormat, LogOptions, Progress, init_logs};

use crate::commands;
use crate::error::CliError;

const EXAMPLES: &str = "\
Examples:
  dipaco quickstart                                    from text to a served model, in minutes
  dipaco doctor                                        check this machine
  dipaco config show --config my.toml                  see what will run
  dipaco config check --config my.toml --set train.rounds=20

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 another
coordinator has taken the run over, 75 come back later (the coordinator is out of
reach, or another command has the run), 130 interrupted.
Data goes to standard output, everything else to standard error.";

/// Trains and serves a modular language model: many small paths through shared modules, kept in sync over slow networks.
#[derive(Debug, Parser)]
#[command(name = "dipaco", version, after_help = EXAMPLES, arg_required_else_help = true, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalOptions,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// From text to a served model, with one command.
    #[command(after_help = commands::quickstart::EXAMPLES)]
    Quickstart(commands::quickstart::QuickstartOptions),
    /// Turn text into a tokenizer and token files.
    #[command(after_help = commands::prepare::EXAMPLES)]
    Prepare(commands::prepare::PrepareOptions),
    /// Download files of C4 from the Hugging Face hub.
    #[command(after_help = commands::fetch_c4::EXAMPLES)]
    FetchC4(commands::fetch_c4::FetchOptions),
    /// Pretrain the dense path that every path starts from.
    #[command(after_help = commands::seed::EXAMPLES)]
    Seed(commands::seed::SeedArguments),
    /// Fit the router, and divide the text among the paths.
    #[command(subcommand)]
    Route(commands::route::RouteCommand),
    /// Train the paths: coordinator and workers on this machine.
    #[command(after_help = commands::train::TRAIN_EXAMPLES)]
    Train(commands::train::TrainArguments),
    /// Coordinate the training of workers on other machines.
    #[command(after_help = commands::train::COORDINATOR_EXAMPLES)]
    Coordinator(commands::train::CoordinatorArguments),
    /// Take the outer steps of some modules in a process of its own.
    #[command(after_help = commands::synchronizer::EXAMPLES)]
    Synchronizer(commands::synchronizer::SynchronizerArguments),
    /// Train paths for a coordinator.
    #[command(after_help = commands::worker::EXAMPLES)]
    Worker(commands::worker::WorkerArguments),
    /// Write job scripts that train a run on a cluster.
    #[command(subcommand)]
    Launch(commands::launch::LaunchCommand),
    /// Issue and revoke the tokens with which workers join a run.
    #[command(subcommand)]
    Token(commands::token::TokenCommand),
    /// Take a run back to an earlier round.
    #[command(after_help = commands::rollback::EXAMPLES)]
    Rollback(commands::rollback::RollbackOptions),
    /// Begin a run with the modules of a finished one: add paths for new text, or remove some.
    #[command(after_help = commands::extend::EXAMPLES)]
    Extend(commands::extend::ExtendOptions),
    /// Measure perplexity on validation text.
    #[command(after_help = commands::evaluate::EXAMPLES)]
    Evaluate(commands::evaluate::EvaluateOptions),
    /// Train and compare many runs: configurations × routers × seeds.
    #[command(subcommand)]
    Experiment(commands::experiment::ExperimentCommand),
    /// Compare the settings of a run with the literature, and compute its time.
    #[command(after_help = commands::plan::EXAMPLES)]
    Plan(commands::plan::PlanOptions),
    /// Draw charts of runs and experiments, as SVG and PNG.
    #[command(after_help = commands::plot::EXAMPLES)]
    Plot(commands::plot::PlotOptions),
    /// Write the events of a run as curves for TensorBoard.
    #[command(after_help = commands::tensorboard::EXAMPLES)]
    Tensorboard(commands::tensorboard::TensorboardOptions),
    /// Simulate large runs: bandwidth, failures, learners of different speeds, servers of many paths; and small runs under faults.
    #[command(subcommand)]
    Simulate(commands::simulate::SimulateCommand),
    /// Serve a trained run over HTTP.
    #[command(after_help = commands::serve::EXAMPLES)]
    Serve(commands::serve::ServeOptions),
    /// Write a path as a Hugging Face checkpoint or a GGUF file.
    #[command(after_help = commands::export::EXAMPLES)]
    Export(commands::export::ExportOptions),
    /// Show the progress of a run.
    #[command(after_help = commands::status::EXAMPLES)]
    Status(commands::status::StatusOptions),
    /// Measure training steps, leases, transfers, coordinators and servers on this machine.
    #[command(subcommand)]
    Bench(commands::bench::BenchCommand),
    /// Show, check or explain the configuration.
    #[command(subcommand)]
    Config(commands::config::ConfigCommand),
    /// Check whether this machine can train and serve.
    Doctor(commands::doctor::DoctorOptions),
    /// Print the licences of other people's packages in this program.
    Licences,
    /// Print completions for a shell.
    #[command(after_help = commands::completions::EXAMPLES)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write manual pages: one of the program, and one of each command.
    #[command(after_help = commands::man::EXAMPLES)]
    Man {
        /// Folder of the pages.
        folder: std::path::PathBuf,
    },
}

/// The variable of `--log-format`.
pub(crate) const LOG_FORMAT: &str = "DIPACO_LOG_FORMAT";

/// Heading of [`GlobalOptions`] in the help of each command.
const EVERY_COMMAND: &str = "Options of every command";

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct GlobalOptions {
    /// Show no progress, and of the logs only warnings and errors; given twice, no logs.
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "verbose", help_heading = EVERY_COMMAND)]
    pub(crate) quiet: u8,
    /// Show more logs; may be given up to three times. RUST_LOG sets the level of each package.
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = EVERY_COMMAND)]
    pub(crate) verbose: u8,
    /// Format of logs, progress and errors on standard error.
    #[arg(
        long,
        global = true,
        help_heading = EVERY_COMMAND,
        env = LOG_FORMAT,
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    pub(crate) log_format: LogFormatOption,
}

/// The values of `--log-format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormatOption {
    /// Readable text.
    #[default]
    Pretty,
    /// One JSON object per line.
    Json,
}

impl GlobalOptions {
    /// The format of logs and errors.
    pub(crate) fn log_format(&self) -> LogFormat {
        match self.log_format {
            LogFormatOption::Pretty => LogFormat::Pretty,
            LogFormatOption::Json => LogFormat::Json,
        }
    }

    /// Sets up logs, and returns the progress display that writes between them.
    pub(crate) fn init_logs(&self) -> Result<Progress, CliError> {
        let format = self.log_format();
        let progress = match format {
            _ if self.quiet > 0 => Progress::hidden(),
            LogFormat::Pretty => Progress::stderr(),
            LogFormat::Json => Progress::logged(),
        };
        let level = |count: u8| i8::try_from(count).unwrap_or(i8::MAX);
        let options = LogOptions {
            format,
            verbosity: level(self.verbose).saturating_sub(level(self.quiet)),
            filter: std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty()),
            colour: std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        };
        init_logs(&options, &progress)?;
        Ok(progress)
    }
}
