//! What the bearer of a token contributed to a run.

use dipaco_ledger::LedgerError;
use dipaco_store::{ContributorRecord, Loaded, RunManifest, RunStore, TrainingRecord};
use dipaco_sync::{FragmentId, fragment_ids_of};
use dipaco_topology::{ModuleId, PathId, Topology};
use serde::Serialize;

use crate::coordinator::error::CoordinatorError;
use crate::coordinator::take_over::{CheckpointContent, read_checkpoint};

/// The contributions of the bearer of a token to a run, and how far to go back to undo them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenContributions {
    /// Name of the token.
    pub token: String,
    /// Contributions by path, in path order.
    pub paths: Vec<PathContributions>,
    /// Complete rounds of the newest kept checkpoint without a contribution of the token; absent if every kept
    /// checkpoint has one, or there is nothing to undo.
    pub undone_by_round: Option<u32>,
    /// Complete rounds of the kept checkpoints.
    pub kept_rounds: Vec<u32>,
    /// The fingerprint of the run, if the token set it.
    pub set_numerics: Option<String>,
}

/// The contributions of the bearer of a token to a path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathContributions {
    /// The path.
    pub path: PathId,
    /// Round of the first lease that contributed, from 0.
    pub first_round: u64,
    /// Round of the last lease that contributed, from 0.
    pub last_round: u64,
    /// Number of outer gradients that count.
    pub outer_gradients: u64,
    /// Tokens of text in these outer gradients.
    pub tokens: u64,
    /// Number of outer gradients for each fragment.
    pub fragments: Vec<FragmentContributions>,
    /// Fingerprints of the arithmetic of the devices that made them. Devices with other fingerprints compute other bits.
    pub numerics: Vec<String>,
}

/// The contributions of the bearer of a token to a fragment by way of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FragmentContributions {
    /// The module.
    pub module: ModuleId,
    /// Index of the fragment in the module.
    pub fragment: u32,
    /// Number of outer gradients that count.
    pub outer_gradients: u64,
}

/// The contributions of the bearer of `token` to a run with `fragments` fragments a module. Reads the kept checkpoints,
/// because only they tell to which round the run must go back.
///
/// # Errors
/// [`LedgerError::NotStarted`] when there is no training, and when the store can't be read.
pub async fn contributions_of(
    store: &RunStore,
    token: &str,
    topology: &Topology,
    fragments: u32,
) -> Result<TokenContributions, CoordinatorError> {
    let loaded = store.load::<RunManifest>().await?;
    let Loaded { manifest, warnings, .. } = loaded.ok_or(LedgerError::NotStarted)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let training = manifest.training.as_ref().ok_or(LedgerError::NotStarted)?;
    let paths: Vec<_> = training
        .contributions_of(token)
        .map(|(path, record)| of_path(training, path, record, fragment_ids_of(topology, fragments, path)))
        .collect();
    let mut undone_by_round = None;
    let unwanted = if paths.is_empty() { &[] } else { manifest.checkpoints.as_slice() };
    for checkpoint in unwanted.iter().rev() {
        match read_checkpoint(store, checkpoint).await? {
            CheckpointContent::Sound(training) if training.contributions_of(token).next().is_none() => {
                undone_by_round = Some(checkpoint.round);
                break;
            }
            CheckpointContent::Sound(_) => {}
            CheckpointContent::Damaged(error) => {
                tracing::warn!(round = checkpoint.round, %error, "a checkpoint is damaged");
            }
        }
    }
    let kept_rounds = manifest.checkpoints.iter().map(|checkpoint| checkpoint.round).collect();
    let set = training.numerics_token.as_deref() == Some(token);
    let set_numerics = training.numerics.clone().filter(|_| set);
    Ok(TokenContributions { token: token.to_owned(), paths, undone_by_round, kept_rounds, set_numerics })
}

fn of_path(
    training: &TrainingRecord,
    path: PathId,
    record: &ContributorRecord,
    fragments: Vec<FragmentId>,
) -> PathContributions {
    let ContributorRecord { gradients, first_step, last_step, tokens, by_fragment, numerics } = record;
    // A lease that ends with a round is of this round.
    let round = |step: u64| step.saturating_sub(1) / training.inner_steps.max(1);
    let counted = fragments.into_iter().zip(by_fragment).filter(|(_, gradients)| **gradients > 0);
    let of_fragment = |(FragmentId { module, index }, gradients): (FragmentId, &u64)| FragmentContributions {
        module,
        fragment: index,
        outer_gradients: *gradients,
    };
    PathContributions {
        path,
        first_round: round(*first_step),
        last_round: round(*last_step),
        outer_gradients: *gradients,
        tokens: *tokens,
        fragments: counted.map(of_fragment).collect(),
        numerics: numerics.iter().cloned().collect(),
    }
}
