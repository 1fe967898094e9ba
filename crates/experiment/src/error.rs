//! What can be wrong with an experiment.

use std::path::PathBuf;

use dipaco_config::ConfigError;
use thiserror::Error;

/// Why an experiment or its results can't be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// A file can't be read.
    #[error("can't read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A file is no TOML, or has keys that an experiment does not have.
    #[error("{} is no experiment", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// The file can be read, and does not make sense.
    #[error("{}: {problem}", path.display())]
    Experiment {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The configuration of a run can't be used.
    #[error("{}, run `{run}`: its configuration can't be used", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// The run, with the router and the evaluation when it is about one.
        run: String,
        /// What is wrong; lines are those of the merged configuration.
        #[source]
        source: ConfigError,
    },
    /// A file of results can't be used.
    #[error("{} holds no results of an experiment of this version: run the experiment again", path.display())]
    Results {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
}

impl ExperimentError {
    /// Whether the experiment file is at fault.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Toml { .. } | Self::Experiment { .. } | Self::Configuration { .. })
    }
}
