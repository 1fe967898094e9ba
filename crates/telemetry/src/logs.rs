//! Logs on standard error.

use std::io::{self, Write};

use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, ParseError};
use tracing_subscriber::fmt::MakeWriter;

use crate::Progress;
use crate::stderr::Stderr;

/// Form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: level and message; with `-vv` also time and target.
    #[default]
    Pretty,
    /// One JSON object per line.
    Json,
}

/// Level and form of the log.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// Form of a line.
    pub format: LogFormat,
    /// 0 logs errors, warnings and information. Each step up adds a level. -1 logs errors and warnings, less nothing.
    pub verbosity: i8,
    /// Filter in the syntax of `RUST_LOG`, which overrides `verbosity`.
    pub filter: Option<String>,
    /// Colours the lines.
    pub colour: bool,
}

/// Errors of setting up the log.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LogsError {
    /// The filter can't be parsed.
    #[error(
        "the log filter `{filter}` in RUST_LOG can't be parsed: write a level, or a list such as \"info,dipaco_net=debug\""
    )]
    Filter {
        /// The filter.
        filter: String,
        /// Error of the parser.
        #[source]
        source: ParseError,
    },
    /// The log is already set up in this process.
    #[error("the log is already set up in this process")]
    Twice,
}

/// Writes the log to standard error, above the bars of `progress`.
///
/// # Errors
/// When the filter can't be parsed, or the log is already set up in this process.
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

/// Packages of this workspace log at the level of `verbosity`. Other libraries log warnings only, up to `-vv`.
fn default_filter(verbosity: i8) -> EnvFilter {
    let own = match verbosity {
        i8::MIN..=-2 => LevelFilter::OFF,
        -1 => LevelFilter::WARN,
        0 => LevelFilter::INFO,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let others = match verbosity {
        i8::MIN..=-2 => LevelFilter::OFF,
        -1..=2 => own.min(LevelFilter::WARN),
        _ => LevelFilter::DEBUG,
    };
    // A directive applies to every target that begins with its name, so `dipaco` covers all packages of the workspace.
    EnvFilter::builder().parse_lossy(format!("{others},dipaco={own}"))
}

/// Hides the bars while it writes a line.
struct AroundBars {
    progress: Progress,
}

impl<'a> MakeWriter<'a> for AroundBars {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { progress: &self.progress }
    }
}

/// The writer of one log line, which arrives in a single write.
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
        assert!(default_filter(-1).to_string().contains("dipaco=warn"), "a warning is no progress");
    }
}
