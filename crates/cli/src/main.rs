//! The program dipaco.

#![forbid(unsafe_code)]

mod args;
mod command_line;
mod commands;
mod config_options;
mod device;
mod error;
mod hangup;
mod http_address;
mod interrupt;
mod memory;
mod number;
mod output;
mod part;
mod plain_text;
mod process_use;
mod run_options;
mod runtime;
mod token_place;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::{Cli, Command};
use crate::error::CliError;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let cli = match command_line::parse(&words) {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(command_line::report(&error, &words)),
    };
    let format = cli.global.log_format();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.report(format);
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<(), CliError> {
    let progress = &cli.global.init_logs()?;
    // A forced set of kernels that can't run is an error before any work. `doctor` reports it among its findings.
    if !matches!(cli.command, Command::Doctor(_)) {
        let kernels = dipaco_model::kernel_choice()?;
        if kernels.has_problem {
            tracing::warn!("the kernels {}: {}", kernels.set, kernels.reason);
        }
    }
    match cli.command {
        Command::Quickstart(options) => commands::quickstart::run(&options, progress),
        Command::Prepare(options) => commands::prepare::run(&options, progress),
        Command::FetchC4(options) => commands::fetch_c4::run(&options, progress),
        Command::Seed(options) => commands::seed::run(&options, progress),
        Command::Route(command) => commands::route::run(&command, progress),
        Command::Train(options) => commands::train::run(&options, progress),
        Command::Coordinator(options) => commands::train::run_coordinator(&options, progress),
        Command::Synchronizer(options) => commands::synchronizer::run(&options),
        Command::Worker(options) => commands::worker::run(&options),
        Command::Launch(command) => commands::launch::run(&command),
        Command::Token(command) => commands::token::run(&command),
        Command::Rollback(options) => commands::rollback::run(&options, progress),
        Command::Extend(options) => commands::extend::run(&options, progress),
        Command::Evaluate(options) => commands::evaluate::run(&options, progress),
        Command::Experiment(command) => commands::experiment::run(&command, progress),
        Command::Plan(options) => commands::plan::run(&options),
        Command::Plot(options) => commands::plot::run(&options),
        Command::Tensorboard(options) => commands::tensorboard::run(&options),
        Command::Simulate(command) => commands::simulate::run(&command, progress),
        Command::Serve(options) => commands::serve::run(&options, progress),
        Command::Export(options) => commands::export::run(&options),
        Command::Status(options) => commands::status::run(&options),
        Command::Bench(command) => commands::bench::run(&command, progress),
        Command::Config(command) => commands::config::run(command),
        Command::Doctor(options) => commands::doctor::run(&options),
        Command::Licences => commands::licences::run(),
        Command::Completions { shell } => commands::completions::run(shell, Cli::command()),
        Command::Man { folder } => commands::man::run(folder, Cli::command()),
    }
}
