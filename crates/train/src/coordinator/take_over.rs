//! A coordinator takes a run over: it reads the store and replaces the manifest.

use std::time::Duration;

use dipaco_ledger::{LedgerError, LedgerPlan, SavedCheckpoint, StoredRun};
use dipaco_store::{CheckpointRecord, Loaded, RunManifest, RunStore, StoreError, TrainingRecord, names};
use dipaco_sync::LeaseLimits;

use crate::coordinator::error::CoordinatorError;
use crate::open_run::OpenRun;
use dipaco_protocol::WorkerPlan;

/// Leases that a process has at a time: while it uploads the results of one, it trains the next.
const LEASES_OF_A_PROCESS: usize = 2;

/// Attempts at a step that another coordinator disturbs: it replaces the manifest after each of its changes.
pub(super) const ATTEMPTS: u32 = 16;

/// Takes a run over from a coordinator that may still run: writes the manifest once more, so that each later write of the
/// other one fails. If the other one has replaced the manifest of `started`, its newest manifest counts.
///
/// Before the call do everything else that can fail, or the run may be left without a coordinator. After it tell others of
/// the new coordinator.
///
/// # Errors
/// [`CoordinatorError::OtherTraining`] when the newest manifest is of another training, [`StoreError::Conflict`] when the
/// other coordinator was faster each time, and when the store can't be read or written.
pub async fn take_over(store: &RunStore, started: OpenRun) -> Result<OpenRun, CoordinatorError> {
    // The incarnation rises with the first write of the ledger.
    let OpenRun { mut manifest, mut sequence } = started;
    let origin = manifest.training.as_ref().map(|training| training.origin.clone());
    let mut attempt = 1;
    loop {
        match store.replace(&manifest, sequence).await {
            Ok(sequence) => return Ok(OpenRun { manifest, sequence }),
            // After an unknown outcome the newest manifest, this one or the other coordinator's, is replaced once more.
            Err(StoreError::Conflict { .. } | StoreError::UnknownOutcome { .. }) if attempt < ATTEMPTS => {
                attempt += 1;
            }
            Err(error) => return Err(error.into()),
        }
        let newest = store.load::<RunManifest>().await?.ok_or(LedgerError::NotStarted)?;
        for warning in &newest.warnings {
            tracing::warn!("{warning}");
        }
        Loaded { manifest, sequence, .. } = newest;
        if manifest.training.as_ref().map(|training| &training.origin) != origin.as_ref() {
            return Err(CoordinatorError::OtherTraining);
        }
    }
}

/// The settings of the ledger.
pub(super) fn ledger_plan(plan: &WorkerPlan) -> Result<LedgerPlan, CoordinatorError> {
    let WorkerPlan { train, sync, outer, .. } = plan;
    Ok(LedgerPlan {
        schedule: plan.schedule()?,
        scheme: sync.scheme(),
        limits: LeaseLimits {
            silence: Duration::from_secs(train.lease_seconds),
            standstill: Duration::from_secs(train.standstill_seconds),
            per_worker: LEASES_OF_A_PROCESS,
            per_token: if train.token_leases == 0 { usize::MAX } else { train.token_leases },
            held_paths: train.held_paths,
            step_tokens: train.batch.saturating_mul(train.sequence_tokens) as u64,
        },
        state_every: train.state_every,
        checkpoints: train.checkpoints,
        sampling: sync.shard_sampling.then_some(plan.seed),
        weighting: outer.weighting,
        rescale: outer.rescale,
        guard: outer.guard,
        quarantine_after: train.quarantine_after,
        one_by_one: outer.delayed().is_some(),
        compares: outer.merge.compares(),
        numerics: train.numerics.clone(),
    })
}

/// Reads the names and the checkpoints that the ledger needs to take a run over.
pub(super) async fn read_store(
    store: &RunStore,
    manifest: RunManifest,
) -> Result<StoredRun, CoordinatorError> {
    let names = stored_names(store).await?;
    let mut checkpoints = Vec::with_capacity(manifest.checkpoints.len());
    for record in &manifest.checkpoints {
        match read_checkpoint(store, record).await? {
            CheckpointContent::Sound(training) => {
                checkpoints.push(SavedCheckpoint { record: record.clone(), training });
            }
            CheckpointContent::Damaged(error) => {
                tracing::warn!(round = record.round, %error, "a checkpoint is damaged and dropped");
            }
        }
    }
    Ok(StoredRun { manifest, checkpoints, names })
}

/// The names of all objects of the training that are in the store.
async fn stored_names(store: &RunStore) -> Result<Vec<String>, CoordinatorError> {
    let mut stored = Vec::new();
    for prefix in names::OF_TRAINING {
        stored.extend(store.list(prefix).await?.into_iter().map(|object| object.name));
    }
    Ok(stored)
}

/// The outcome of reading a checkpoint.
pub(super) enum CheckpointContent {
    /// The training as the checkpoint holds it.
    Sound(TrainingRecord),
    /// The checkpoint is damaged or missing.
    Damaged(StoreError),
}

/// Reads the training from a checkpoint.
pub(super) async fn read_checkpoint(
    store: &RunStore,
    record: &CheckpointRecord,
) -> Result<CheckpointContent, CoordinatorError> {
    match store.get(&record.object).await {
        Ok(content) => {
            let training = serde_json::from_slice(&content)
                .map_err(|source| CoordinatorError::CheckpointFormat { round: record.round, source })?;
            Ok(CheckpointContent::Sound(training))
        }
        Err(error) if is_damage(&error) => Ok(CheckpointContent::Damaged(error)),
        Err(error) => Err(error.into()),
    }
}

/// True if an object is missing or differs from its reference.
pub(super) fn is_damage(error: &StoreError) -> bool {
    matches!(error, StoreError::Damaged { .. } | StoreError::Cut { .. } | StoreError::Missing { .. })
}
