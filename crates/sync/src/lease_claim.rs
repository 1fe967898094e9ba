//! The proof that a process holds a lease.

use std::fmt;

use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};

use crate::{Fence, ProcessId};

/// Secret of a lease: 128 random bits that only the coordinator and the lease's worker know. Fencing numbers follow
/// each other, so a fencing number proves nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseSecret([u8; 16]);

impl LeaseSecret {
    /// A secret of these random bits.
    #[must_use]
    pub fn new(bits: [u8; 16]) -> Self {
        Self(bits)
    }

    /// Compares in a time that does not depend on the position of the first difference.
    fn equals(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |difference, (own, other)| difference | (own ^ other)) == 0
    }
}

impl fmt::Debug for LeaseSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseSecret(..)")
    }
}

/// Path, fencing number and secret of a lease, as its worker names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseKey {
    /// The path.
    pub path: PathId,
    /// Fencing number of the lease.
    pub fence: Fence,
    /// Secret of the lease.
    pub secret: LeaseSecret,
}

/// A process that names a lease as its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseClaim {
    /// The named lease.
    pub key: LeaseKey,
    /// The process.
    pub worker: ProcessId,
}

impl LeaseClaim {
    /// True if both name the same lease with its secret, and are the same process.
    #[must_use]
    pub fn matches(&self, granted: &Self) -> bool {
        self.key.path == granted.key.path
            && self.key.fence == granted.key.fence
            && self.key.secret.equals(&granted.key.secret)
            && self.worker == granted.worker
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_matches_in_all_parts_or_not_at_all() {
        let key = LeaseKey { path: PathId(1), fence: Fence(7), secret: LeaseSecret::new([3; 16]) };
        let worker = ProcessId { token: "t".into(), name: "n".into(), instance: 5 };
        let claim = LeaseClaim { key, worker: worker.clone() };
        assert!(claim.matches(&claim));
        let mut bits = [3; 16];
        bits[15] = 2;
        for other in [
            LeaseClaim { key: LeaseKey { path: PathId(2), ..key }, worker: worker.clone() },
            LeaseClaim { key: LeaseKey { fence: Fence(8), ..key }, worker: worker.clone() },
            LeaseClaim { key: LeaseKey { secret: LeaseSecret::new(bits), ..key }, worker: worker.clone() },
            LeaseClaim { key, worker: ProcessId { token: "u".into(), ..worker.clone() } },
            LeaseClaim { key, worker: ProcessId { name: "m".into(), ..worker.clone() } },
            LeaseClaim { key, worker: ProcessId { instance: 6, ..worker } },
        ] {
            assert!(!other.matches(&claim), "{other:?}");
        }
        assert!(!format!("{claim:?}").contains('3'), "a secret is in no log");
    }
}
