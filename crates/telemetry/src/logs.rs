//! Logs on standard error.

use std::io::{self, Write};

use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, ParseError};
use tracing_subscriber::fmt::MakeWriter;

use crate::Progress;
use crate::stderr::Stderr;

/// What a log line looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: level and message; with `-vv` also time and target.
    #[default]
    Pretty,
    /// One JSON object per line.
    Json,
}

/// How much is logged, and in which form.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// The form of a line.
    pub format: LogFormat,
    /// 0 logs warnings and what the user should know, each step up one level more, each step down one less.
    pub verbosity: i8,
    /// A filter in the syntax of `RUST_LOG`, which goes before `verbosity`.
    pub filter: Option<String>,
    /// Whether lines may have colours.
    pub colour: bool,
}

/// Why logs can't be set up.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LogsError {
    /// The filter can't be read.
    #[error(
        "the log filter `{filter}` in RUST_LOG can't be read: write a level, or a list such as \"info,dipaco_net=debug\""
    )]
    Filter {
        /// The filter as given.
        filter: String,
        /// What is wrong with it.
        #[source]
        source: ParseError,
    },
    /// A subscriber is already there.
    #[error("logs were already set up")]
    Twice,
}

/// Sends logs to standard error, around the bars of `progress`.
///
/// # Errors
/// When the filter can't be read, or logs were already set up in this process.
pub fn init_logs(options: &LogOptions, progress: &Progress) -> Result<(), LogsError> {
    let filter = match &options.filter {
        Some(filter) => EnvFilter::builder()
            .parse(filter)
            .map_err(|source| LogsError::Filter { filter: filter.clone(), source })?,
        None => default_filter(options.verbosity),
    };
    let writer = AroundBars { progress: progress.clone() };
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(options.colour);
    let set = match options.format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Pretty if options.verbosity >= 2 => builder.try_init(),
        LogFormat::Pretty => builder.compact().without_time().with_target(false).try_init(),
    };
    set.map_err(|_| LogsError::Twice)
}

/// Our own packages at the level asked for; the libraries under us stay at warnings until `-vvv`.
fn default_filter(verbosity: i8) -> EnvFilter {
    let own = match verbosity {
        i8::MIN..=-2 => LevelFilter::OFF,
        -1 => LevelFilter::ERROR,
        0 => LevelFilter::INFO,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let others = match verbosity {
        i8::MIN..=-2 => LevelFilter::OFF,
        -1..=2 => own.min(LevelFilter::WARN),
        _ => LevelFilter::DEBUG,
    };
    // A directive goes for every target that begins with its name: `dipaco` covers all of our packages.
    EnvFilter::builder().parse_lossy(format!("{others},dipaco={own}"))
}

/// Writes each line while the bars are out of the way.
struct AroundBars {
    progress: Progress,
}

impl<'a> MakeWriter<'a> for AroundBars {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { progress: &self.progress }
    }
}

/// The writer of one log line, which comes in a single write.
struct Line<'a> {
    progress: &'a Progress,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.progress.suspend(|| Stderr.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_can_not_be_read_is_named() {
        let options = LogOptions { filter: Some("dipaco=loud".into()), ..LogOptions::default() };
        let error = init_logs(&options, &Progress::hidden()).unwrap_err();
        assert!(error.to_string().contains("`dipaco=loud` in RUST_LOG"), "{error}");
    }

    #[test]
    fn libraries_are_quieter_than_our_own_packages() {
        let filter = default_filter(0).to_string();
        assert!(filter.contains("dipaco=info") && filter.contains("warn"), "{filter}");
        assert!(default_filter(-1).to_string().contains("dipaco=error"));
    }
}
