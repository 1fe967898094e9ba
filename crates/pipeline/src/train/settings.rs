//! The settings that a training has had since it began.

use dipaco_config::RunConfig;
use dipaco_train::{CoordinatorError, training_origin};

use crate::error::PipelineError;
use crate::prepared::tokenizer_file;
use crate::run_directory::RunDirectory;
use crate::store::manifest;
use crate::vocabulary::with_vocabulary;

/// A setting that differs: its key, its value in the run, and the given value.
pub type Change = (String, String, String);

/// Checks that a run whose training has begun keeps the settings that its weights depend on. Call it before the
/// configuration is saved, so that a refused command leaves the saved one. `config` may lack its vocabulary. Without the
/// tokenizer of a run nothing can be compared, and no command can use its training.
///
/// # Errors
/// [`PipelineError::Coordinator`] when the training began with other settings, which [`changes_of_training`] names,
/// [`PipelineError::Model`] when they don't fit the tokenizer, and [`PipelineError::Store`] when the store can't be read.
pub async fn check_settings(run: &RunDirectory, config: &RunConfig) -> Result<(), PipelineError> {
    if tokenizer_file(run).is_none() {
        return Ok(());
    }
    let Some(manifest) = manifest(run).await? else { return Ok(()) };
    let (Some(start), Some(training)) = (manifest.start_hash(), &manifest.training) else { return Ok(()) };
    let config = with_vocabulary(run, config)?;
    if training.origin == training_origin(&config, &start)? {
        Ok(())
    } else {
        Err(CoordinatorError::OtherTraining.into())
    }
}

/// The settings of a training that has begun which differ from the given ones. The values of the run are those of its saved
/// configuration, and those of its manifest where that has them: somebody may have edited the configuration. Empty if neither
/// tells what differs.
///
/// # Errors
/// [`PipelineError::Store`] when the store can't be read.
pub async fn changes_of_training(
    run: &RunDirectory,
    saved: Option<&RunConfig>,
    given: &RunConfig,
) -> Result<Vec<Change>, PipelineError> {
    let Some(training) = manifest(run).await?.and_then(|manifest| manifest.training) else {
        return Ok(Vec::new());
    };
    let recorded = [
        ("train.rounds", u64::from(training.rounds), u64::from(given.train.rounds)),
        ("train.inner_steps", training.inner_steps, given.train.inner_steps),
    ];
    let mut changes = saved.map_or_else(Vec::new, |saved| saved.differences(given));
    changes.retain(|(key, ..)| {
        is_of_training(key, given) && recorded.iter().all(|(recorded, ..)| key != recorded)
    });
    let differs = recorded.into_iter().filter(|(_, run, given)| run != given);
    changes.extend(differs.map(|(key, run, given)| (key.to_owned(), run.to_string(), given.to_string())));
    Ok(changes)
}

/// True if [`training_origin`] depends on a key.
fn is_of_training(key: &str, config: &RunConfig) -> bool {
    // 0 stands for the size of the tokenizer, which is checked before.
    if key == "model.vocab_size" {
        return false;
    }
    let measures = config.train.holdout_fraction > 0.0 && config.train.holdout_sequences > 0;
    let sections = ["model.", "topology.", "train.", "sync.", "outer.", "routing.phases"];
    sections.iter().any(|section| key.starts_with(section))
        || key == "run.seed"
        || key == "evaluation.prefix_tokens" && measures
}

/// The settings of the steps before the training that differ between `saved` and `given`, in a run whose training has
/// begun: each key with both values. Those of routing may differ while a phase is to come, which then reads them.
///
/// # Errors
/// [`PipelineError::Store`] when the store can't be read.
pub async fn changes_of_finished_steps(
    run: &RunDirectory,
    saved: &RunConfig,
    given: &RunConfig,
) -> Result<Vec<Change>, PipelineError> {
    let sections = ["prepare.", "seed_model.", "routing."];
    let mut changes = saved.differences(given);
    changes.retain(|(key, ..)| sections.iter().any(|section| key.starts_with(section)));
    if changes.is_empty() {
        return Ok(changes);
    }
    match manifest(run).await?.and_then(|manifest| manifest.training) {
        None => changes.clear(),
        Some(training) if (training.phase as usize) < training.boundaries.len() => {
            changes.retain(|(key, ..)| !key.starts_with("routing."));
        }
        Some(_) => {}
    }
    Ok(changes)
}
