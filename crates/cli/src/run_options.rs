//! Which run a command is about, and its configuration.

use std::path::PathBuf;

use clap::Args;
use dipaco_config::{RunConfig, Sources};

use crate::error::CliError;
use dipaco_pipeline::{RunDirectory, save_config};

/// The run and its configuration.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunOptions {
    /// The run's directory; `runs/NAME` by the configuration's run.name without it.
    #[arg(short, long, env = "DIPACO_RUN", value_name = "DIR")]
    pub(crate) run: Option<PathBuf>,
    /// The configuration file; that of the run's directory, or the defaults of a tiny run, without it.
    #[arg(short, long, env = "DIPACO_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Override a key, as in --set train.rounds=20; may be repeated. DIPACO__TRAIN__ROUNDS=20 does the same.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

impl RunOptions {
    /// The run's directory and its configuration, for commands that only read the run.
    pub(crate) fn open(&self) -> Result<(RunDirectory, RunConfig), CliError> {
        let saved = self.run.as_ref().map(|run| RunDirectory::new(run).config()).filter(|file| file.exists());
        let file = self.config.clone().or(saved);
        let loaded = RunConfig::load(&Sources::with_environment(file, self.overrides.clone()))?;
        let mut config = loaded.config;
        let root = self.run.clone().unwrap_or_else(|| config.run.directory());
        // The run may have been copied: the directory that was named is the one that counts.
        config.run.directory = None;
        let run = RunDirectory::new(root);
        if self.config.is_none() && self.run.is_none() && run.config().exists() {
            // The default run, begun by an earlier command.
            let sources = Sources::with_environment(Some(run.config()), self.overrides.clone());
            config = RunConfig::load(&sources)?.config;
            config.run.directory = None;
        }
        Ok((run.with_data(config.run.data.as_deref()), config))
    }

    /// The same for commands that change the run: the resolved configuration is saved with it.
    pub(crate) fn open_to_write(&self) -> Result<(RunDirectory, RunConfig), CliError> {
        let (run, config) = self.open()?;
        save_config(&run, &config)?;
        Ok((run, config))
    }
}
