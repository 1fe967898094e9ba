//! Going back to an earlier round of a run, and what that would undo.

use std::error::Error as _;

use dipaco_config::RunConfig;
use dipaco_store::RollbackRecord;
use dipaco_telemetry::{Event, Events, Progress};
use dipaco_topology::Topology;
use dipaco_train::{TokenContributions, contributions_of};

use crate::error::PipelineError;
use crate::run_directory::RunDirectory;
use crate::run_lock::RunLock;
use crate::store::existing_store;

/// Takes a run that nobody trains back to its checkpoint after `round` complete rounds, and writes an event. If only the event
/// can't be written, the run has gone back and this warns.
///
/// # Errors
/// [`PipelineError::RunBusy`] during a training, [`PipelineError::NotTrained`] before the first training,
/// [`PipelineError::Coordinator`] when the round is not kept or its checkpoint is damaged.
pub async fn roll_back(
    run: &RunDirectory,
    round: u32,
    progress: &Progress,
) -> Result<RollbackRecord, PipelineError> {
    if !run.root().exists() {
        return Err(PipelineError::NoRun { folder: run.root().to_owned() });
    }
    let store = existing_store(run)?.ok_or(PipelineError::NotTrained)?;
    let _lock = RunLock::for_rollback(run)?;
    store.check_writable().await?;
    let rollback = dipaco_train::roll_back(&store, round, progress).await?;
    tell(run, &rollback);
    Ok(rollback)
}

/// Writes the event of a run that has gone back. If only that fails, this warns.
pub(crate) fn tell(run: &RunDirectory, rollback: &RollbackRecord) {
    let RollbackRecord { from, to, undone } = rollback.clone();
    let events = Events::create(&run.events());
    if let Err(error) = events.and_then(|events| events.write(Event::RolledBack { from, to, undone })) {
        tracing::warn!(%error, source = ?error.source(), "the run has gone back, but its event file does not say so");
    }
}

/// The contributions of the bearer of a token to a run with this configuration.
///
/// # Errors
/// [`PipelineError::NotTrained`] before the first training, and when the store can't be read.
pub async fn contributions_of_token(
    run: &RunDirectory,
    config: &RunConfig,
    token: &str,
) -> Result<TokenContributions, PipelineError> {
    let store = existing_store(run)?.ok_or(PipelineError::NotTrained)?;
    let topology = Topology::new(&config.topology, config.model.blocks)?;
    Ok(contributions_of(&store, token, &topology, config.sync.fragments).await?)
}
