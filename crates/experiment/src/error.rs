//! Errors of experiments.

use std::path::PathBuf;

use dipaco_config::ConfigError;
use thiserror::Error;

/// Errors of an experiment or its results.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// A file can't be read.
    #[error("can't read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the file system.
        #[source]
        source: std::io::Error,
    },
    /// A file is not valid TOML, or has unknown keys.
    #[error("{} is not an experiment", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// Error of the parser, with its place.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// The values of the file do not fit together.
    #[error("{}: {problem}", path.display())]
    Experiment {
        /// The file.
        path: PathBuf,
        /// The problem and its remedy.
        problem: String,
    },
    /// The configuration of a run can't be used.
    #[error("{}, run `{run}`: its configuration can't be used", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// Name of the run, with the router and the evaluation if the error concerns one.
        run: String,
        /// Error of the configuration. Each problem names the part that it is in: a line of the base, or a table of the file.
        #[source]
        source: ConfigError,
    },
    /// A file of results can't be used.
    #[error("{} does not hold results of this version: run the experiment again", path.display())]
    Results {
        /// The file.
        path: PathBuf,
        /// Error of the parser.
        #[source]
        source: serde_json::Error,
    },
}

impl ExperimentError {
    /// Returns whether the user's file or its name is the cause.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        matches!(
            self,
            Self::Read { .. } | Self::Toml { .. } | Self::Experiment { .. } | Self::Configuration { .. }
        )
    }
}
