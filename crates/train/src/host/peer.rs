//! Peers and the answers to them.

use bytes::Bytes;
use dipaco_protocol::{Response, SYNCHRONIZER, WORKER};
use dipaco_sync::{LeaseClaim, LeaseKey, ProcessId};

/// The process at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Name to which leases are given.
    pub(crate) worker: String,
    /// Random number that tells a process from its successor under the same name.
    pub(crate) instance: u64,
    /// Name in the peer's token.
    pub(crate) token: String,
    /// Role that the token grants.
    pub(crate) role: Role,
    /// Fingerprint of the arithmetic of the process's device.
    pub(crate) numerics: String,
}

impl Peer {
    /// The claim of the process to a lease that it names.
    pub(crate) fn claim(&self, key: LeaseKey) -> LeaseClaim {
        LeaseClaim { key, worker: self.process() }
    }

    /// Identity of the process.
    pub(crate) fn process(&self) -> ProcessId {
        ProcessId { token: self.token.clone(), name: self.worker.clone(), instance: self.instance }
    }
}

/// Role that a token grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Worker,
    Synchronizer,
}

impl Role {
    /// The role's name in certificates.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Worker => WORKER,
            Self::Synchronizer => SYNCHRONIZER,
        }
    }

    /// The role that a certificate names.
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            WORKER => Some(Self::Worker),
            SYNCHRONIZER => Some(Self::Synchronizer),
            _ => None,
        }
    }
}

/// A response and its payload.
pub(crate) type Answer = (Response, Option<Bytes>);

/// Refuses a request.
pub(crate) fn refused(reason: impl Into<String>) -> Answer {
    (Response::Refused { reason: reason.into() }, None)
}
