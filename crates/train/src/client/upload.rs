//! Uploads of a worker's results, in pieces.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dipaco_protocol::{ContentDigest, LeaseResult, PIECE_BYTES, PIECES_AT_ONCE, Request, Response};
use dipaco_sync::LeaseKey;
use tokio::task::JoinSet;

use crate::client::backoff::Backoff;
use crate::client::content::UploadContent;
use crate::client::routes::needs_the_coordinator;
use crate::client::session::{LONG_CALL_TIMEOUT, Session};
use crate::client::{ClientError, Transfer, expect_done};

/// A result on its way to one peer.
#[derive(Clone)]
struct UploadTarget {
    session: Arc<Session>,
    lease: LeaseKey,
    item: LeaseResult,
    digest: ContentDigest,
}

impl Transfer {
    /// Uploads a result of a lease. Returns when the receiver has all of it: the fragment's synchronizer for an outer
    /// gradient, the synchronizer of one of the path's fragments for a state. While the receiver has no room, the result is
    /// sent again after a pause.
    ///
    /// # Errors
    /// When the lease is lost, the result is refused, or the coordinator can't be reached.
    pub async fn upload(
        self: &Arc<Self>,
        lease: LeaseKey,
        item: LeaseResult,
        content: impl Into<UploadContent>,
    ) -> Result<(), ClientError> {
        let content = content.into();
        let digest = content.digest().await?;
        let coordinator = self.routes.coordinator().clone();
        let to_coordinator = UploadTarget { session: coordinator, lease, item, digest };
        let mut backoff = Backoff::default();
        loop {
            let reason = match self.upload_once(&to_coordinator, &content).await {
                Err(ClientError::NoRoom { reason }) => reason,
                uploaded => return uploaded,
            };
            tracing::warn!(path = %lease.path, item = item.name(), reason, "a result is sent again");
            backoff.pause(self.routes.coordinator().cancelled()).await?;
        }
    }

    /// Uploads a result to its synchronizer, or to the coordinator.
    async fn upload_once(
        self: &Arc<Self>,
        to_coordinator: &UploadTarget,
        content: &UploadContent,
    ) -> Result<(), ClientError> {
        let UploadTarget { lease, item, .. } = *to_coordinator;
        if let Some(fragment) = self.routes.fragment_of(lease.path, item)
            && let Some(session) = self.routes.synchronizer(fragment).await?
        {
            let to_synchronizer = UploadTarget { session, ..to_coordinator.clone() };
            match self.upload_to(to_synchronizer, content).await {
                Err(error) if needs_the_coordinator(&error) => self.routes.avoid(fragment, &error).await,
                uploaded => return uploaded,
            }
        }
        self.upload_to(to_coordinator.clone(), content).await
    }

    async fn upload_to(
        self: &Arc<Self>,
        upload: UploadTarget,
        content: &UploadContent,
    ) -> Result<(), ClientError> {
        let mut next = 0;
        let mut done = false;
        let mut in_flight = JoinSet::new();
        // The pieces of one outer gradient go before the pieces of the next: the outer step can take the first gradient
        // early, and few gradients are incomplete at a time. No outer step waits for a state, and a state is large, so
        // its pieces go in parallel with those of the gradients.
        let mut turn = match upload.item {
            LeaseResult::OuterGradient { .. } => Some(self.turn.lock().await),
            LeaseResult::State => None,
        };
        loop {
            while in_flight.len() < PIECES_AT_ONCE
                && let Some(length) = upload.digest.piece(next)
            {
                let (transfer, upload, offset) = (self.clone(), upload.clone(), next);
                let content = content.clone();
                in_flight.spawn(async move { transfer.submit(upload, &content, offset, length).await });
                next += PIECE_BYTES;
            }
            // The last piece is on its way: the next gradient may use the slots that become free.
            if upload.digest.piece(next).is_none() {
                drop(turn.take());
            }
            let Some(stored) = in_flight.join_next().await else { break };
            done |= stored??;
        }
        if done { Ok(()) } else { Err(ClientError::UnexpectedAnswer { request: "submit" }) }
    }

    /// Uploads a piece; returns whether the result is complete with it.
    async fn submit(
        &self,
        upload: UploadTarget,
        content: &UploadContent,
        offset: u64,
        length: u64,
    ) -> Result<bool, ClientError> {
        let UploadTarget { session, lease, item, digest } = upload;
        let _slot = self.begin(&self.outgoing, length).await?;
        // Not before the slot: a piece of a file takes memory from here on.
        let piece = content.piece(offset, length).await?;
        let request = Request::Submit { lease, item, digest, offset };
        let complete = match session.call(&request, Some(piece), LONG_CALL_TIMEOUT).await? {
            Response::PieceStored => false,
            Response::Wait { reason } => return Err(ClientError::NoRoom { reason }),
            answer => expect_done(answer, "submit").map(|()| true)?,
        };
        self.uploaded.fetch_add(length, Ordering::Relaxed);
        Ok(complete)
    }
}
