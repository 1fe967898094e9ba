//! The uploads in progress, by lease.

use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_protocol::LeaseResult;
use dipaco_sync::{Fence, LeaseClaim, LeaseKey, ProcessId};
use dipaco_topology::PathId;

use super::{Upload, UploadedPiece};

/// A lease of a process. The lease's secret is no part of it: a secret is never looked up, only compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HeldLease {
    pub(super) worker: ProcessId,
    pub(super) path: PathId,
    pub(super) fence: Fence,
}

/// The result that an upload is for. Its number of tokens is no part of the key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UploadKey {
    lease: HeldLease,
    item: LeaseResult,
}

impl UploadKey {
    pub(super) fn of(piece: &UploadedPiece) -> Self {
        let LeaseClaim { key: LeaseKey { path, fence, .. }, worker } = piece.claim.clone();
        Self { lease: HeldLease { worker, path, fence }, item: piece.item.without_tokens() }
    }
}

/// The uploads of the results of a lease.
type Results = BTreeMap<LeaseResult, Arc<Upload>>;

/// The uploads in progress, by lease. The leases of a token lie together.
#[derive(Default)]
pub(super) struct LeaseUploads {
    leases: BTreeMap<HeldLease, Results>,
}

impl LeaseUploads {
    pub(super) fn get(&self, key: &UploadKey) -> Option<&Arc<Upload>> {
        self.leases.get(&key.lease)?.get(&key.item)
    }

    /// Puts an upload in its place, and returns the one that was there.
    pub(super) fn insert(&mut self, key: UploadKey, upload: Arc<Upload>) -> Option<Arc<Upload>> {
        self.leases.entry(key.lease).or_default().insert(key.item, upload)
    }

    /// The leases with uploads.
    pub(super) fn leases(&self) -> Vec<(PathId, Fence)> {
        self.leases.keys().map(|lease| (lease.path, lease.fence)).collect()
    }

    /// All uploads.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Upload>> {
        self.leases.values().flat_map(BTreeMap::values)
    }

    /// The uploads of all leases with a token.
    pub(super) fn of_token(&self, token: &str) -> impl Iterator<Item = &Arc<Upload>> {
        let worker = ProcessId { token: token.to_owned(), name: String::new(), instance: 0 };
        let leases = self.leases.range(HeldLease { worker, path: PathId(0), fence: Fence(0) }..);
        leases
            .take_while(move |(lease, _)| lease.worker.token == token)
            .flat_map(|(_, results)| results.values())
    }

    /// Takes the uploads of a lease out, and those of the earlier leases of its worker on the path.
    pub(super) fn remove_up_to(&mut self, last: HeldLease) -> Vec<Results> {
        let first = HeldLease { fence: Fence(0), ..last.clone() };
        self.leases.extract_if(first..=last, |_, _| true).map(|(_, results)| results).collect()
    }

    /// Takes the uploads of other leases than those that are out.
    pub(super) fn remove_ended(&mut self, is_out: impl Fn(&LeaseClaim) -> bool) -> Vec<Results> {
        let has_ended = |results: &Results| !results.values().any(|upload| is_out(&upload.claim));
        self.leases.extract_if(.., |_, results| has_ended(results)).map(|(_, results)| results).collect()
    }
}
