//! Results of leases, and the report of a finished lease.

use dipaco_sync::{FragmentId, LeaseKey};
use serde::{Deserialize, Serialize};

use crate::names;

/// A result of a lease, uploaded in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LeaseResult {
    /// The outer gradient of a fragment.
    OuterGradient {
        /// The fragment.
        fragment: FragmentId,
        /// Sequence number of the path's contributions to the fragment, from 1.
        number: u32,
        /// Tokens trained on since the path's previous contribution, padding not counted.
        tokens: u64,
    },
    /// The path's state at the end of the lease.
    State,
}

impl LeaseResult {
    /// Name of the result in messages.
    pub fn name(self) -> String {
        match self {
            Self::OuterGradient { fragment, number, .. } => {
                format!(
                    "outer gradient {number} of fragment {} of module {}",
                    fragment.index, fragment.module
                )
            }
            Self::State => "the path's state".to_owned(),
        }
    }

    /// Name of the result's object in the store. The name contains the content's hash, so another content never takes
    /// its place. `step` is the last inner step of the lease.
    pub fn object_name(self, lease: LeaseKey, step: u64, hash: &str) -> String {
        let LeaseKey { path, fence, .. } = lease;
        let name = match self {
            Self::OuterGradient { fragment: FragmentId { module, index: fragment }, number, .. } => {
                names::outer_gradient(module, fragment, number, path, fence.0)
            }
            Self::State => names::path_state(path, step, fence.0),
        };
        format!("{name}-{hash}")
    }

    /// Tokens in an outer gradient; 0 for a state.
    pub fn tokens(self) -> u64 {
        match self {
            Self::OuterGradient { tokens, .. } => tokens,
            Self::State => 0,
        }
    }

    /// The result as the coordinator expects it: the number of tokens is known only after the upload.
    pub fn without_tokens(self) -> Self {
        match self {
            Self::OuterGradient { fragment, number, .. } => {
                Self::OuterGradient { fragment, number, tokens: 0 }
            }
            Self::State => Self::State,
        }
    }
}

/// A worker's report on a finished lease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// Mean training loss of the lease, in nats per token; absent if the lease takes no inner steps.
    pub loss: Option<f64>,
    /// Mean loss on the path's held-out documents of the global weights at the start of the lease, in nats per token;
    /// absent if the shard has no held-out documents, or if the path starts from weights of its own.
    pub held_out_loss: Option<f64>,
    /// Tokens trained on, padding not counted.
    pub tokens: u64,
    /// Seconds of inner steps.
    pub seconds: f64,
    /// Seconds between the worker's previous inner step and the first inner step of this lease: transfers, and waiting for
    /// a lease.
    pub waited_seconds: f64,
    /// Bytes that the worker has read straight from the run's store since its last report.
    pub linked_bytes: u64,
}

/// The mean loss that a peer reports; `None` if no model can have it. A cross entropy is not negative, and the loss of an
/// inner step is an `f32`: the sum of such losses over all leases of a run is finite.
#[must_use]
pub fn possible_loss<L: Copy + Into<f64>>(loss: Option<L>) -> Option<L> {
    let possible = 0.0..=f64::from(f32::MAX);
    loss.filter(|&loss| possible.contains::<f64>(&loss.into()))
}
