//! The right to train a path for one round.

use std::fmt;
use std::time::Duration;

use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A number that grows with every lease, so that a holder that lost its lease can be told from its successor.
///
/// The upper half counts the coordinator's incarnations, the lower half the leases of one incarnation: numbers given
/// out before a crash never come again, although single leases are not written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 32, self.0 & u64::from(u32::MAX))
    }
}

/// What a lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Train H inner steps and contribute outer gradients.
    Train,
    /// Measure the final weights on the path's held-out documents; contributes nothing.
    Measure,
}

/// The right to work on `(path, round)` until a deadline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The path to train.
    pub path: PathId,
    /// The round, counted from 0; the path's modules are at this version.
    pub round: u32,
    /// Tells this lease from every other lease of the run.
    pub fence: Fence,
    /// What to do.
    pub task: Task,
    /// Who holds it.
    pub worker: String,
    /// When it ends unless a heartbeat renews it, on the clock that the caller passes in.
    pub deadline: Duration,
}

/// Why a message about a lease is not accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseError {
    /// The lease ended or was never given out by this incarnation of the coordinator.
    #[error(
        "the lease {fence} on path {path}, round {round} is no longer valid: its deadline passed or the coordinator was restarted; drop the work and ask for a new lease"
    )]
    Lost {
        /// The path of the lease.
        path: PathId,
        /// The round of the lease.
        round: u32,
        /// The lease's fencing number.
        fence: Fence,
    },
    /// The path does not exist.
    #[error("there is no path {path}: this run has {paths} paths; the worker belongs to another run")]
    NoSuchPath {
        /// The path named.
        path: PathId,
        /// How many paths the run has.
        paths: u32,
    },
}
