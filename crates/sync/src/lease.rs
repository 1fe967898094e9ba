//! The right to train a path up to its next stop.

use std::fmt;
use std::time::Duration;

use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::FragmentId;

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
pub enum LeaseTask {
    /// Train inner steps and contribute outer gradients.
    Train,
    /// Measure the final weights on the path's held-out documents; contributes nothing.
    Measure,
}

/// The global weights of a unit that a path takes over when its lease begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledReceive {
    /// The unit.
    pub fragment: FragmentId,
    /// Its version: the outer steps that it has taken.
    pub version: u32,
}

/// An outer gradient that a lease has to bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledSend {
    /// The unit.
    pub fragment: FragmentId,
    /// After which inner step of the path it is taken.
    pub step: u64,
    /// The how manieth it is of this path to this unit, from 1.
    pub number: u32,
}

/// The right to train a path from one step to another until a deadline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The path to train.
    pub path: PathId,
    /// Inner steps that the path has taken.
    pub from: u64,
    /// Inner steps that it will have taken; `from` when it is to be measured.
    pub to: u64,
    /// Tells this lease from every other lease of the run.
    pub fence: Fence,
    /// What to do.
    pub task: LeaseTask,
    /// What the path takes over first.
    pub receives: Vec<ScheduledReceive>,
    /// What it sends on the way, in order.
    pub sends: Vec<ScheduledSend>,
    /// Who holds it.
    pub worker: String,
    /// Its holder brings the path's state, because this worker is to go on with the path.
    pub hands_over: Option<String>,
    /// When it ends unless a heartbeat renews it, on the clock that the caller passes in.
    pub deadline: Duration,
}

/// Why a message about a lease is not accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseError {
    /// The lease ended or was never given out by this incarnation of the coordinator.
    #[error(
        "the lease {fence} on path {path} at step {step} is no longer valid: its deadline passed or the coordinator was restarted; drop the work and ask for a new lease"
    )]
    Lost {
        /// The path of the lease.
        path: PathId,
        /// The inner steps that the path has taken.
        step: u64,
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
    /// Something that the lease does not ask for.
    #[error("the lease {fence} on path {path} asks for no outer gradient {number} of {fragment}")]
    NotAsked {
        /// The path of the lease.
        path: PathId,
        /// The lease's fencing number.
        fence: Fence,
        /// The unit named.
        fragment: FragmentId,
        /// The number named.
        number: u32,
    },
    /// The lease has not brought everything yet.
    #[error("the lease {fence} on path {path} still owes outer gradient {number} of {fragment}")]
    Owes {
        /// The path of the lease.
        path: PathId,
        /// The lease's fencing number.
        fence: Fence,
        /// The unit.
        fragment: FragmentId,
        /// The number that is missing.
        number: u32,
    },
}

impl LeaseError {
    /// The inner steps that the path of a lost lease has taken.
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        match self {
            Self::Lost { step, .. } => Some(*step),
            Self::NoSuchPath { .. } | Self::NotAsked { .. } | Self::Owes { .. } => None,
        }
    }
}
