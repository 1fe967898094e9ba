//! Requests for leases, and the limits of leases.

use std::time::Duration;

use dipaco_topology::PathId;

use crate::{LeaseSecret, ProcessId};

/// Limits of leases. The processes with one token that are connected and train nothing keep a path from others for at most two
/// leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLimits {
    /// Time that a lease lasts without a heartbeat.
    pub silence: Duration,
    /// Time that a lease lasts without a further inner step.
    pub standstill: Duration,
    /// Number of leases that a process has at a time.
    pub per_worker: usize,
    /// Number of paths that all processes with one token train at a time.
    pub per_token: usize,
    /// Number of paths whose states a worker keeps between two of their leases.
    pub held_paths: usize,
    /// Largest number of tokens in an inner step.
    pub step_tokens: u64,
}

impl LeaseLimits {
    /// A limit on the time without a heartbeat, and no other limit.
    #[must_use]
    pub fn of_silence(silence: Duration) -> Self {
        Self {
            silence,
            standstill: Duration::MAX,
            per_worker: usize::MAX,
            per_token: usize::MAX,
            held_paths: usize::MAX,
            step_tokens: u64::MAX,
        }
    }
}

/// A request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest<'a> {
    /// The worker that asks.
    pub worker: &'a ProcessId,
    /// Paths whose newest state the worker holds. Paths that do not exist are left out.
    pub held: &'a [PathId],
    /// Secret of the lease: random bits.
    pub secret: LeaseSecret,
    /// Fingerprint of the arithmetic of the worker's device.
    pub numerics: &'a str,
}
