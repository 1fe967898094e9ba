//! The manifest's record of a path.

use std::collections::{BTreeMap, BTreeSet};

use dipaco_topology::ModuleId;
use serde::{Deserialize, Serialize};

use crate::ObjectRef;

/// Progress of a path. Lists have an entry for each fragment of the path, level by level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathRecord {
    /// Inner steps taken, up to the end of the path's last completed lease.
    pub steps: u64,
    /// True if the final weights are measured on the path's held-out documents.
    pub measured: bool,
    /// Number of accepted contributions, per fragment.
    pub sent: Vec<u32>,
    /// Version that the path received last, per fragment.
    pub adopted: Vec<u32>,
    /// Steps and tokens of all accepted contributions together, per fragment.
    pub counted: Vec<CountRecord>,
    /// State that the next lease needs besides global weights; absent before the first completed lease.
    pub state: Option<ObjectRef>,
    /// Fencing number of the last completed lease. It identifies the state that the lease's worker holds.
    pub fence: Option<u64>,
    /// Name of the token whose worker completed that lease; absent in a manifest of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_by: Option<String>,
    /// Completed leases since `state`. A worker without the newest state replays them from `state`.
    #[serde(rename = "tail")]
    pub replay: Vec<CompletedLeaseRecord>,
    /// Versions of the fragments with the lowest loss on the path's held-out documents in this phase.
    pub best: Option<EarlyStoppingBest>,
    /// Versions of the last measurement in this phase.
    pub last: Option<EarlyStoppingBest>,
    /// Outer gradients that wait for an outer step of their fragment.
    pub gradients: Vec<GradientRecord>,
    /// The contributions of each token to the path, by the token's name. A revoked token's contributions are found here.
    pub contributors: BTreeMap<String, ContributorRecord>,
    /// The quarantine of the path; absent if workers train it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<QuarantineRecord>,
}

/// The end of a path's training, because it failed for several workers. The path's steps go on without training, so that the
/// other paths need not wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuarantineRecord {
    /// Inner steps of the path at the end of its last completed lease.
    pub step: u64,
    /// The workers for which its training failed.
    pub workers: Vec<String>,
    /// The last failure.
    pub reason: String,
    /// Complete rounds of the checkpoint to which the path went back, with the modules that no other path trains. Absent
    /// if no kept checkpoint had an earlier state of the path: then everything stays as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_to: Option<u32>,
}

/// Contributions of the bearer of a token to a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContributorRecord {
    /// Number of outer gradients that count.
    pub gradients: u64,
    /// Inner steps of the path at the end of the first lease that contributed.
    pub first_step: u64,
    /// Inner steps of the path at the end of the last lease that contributed.
    pub last_step: u64,
    /// Tokens of text in these outer gradients.
    #[serde(default)]
    pub tokens: u64,
    /// Number of these outer gradients for each fragment of the path, level by level.
    #[serde(default)]
    pub by_fragment: Vec<u64>,
    /// Fingerprints of the arithmetic of the devices that made them, at most [`Self::DEVICES`].
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub numerics: BTreeSet<String>,
}

impl ContributorRecord {
    /// Largest number of fingerprints in a record: a worker may state any, and another one with each connection.
    pub const DEVICES: usize = 8;
}

/// Content of outer gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountRecord {
    /// Inner steps.
    pub steps: u64,
    /// Tokens, without padding.
    pub tokens: u64,
}

/// A completed lease of a path. Lists have an entry for each fragment of the path, level by level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompletedLeaseRecord {
    /// Inner steps of the path before the lease.
    pub from: u64,
    /// Inner steps of the path after the lease.
    pub to: u64,
    /// Version that the path had received, per fragment.
    pub versions: Vec<u32>,
    /// True if the path received the fragment at the start of the lease, per fragment.
    pub received: Vec<bool>,
}

/// A loss on a path's held-out documents; the lowest is its early-stopping best (arXiv:2403.10616 §2.7).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyStoppingBest {
    /// Round of the path that began with these weights, from 0.
    pub round: u32,
    /// Versions of the path's fragments, level by level.
    pub versions: Vec<u32>,
    /// Mean loss on the path's held-out documents, in nats per token.
    pub loss: f64,
}

/// A path's outer gradient of a fragment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GradientRecord {
    /// The module.
    pub module: ModuleId,
    /// Index of the fragment in the module.
    pub fragment: u32,
    /// Sequence number of the path's contributions to the fragment, from 1.
    pub number: u32,
    /// Version of the fragment that the path had received.
    pub base: u32,
    /// Inner steps in the gradient.
    pub steps: u64,
    /// Tokens in the gradient.
    pub tokens: u64,
    /// Euclidean norm of the gradient.
    pub norm: f64,
    /// Name of the token whose bearer contributed it.
    pub token: String,
    /// The gradient.
    pub object: ObjectRef,
}
