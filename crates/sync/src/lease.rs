//! Leases: the right to train a path up to its next stop.

use std::fmt;
use std::time::Duration;

use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{FragmentId, LeaseClaim, LeaseKey, LeaseSecret, ProcessId};

/// Fencing number. It grows with every lease, so that the worker of a lost lease can be told from its successor.
///
/// The upper half counts the coordinator's incarnations, the lower half the leases of an incarnation. So a number
/// never repeats after a crash, although the manifest does not record single leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 32, self.0 & u64::from(u32::MAX))
    }
}

/// The task of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseTask {
    /// Train inner steps and contribute outer gradients.
    Train,
    /// Measure the final weights on the path's held-out documents; contributes nothing.
    Measure,
}

/// Global weights of a fragment that a path takes over at the start of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledReceive {
    /// The fragment.
    pub fragment: FragmentId,
    /// Version of the fragment: the number of its outer steps.
    pub version: u32,
}

/// An outer gradient that a lease must upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledSend {
    /// The fragment.
    pub fragment: FragmentId,
    /// Inner step of the path after which the outer gradient is taken.
    pub step: u64,
    /// Sequence number of the path's contributions to the fragment, from 1.
    pub number: u32,
}

/// The right to train a path from one step to another until a deadline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The path to train.
    pub path: PathId,
    /// Number of inner steps of the path before the lease.
    pub from: u64,
    /// Number of inner steps of the path after the lease; equal to `from` for [`LeaseTask::Measure`].
    pub to: u64,
    /// Fencing number, unique in the run.
    pub fence: Fence,
    /// The task.
    pub task: LeaseTask,
    /// Global weights that the path takes over first.
    pub receives: Vec<ScheduledReceive>,
    /// Outer gradients that the lease sends, in order.
    pub sends: Vec<ScheduledSend>,
    /// Secret that the worker shows with each message about the lease.
    pub secret: LeaseSecret,
    /// The worker.
    pub worker: ProcessId,
    /// Fingerprint of the arithmetic of the worker's device.
    pub numerics: String,
    /// The worker to which the path changes hands: the lease must upload the path's state for it.
    pub hands_over: Option<ProcessId>,
    /// True if the worker has more paths than it keeps states of. It would drop the state before the path's next lease, so
    /// the lease must upload it.
    pub crowded: bool,
    /// Time at which the lease was granted.
    pub granted: Duration,
    /// Time at which the lease became current, or was granted.
    pub since: Duration,
    /// Time since then in which the coordinator did not run.
    pub postponed: Duration,
    /// Deadline on the caller's clock. A heartbeat extends it.
    pub deadline: Duration,
    /// Number of inner steps of the lease, as its worker last reported it.
    pub taken: u64,
    /// Time at which the lease ends if its worker reports no further inner step, or has had the longest time of a lease.
    pub stands_still: Duration,
}

impl Lease {
    /// The lease as its worker names it.
    #[must_use]
    pub fn key(&self) -> LeaseKey {
        LeaseKey { path: self.path, fence: self.fence, secret: self.secret }
    }

    /// The lease and its worker.
    #[must_use]
    pub fn claim(&self) -> LeaseClaim {
        LeaseClaim { key: self.key(), worker: self.worker.clone() }
    }

    /// True if the claim names this lease with its secret, and comes from its worker.
    pub(crate) fn admits(&self, claim: &LeaseClaim) -> bool {
        claim.matches(&self.claim())
    }
}

/// Reasons to reject a message about a lease.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseError {
    /// The lease has ended, or an earlier incarnation of the coordinator granted it.
    #[error(
        "the lease {fence} on path {path} at step {step} is no longer valid: its deadline passed, the coordinator restarted, or another process holds it; drop its results and ask for a new lease"
    )]
    Lost {
        /// The path of the lease.
        path: PathId,
        /// Number of inner steps of the path.
        step: u64,
        /// Fencing number of the lease.
        fence: Fence,
    },
    /// The path does not exist.
    #[error("there is no path {path}: this run has {paths} paths; the worker belongs to another run")]
    NoSuchPath {
        /// The named path.
        path: PathId,
        /// Number of paths of the run.
        paths: u32,
    },
    /// The lease expects no such outer gradient.
    #[error("the lease {fence} on path {path} expects no outer gradient {number} of {fragment}")]
    NotAsked {
        /// The path of the lease.
        path: PathId,
        /// Fencing number of the lease.
        fence: Fence,
        /// The named fragment.
        fragment: FragmentId,
        /// The named sequence number.
        number: u32,
    },
    /// The outer gradient has more tokens than its inner steps.
    #[error(
        "the lease {fence} on path {path} trains at most {most} tokens for outer gradient {number} of {fragment}, not {tokens}"
    )]
    Tokens {
        /// The path of the lease.
        path: PathId,
        /// Fencing number of the lease.
        fence: Fence,
        /// The fragment.
        fragment: FragmentId,
        /// Sequence number of the outer gradient.
        number: u32,
        /// The stated number of tokens.
        tokens: u64,
        /// Tokens in the outer gradient's inner steps.
        most: u64,
    },
    /// A result of the lease is missing.
    #[error("the lease {fence} on path {path} still lacks outer gradient {number} of {fragment}")]
    Owes {
        /// The path of the lease.
        path: PathId,
        /// Fencing number of the lease.
        fence: Fence,
        /// The fragment.
        fragment: FragmentId,
        /// Sequence number of the missing outer gradient.
        number: u32,
    },
}

impl LeaseError {
    /// Number of inner steps of the path of a lost lease.
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        match self {
            Self::Lost { step, .. } => Some(*step),
            Self::NoSuchPath { .. } | Self::NotAsked { .. } | Self::Tokens { .. } | Self::Owes { .. } => None,
        }
    }
}
