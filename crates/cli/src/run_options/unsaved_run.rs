//! A run whose settings a command has not saved yet.

mod places;
mod whole_memory;

use std::io;

use dipaco_config::RunConfig;
use dipaco_pipeline::train::changes_of_finished_steps;
use dipaco_pipeline::{PipelineError, RunDirectory, save_config};

use crate::error::CliError;
use crate::runtime;
pub(crate) use places::with_lasting_changes;
use places::with_lasting_names;

/// A run with settings that are not saved yet. A command saves them when its own work has accepted them. Saved before, settings
/// that are refused would have the next command refused too, although its user changed nothing.
pub(crate) struct UnsavedRun {
    /// The run.
    pub(crate) run: RunDirectory,
    /// The settings, without the vocabulary of the run's tokenizer. The places that they name are found from every folder.
    pub(crate) config: RunConfig,
    /// The saved configuration when the command began; `None` in a run that begins.
    pub(super) before: Option<String>,
}

impl UnsavedRun {
    /// A run as it is now, with the settings of a command.
    pub(crate) fn new(run: RunDirectory, config: RunConfig) -> Result<Self, PipelineError> {
        let (before, config) = (saved(&run)?, with_lasting_names(&run, config)?);
        Ok(Self { run, config, before })
    }

    /// The same, with the settings saved if the run begins with them.
    pub(crate) fn begun(mut self) -> Result<Self, PipelineError> {
        if self.before.is_none() {
            self.accept()?;
        }
        Ok(self)
    }

    /// Checks that a training that goes on keeps the saved settings of the steps before it. With other settings saved, a
    /// repeated step would be refused.
    pub(crate) fn check_finished_steps(&self) -> Result<(), CliError> {
        let Some(before) = self.before.as_ref().and_then(|text| self.read(text)) else { return Ok(()) };
        let changes =
            runtime::run(async { Ok(changes_of_finished_steps(&self.run, &before, &self.config).await?) })?;
        if changes.is_empty() {
            return Ok(());
        }
        let list: Vec<_> =
            changes.iter().map(|(key, saved, given)| format!("{key}: {saved} → {given}")).collect();
        Err(CliError::Usage {
            message: format!(
                "the paths of this run are trained, and steps before the training had other settings ({})",
                list.join(", ")
            ),
            remedy:
                "leave these settings to the run's config.toml, or take all steps in another run directory"
                    .into(),
        })
    }

    /// A saved configuration of the run, with names as this one has them. Nothing is lost of a configuration that this program can't
    /// read.
    fn read(&self, text: &str) -> Option<RunConfig> {
        let config = RunConfig::from_toml(text, &self.run.config()).ok()?;
        with_lasting_names(&self.run, config).ok()
    }

    /// Saves the settings before the work is done. Call it when nothing refuses them any more: a command that is killed while it works
    /// then continues with them.
    pub(crate) fn accept(&mut self) -> Result<(), PipelineError> {
        self.save()?;
        self.before = Some(self.config.to_toml());
        Ok(())
    }

    /// Saves the settings with the run. An edit of the saved configuration that somebody made since [`Self::new`] stays, because a
    /// command may work for hours; the settings are then not saved, and a warning says so.
    pub(crate) fn save(&self) -> Result<(), PipelineError> {
        let (now, file) = (saved(&self.run)?, self.run.config());
        if now == self.before {
            return save_config(&self.run, &self.config);
        }
        // Another part of the same work may have saved them, and a command without settings of its own has none to save.
        let is_known = |text: &String| self.read(text).is_some_and(|known| known == self.config);
        if !now.iter().chain(&self.before).any(is_known) {
            tracing::warn!(
                "{} was changed while this command worked, so its settings are not saved: repeat the command, which keeps its \
                 finished work and saves them",
                file.display()
            );
        }
        Ok(())
    }
}

/// The saved configuration of a run as text; `None` if it has none.
pub(super) fn saved(run: &RunDirectory) -> Result<Option<String>, PipelineError> {
    let path = run.config();
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PipelineError::Io { action: "read", path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_saves_its_settings_and_undoes_no_edit_that_was_made_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path().join("run"));
        let with = |slots: usize| {
            let mut config = RunConfig::default();
            config.serve.slots = slots;
            config
        };
        let unsaved = |slots| UnsavedRun::new(run.clone(), with(slots)).unwrap();
        let is_saved = |slots| assert_eq!(saved(&run).unwrap(), Some(with(slots).to_toml()));
        let edit = |slots| save_config(&run, &with(slots)).unwrap();

        // A run that begins has its settings at once, and the end of the command undoes no edit.
        let begun = unsaved(1).begun().unwrap();
        is_saved(1);
        edit(2);
        begun.save().unwrap();
        is_saved(2);
        // A command saves nothing before its work is done.
        let command = unsaved(3).begun().unwrap();
        is_saved(2);
        command.save().unwrap();
        is_saved(3);
        // Neither with nor without settings of its own.
        for own in [4, 3] {
            let command = unsaved(own);
            edit(5);
            command.save().unwrap();
            is_saved(5);
            edit(3);
        }
        // As the warning advises: the command again.
        unsaved(4).save().unwrap();
        is_saved(4);
    }
}
