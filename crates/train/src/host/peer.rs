//! Peers and the answers to them.

use bytes::Bytes;
use dipaco_protocol::{Response, SYNCHRONIZER, WORKER};
use dipaco_sync::{LeaseClaim, LeaseKey, ProcessId};

/// The process at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Token, name and random number of the process. Leases are given to it.
    pub(crate) process: ProcessId,
    /// Role that the token grants.
    pub(crate) role: Role,
    /// Fingerprint of the arithmetic of the process's device.
    pub(crate) numerics: String,
}

impl Peer {
    /// The claim of the process to a lease that it names.
    pub(crate) fn claim(&self, key: LeaseKey) -> LeaseClaim {
        LeaseClaim { key, worker: self.process.clone() }
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

/// The refusal of a request that a token's role does not allow.
pub(crate) const OTHER_ROLE: &str =
    "this token does not allow the request: workers and synchronizers have their own tokens";

/// Refuses a request.
pub(crate) fn refused(reason: impl Into<String>) -> Answer {
    (Response::Refused { reason: reason.into() }, None)
}
