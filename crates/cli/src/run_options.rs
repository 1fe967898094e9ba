//! The options that name a run and its configuration.

mod unsaved_run;

use std::path::PathBuf;

use clap::Args;
use dipaco_config::{Pretrained, Resolved, RunConfig, RunSection, Sources};

use crate::error::CliError;
use crate::runtime;
use dipaco_pipeline::train::{changes_of_training, check_settings};
use dipaco_pipeline::vocabulary::with_vocabulary;
use dipaco_pipeline::{PipelineError, RunDirectory};
use dipaco_train::CoordinatorError;
use unsaved_run::saved;
pub(crate) use unsaved_run::{UnsavedRun, with_lasting_changes};

/// The run and its configuration.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunOptions {
    /// Directory of the run; the default is `runs/NAME`, with run.name of the configuration.
    #[arg(short, long, env = "DIPACO_RUN", value_name = "DIR")]
    pub(crate) run: Option<PathBuf>,
    /// Configuration file; the default is config.toml in the run's directory, or else the configuration of a tiny run.
    #[arg(short, long, env = "DIPACO_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Override a key, as in --set train.rounds=20; may be repeated. The variable DIPACO__TRAIN__ROUNDS=20 does the same.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

impl RunOptions {
    /// The run's directory and its configuration, for commands that only read the run.
    pub(crate) fn open(&self) -> Result<(RunDirectory, RunConfig), CliError> {
        self.open_with(None)
    }

    /// The same with the shape of a pretrained model, which the configuration must not contradict.
    pub(crate) fn open_with(
        &self,
        pretrained: Option<&Pretrained>,
    ) -> Result<(RunDirectory, RunConfig), CliError> {
        let sources = |file| Sources {
            pretrained: pretrained.cloned(),
            ..Sources::with_environment(file, self.overrides.clone())
        };
        let saved = self.run.as_ref().map(|run| RunDirectory::new(run).config()).filter(|file| file.exists());
        let file = self.config.clone().or(saved);
        let mut config = self.named(RunConfig::load(&sources(file))?);
        let root = self.run.clone().unwrap_or_else(|| config.run.directory());
        // The saved directory is wrong in a copied run, and --run is right.
        config.run.directory = None;
        let run = RunDirectory::new(root);
        if self.config.is_none() && self.run.is_none() && run.config().exists() {
            // An earlier command began the default run: its configuration counts.
            config = RunConfig::load(&sources(Some(run.config())))?.config;
            config.run.directory = None;
        }
        Ok((run.with_places(&config.run), config))
    }

    /// The configuration. A run of `--run` that nothing names has the name of its directory.
    fn named(&self, resolved: Resolved) -> RunConfig {
        let Resolved { mut config, origins } = resolved;
        if !origins.contains_key("run.name")
            && let Some(name) = self.run.as_deref().and_then(RunSection::name_of)
        {
            config.run.name = name;
        }
        config
    }

    /// The same as [`open`](Self::open) for a run that exists. A run whose store is elsewhere needs no directory here.
    pub(crate) fn open_existing(&self) -> Result<(RunDirectory, RunConfig), CliError> {
        let (run, config) = self.open()?;
        if config.run.store.is_none() {
            check_exists(&run)?;
        }
        Ok((run, config))
    }

    /// The same for commands that change a prepared run. They save the first result when nothing refuses its settings any more. The
    /// configuration has the vocabulary of the run's tokenizer. A training that began with other settings is refused here.
    pub(crate) fn open_unsaved(&self) -> Result<(UnsavedRun, RunConfig), CliError> {
        let (run, config) = self.open()?;
        check_exists(&run)?;
        let unsaved = UnsavedRun::new(run, config)?;
        let sized = with_vocabulary(&unsaved.run, &unsaved.config)?;
        check_training(&unsaved.run, &unsaved.config, unsaved.before.as_deref())?;
        Ok((unsaved, sized))
    }

    /// The same for commands that begin a run, unless its training began with other settings. A run that begins has its
    /// settings at once: after an interruption the command continues without `--config`, and the other parts of a divided
    /// work read them.
    pub(crate) fn open_to_begin(&self) -> Result<UnsavedRun, CliError> {
        let (run, config) = self.open()?;
        let unsaved = UnsavedRun::new(run, config)?;
        check_changed(&unsaved.run, &unsaved.config)?;
        Ok(unsaved.begun()?)
    }
}

/// Checks that a run whose training has begun keeps the settings that its weights depend on. Settings that are saved already
/// are not checked again: a repeated step needs no access to the store.
pub(crate) fn check_changed(run: &RunDirectory, config: &RunConfig) -> Result<(), CliError> {
    let saved = saved(run)?;
    if saved.as_ref().is_some_and(|saved| *saved == config.to_toml()) {
        return Ok(());
    }
    check_training(run, config, saved.as_deref())
}

/// [`check_settings`] with an error that names the settings. `saved` is the run's saved configuration.
fn check_training(run: &RunDirectory, config: &RunConfig, saved: Option<&str>) -> Result<(), CliError> {
    // A configuration that this program can't read tells nothing.
    let saved = saved.and_then(|text| RunConfig::from_toml(text, &run.config()).ok());
    runtime::run(async {
        let refusal = match check_settings(run, config).await {
            Err(error @ PipelineError::Coordinator(CoordinatorError::OtherTraining)) => error,
            checked => return Ok(checked?),
        };
        let changes = changes_of_training(run, saved.as_ref(), config).await?;
        if changes.is_empty() {
            return Err(refusal.into());
        }
        let list: Vec<_> =
            changes.iter().map(|(key, began, given)| format!("{key}: {began} → {given}")).collect();
        Err(CliError::Usage {
            message: format!(
                "the training of this run began with another configuration ({})",
                list.join(", ")
            ),
            remedy: "set them back, also in the run's config.toml, or train in another run directory: settings of a training, \
                     train.rounds among them, can't change after its beginning"
                .into(),
        })
    })
}

/// A run has a directory, or at least prepared text elsewhere (`run.data`).
fn check_exists(run: &RunDirectory) -> Result<(), PipelineError> {
    if run.root().exists() || run.tokenizer().exists() {
        return Ok(());
    }
    Err(PipelineError::NoRun { folder: run.root().to_owned() })
}
