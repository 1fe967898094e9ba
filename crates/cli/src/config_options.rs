//! The options that name a configuration.

use std::path::PathBuf;

use clap::Args;
use dipaco_config::{Resolved, RunConfig, Sources};

use crate::error::CliError;

/// The sources of a command's configuration.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConfigOptions {
    /// Configuration file; the default is the configuration of a tiny run.
    #[arg(short, long, env = "DIPACO_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Override a key, as in --set train.rounds=20; may be repeated. The variable DIPACO__TRAIN__ROUNDS=20 does the same.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

impl ConfigOptions {
    /// Reads the configuration from its sources and checks it.
    pub(crate) fn load(&self) -> Result<Resolved, CliError> {
        Ok(RunConfig::load(&Sources::with_environment(self.config.clone(), self.overrides.clone()))?)
    }
}
