//! The upload of one result.

use std::sync::Arc;

use dipaco_ledger::ExpectedResult;
use dipaco_protocol::{ContentDigest, LeaseResult, Response};
use dipaco_store::ObjectRef;
use dipaco_sync::LeaseClaim;

use super::received_pieces::ReceivedPieces;
use super::{UploadProgress, offsets};
use crate::host::gradient_check::GradientCheck;

/// A piece of an upload.
#[derive(Clone, Debug)]
pub struct UploadedPiece {
    /// The lease and the worker that names it.
    pub claim: LeaseClaim,
    /// The result that is uploaded.
    pub item: LeaseResult,
    /// Announced digest of the complete result.
    pub digest: ContentDigest,
    /// First byte of the piece in the result: a multiple of [`PIECE_BYTES`](dipaco_protocol::PIECE_BYTES).
    pub offset: u64,
}

/// The decision to take an upload.
#[derive(Clone, Debug, Default)]
pub struct AdmittedUpload {
    /// Inner steps of the path after which its worker makes the result.
    pub to: u64,
    /// The ledger's check of the result; `None` if the ledger is in another process.
    pub expected: Option<ExpectedResult>,
}

/// The upload of one result.
pub struct Upload {
    pub(crate) claim: LeaseClaim,
    pub(crate) item: LeaseResult,
    pub(crate) digest: ContentDigest,
    pub(crate) admitted: AdmittedUpload,
    pub(super) progress: Arc<tokio::sync::Mutex<UploadProgress>>,
}

impl Upload {
    pub(super) fn new(piece: &UploadedPiece, admitted: AdmittedUpload, check: Option<GradientCheck>) -> Self {
        let UploadedPiece { claim, item, digest, .. } = piece.clone();
        let (missing, received) = (offsets(&digest), ReceivedPieces::checked_in_a_file(check));
        let progress = UploadProgress { missing, received, ..UploadProgress::default() };
        Self { claim, item, digest, admitted, progress: Arc::new(tokio::sync::Mutex::new(progress)) }
    }

    /// The answer to a piece for which there is no room.
    pub(super) fn no_room(&self) -> Response {
        Response::Wait { reason: format!("there is no room for {} now", self.item.name()) }
    }

    /// The object in the store that this upload announces. Its name contains the hash, and the store replaces no content.
    pub(crate) fn object(&self) -> ObjectRef {
        let ContentDigest { hash, bytes } = self.digest.clone();
        ObjectRef { name: self.item.object_name(self.claim.key, self.admitted.to, &hash), hash, bytes }
    }

    /// True if a piece is one of this upload: it has the lease's secret, and announces the same content.
    pub(super) fn has(&self, piece: &UploadedPiece) -> bool {
        piece.claim.matches(&self.claim) && piece.item == self.item && piece.digest == self.digest
    }
}
