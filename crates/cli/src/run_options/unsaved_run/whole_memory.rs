//! Refusing a training for which all memory of this machine is not enough.

use dipaco_config::RunConfig;
use dipaco_path::DeviceChoice;
use dipaco_pipeline::dry_run::{TooLargeToTrain, seed_too_large, workers_too_large};
use dipaco_pipeline::machine_memory::machine_memory;
use dipaco_pipeline::store::manifest;

use super::UnsavedRun;
use crate::error::CliError;
use crate::runtime;

/// Remedies that a training takes after its beginning, too.
const FREE: [&str; 2] = ["train.activation_checkpointing=true", "--workers 1"];

impl UnsavedRun {
    /// Refuses a seed whose steps need more memory than this machine has. A seed that is finished takes none, unless it starts
    /// over. `config` has its vocabulary.
    pub(crate) fn check_seed_memory(&self, config: &RunConfig, restart: bool) -> Result<(), CliError> {
        let Some(too_large) = seed_too_large(config, total())? else { return Ok(()) };
        let manifest = runtime::run(async { Ok(manifest(&self.run).await?) })?;
        // The record of an imported model is finished before the steps that are to follow.
        let finished = manifest.and_then(|manifest| manifest.seed).is_some_and(|seed| {
            seed.finished() && (config.seed_model.steps == 0 || !seed.is_imported_as_is())
        });
        if finished && !restart { Ok(()) } else { Err(refusal(&too_large)) }
    }

    /// Refuses a training whose workers on this machine need more memory than it has. A complete run starts none, and on a GPU
    /// they use its memory. `config` has its vocabulary.
    pub(crate) fn check_worker_memory(
        &self,
        config: &RunConfig,
        workers: usize,
        device: DeviceChoice,
    ) -> Result<(), CliError> {
        let Some(mut too_large) = workers_too_large(config, workers, total())? else { return Ok(()) };
        if !dipaco_pipeline::device::open(device)?.is_cpu() {
            return Ok(());
        }
        let manifest = runtime::run(async { Ok(manifest(&self.run).await?) })?;
        if let Some(training) = manifest.and_then(|manifest| manifest.training) {
            if training.finished() {
                return Ok(());
            }
            // No other setting of these can change after the beginning.
            too_large.remedies.retain(|remedy| FREE.contains(&remedy.set.as_str()));
        }
        Err(refusal(&too_large))
    }
}

/// All memory of this machine in bytes; `None` where the system does not report it.
fn total() -> Option<u64> {
    machine_memory().map(|memory| memory.total)
}

fn refusal(too_large: &TooLargeToTrain) -> CliError {
    CliError::Usage { message: too_large.to_string(), remedy: too_large.remedy() }
}
