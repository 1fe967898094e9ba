//! A result of a lease between its upload and its record.

use dipaco_ledger::{ExpectedResult, LeaseResult, ObjectRef, StoredResult};
use dipaco_sync::LeaseClaim;

use super::messages::Requester;
use super::object_store::Content;

/// A result on its way through the store.
#[derive(Clone, Debug)]
pub(crate) struct StoringResult {
    pub(crate) to: Requester,
    pub(super) claim: LeaseClaim,
    pub(super) item: LeaseResult,
    /// `None` if the planted bug lets the result pass.
    pub(super) expected: Option<ExpectedResult>,
    pub(super) stored: StoredResult,
    pub(crate) content: Content,
}

impl StoringResult {
    pub(crate) fn object(&self) -> &ObjectRef {
        &self.stored.object
    }
}
