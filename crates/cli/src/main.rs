//! The program dipaco.

mod args;
mod commands;
mod error;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the commands that run long come with the training drivers")
)]
mod interrupt;
mod output;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::error::CliError;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing is left to report to when the help itself can't be printed.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(error::USAGE));
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.report();
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<(), CliError> {
    cli.global.init_logs()?;
    match cli.command {
        Command::Config(command) => commands::config::run(command),
        Command::Doctor(options) => commands::doctor::run(&options),
        Command::Completions { shell } => commands::completions::run(shell),
    }
}
