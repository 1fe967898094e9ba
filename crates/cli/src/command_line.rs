//! The arguments of the program, the variables of its options, and what it says about mistakes in both.

use std::env;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, CommandFactory, Error, FromArgMatches};
use dipaco_telemetry::LogFormat;

use crate::args::{Cli, LOG_FORMAT};
use crate::error::{CliError, USAGE};

/// Reads the arguments `words`, the first of which names the program. An empty variable of an option counts as not set: files of
/// variables name all of them, and leave some empty.
pub(crate) fn parse(words: &[OsString]) -> Result<Cli, Error> {
    let command = without_empty_variables(Cli::command());
    let matches = command.clone().try_get_matches_from(words);
    let cli = matches.and_then(|mut matches| {
        Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command.clone()))
    });
    cli.map_err(|error| with_variable(error, &command, words))
}

/// Prints the help, the version or an error, in the format that the arguments ask for. Returns the exit code.
pub(crate) fn report(error: &Error, words: &[OsString]) -> u8 {
    if error.use_stderr() && asks_for_json(words) {
        let error = usage(error);
        error.report(LogFormat::Json);
        return error.exit_code();
    }
    // Nothing is left to report to when the help itself can't be printed.
    let _ = error.print();
    u8::try_from(error.exit_code()).unwrap_or(USAGE)
}

/// The command and its subcommands, whose options look at no empty variable.
fn without_empty_variables(command: Command) -> Command {
    let is_empty = |arg: &Arg| arg.get_env().and_then(env::var_os).is_some_and(|value| value.is_empty());
    command
        .mut_args(|arg| if is_empty(&arg) { arg.env(None::<&'static str>) } else { arg })
        .mut_subcommands(without_empty_variables)
}

/// Names the variable that a refused value comes from.
fn with_variable(mut error: Error, command: &Command, words: &[OsString]) -> Error {
    let refused = (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue));
    let (Some(ContextValue::String(option)), Some(_)) = refused else { return error };
    if let Some(name) = variable_of(option, command, words) {
        let tip = format!("the value is that of the environment variable {name}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// The variable that gives an option its value; `None` for an option among the words. Clap names the option as in
/// `--address <ADDRESS>`.
fn variable_of(option: &str, command: &Command, words: &[OsString]) -> Option<String> {
    // Only a built command names its options as errors do.
    let mut command = command.clone();
    command.build();
    let words: Vec<&str> = words.iter().skip(1).filter_map(|word| word.to_str()).collect();
    let mut named = &command;
    for word in &words {
        named = named.find_subcommand(word).unwrap_or(named);
    }
    let arg = named.get_arguments().find(|arg| arg.to_string() == option)?;
    let variable = arg.get_env().filter(|name| env::var_os(name).is_some())?;
    let is_given = words.iter().any(|word| match word.strip_prefix("--") {
        Some(long) => arg.get_long().is_some_and(|own| long.split('=').next() == Some(own)),
        None => word.starts_with('-') && arg.get_short().is_some_and(|own| word.contains(own)),
    });
    (!is_given).then(|| variable.to_string_lossy().into_owned())
}

/// Whether errors are to be JSON. Clap has read no option of a command line that it refuses.
fn asks_for_json(words: &[OsString]) -> bool {
    let mut words = words.iter().skip(1).filter_map(|word| word.to_str());
    let mut format = None;
    while let Some(word) = words.next() {
        match word.strip_prefix("--log-format") {
            Some("") => format = words.next(),
            Some(value) => format = value.strip_prefix('='),
            None => {}
        }
    }
    let format = format.map(str::to_owned).or_else(|| env::var(LOG_FORMAT).ok());
    format.as_deref() == Some("json")
}

/// An error of clap as an error of the program.
fn usage(error: &Error) -> CliError {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let message = text.split("\n\nFor more information, try ").next().unwrap_or(text);
    CliError::Usage {
        message: message.trim_end().to_owned(),
        remedy: "--help shows the commands and their options".to_owned(),
    }
}
