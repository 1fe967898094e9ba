//! One operation, at the end that answers it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::NetError;
use crate::server::Shared;
use crate::transport::code;
use crate::wire::{self, Announced, Link, Status};

const MAX_REFUSAL_BYTES: usize = 2048;

/// The slowest peer that is waited for: what it has not taken is memory here.
const SLOWEST_BYTES_PER_SECOND: u64 = 8 << 10;

/// One operation that a peer asks for. Dropping it without an answer tells the peer that it was given up.
pub struct Exchange {
    peer: Arc<str>,
    shared: Arc<Shared>,
    send: quinn::SendStream,
    receive: quinn::RecvStream,
    announced: Option<Announced>,
    answered: bool,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Exchange {
    pub(crate) fn new(
        peer: Arc<str>,
        shared: Arc<Shared>,
        send: quinn::SendStream,
        receive: quinn::RecvStream,
    ) -> Self {
        Self { peer, shared, send, receive, announced: None, answered: false }
    }

    /// The request's header. Must be read before the payload.
    ///
    /// # Errors
    /// [`NetError::TooLarge`], [`NetError::Damaged`] and [`NetError::Message`], which the peer is told too;
    /// [`NetError::Timeout`] and [`NetError::Abandoned`].
    pub async fn request<Req: DeserializeOwned>(&mut self) -> Result<Req, NetError> {
        let request = self.read_request().await;
        self.refuse_if_failed(request).await
    }

    async fn read_request<Req: DeserializeOwned>(&mut self) -> Result<Req, NetError> {
        let limits = &self.shared.limits;
        let link = Link { peer: &self.peer, what: "request header", stall: limits.header_timeout };
        let body = link.read_frame(&mut self.receive, limits.max_header_bytes).await?;
        let (announced, rest) = link.take(&body)?;
        self.announced = announced;
        link.last(rest)
    }

    /// The length in bytes of the payload that the request announces; `None` when it has none.
    #[must_use]
    pub fn payload_length(&self) -> Option<u64> {
        self.announced.map(|announced| announced.length)
    }

    /// The request's payload, of at most `max_bytes`, verified by its hash.
    ///
    /// # Errors
    /// [`NetError::TooLarge`], [`NetError::Damaged`], [`NetError::Memory`] and [`NetError::Payload`] (none was
    /// announced), which the peer is told too; [`NetError::Timeout`], [`NetError::Abandoned`], [`NetError::Lost`].
    pub async fn receive_payload(&mut self, max_bytes: u64) -> Result<Bytes, NetError> {
        let payload = self.read_payload(max_bytes).await;
        self.refuse_if_failed(payload).await
    }

    async fn read_payload(&mut self, max_bytes: u64) -> Result<Bytes, NetError> {
        let Some(announced) = self.announced.take() else {
            return Err(NetError::Payload { peer: self.peer.to_string(), found: "no", expected: "one" });
        };
        let stall = self.shared.limits.stall_timeout;
        let link = Link { peer: &self.peer, what: "request payload", stall };
        let payload = link.read_payload(&mut self.receive, announced, max_bytes).await?;
        self.shared.counters.received(payload.len());
        Ok(payload)
    }

    async fn refuse_if_failed<T>(&mut self, result: Result<T, NetError>) -> Result<T, NetError> {
        if let Err(error) = &result
            && !matches!(error, NetError::Lost { .. } | NetError::Closed { .. } | NetError::Answered { .. })
            && let Err(refusal) = self.answer(&Status::Refused(shorten(error.to_string())), &(), None).await
        {
            tracing::debug!(%refusal, "a peer was not told why it was refused");
        }
        result
    }

    /// Answers the request. `Ok` means that the whole answer has reached the peer; it has [`Limits::stall_timeout`] for
    /// that, and a second for each 8 KiB of the payload.
    ///
    /// [`Limits::stall_timeout`]: crate::Limits::stall_timeout
    ///
    /// # Errors
    /// [`NetError::Abandoned`] when the peer gave up, [`NetError::Answered`], [`NetError::TooLarge`],
    /// [`NetError::Timeout`], [`NetError::Lost`].
    pub async fn respond<Resp: Serialize>(
        mut self,
        response: &Resp,
        payload: Option<Bytes>,
    ) -> Result<(), NetError> {
        let announced = match &payload {
            Some(payload) => Some(Announced::of(payload).await),
            None => None,
        };
        self.answer(&Status::Done(announced), response, payload).await
    }

    /// Refuses the request with a reason that the peer gets as [`NetError::Refused`] (cut at 2 kB).
    ///
    /// # Errors
    /// As [`Exchange::respond`].
    pub async fn refuse(mut self, message: impl Into<String>) -> Result<(), NetError> {
        self.answer(&Status::Refused(shorten(message.into())), &(), None).await
    }

    /// Waits until the peer is no longer interested: it gave up the operation or its connection ended. For handlers
    /// that wait for something before they answer.
    pub async fn abandoned(&self) {
        self.send.stopped().await.ok();
    }

    async fn answer<Resp: Serialize>(
        &mut self,
        status: &Status,
        response: &Resp,
        payload: Option<Bytes>,
    ) -> Result<(), NetError> {
        if self.answered {
            return Err(NetError::Answered { peer: self.peer.to_string() });
        }
        let limits = &self.shared.limits;
        let mut link = Link { peer: &self.peer, what: "response header", stall: limits.stall_timeout };
        let frame = link.frame(status, response, limits.max_header_bytes)?;
        // What the peer still sends of its request has no reader. An error means that all has arrived.
        self.receive.stop(code::ABANDONED).ok();
        link.write(&mut self.send, &frame).await?;
        let mut patience = limits.stall_timeout;
        if let Some(payload) = payload {
            patience += Duration::from_secs(payload.len() as u64 / SLOWEST_BYTES_PER_SECOND);
            link.what = "response payload";
            link.write(&mut self.send, &payload).await?;
            self.shared.counters.sent(payload.len());
        }
        let abandoned = || NetError::Abandoned { peer: self.peer.to_string(), what: "response" };
        self.send.finish().map_err(|_| abandoned())?;
        self.answered = true;
        match timeout(patience, self.send.stopped()).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(_))) => Err(abandoned()),
            Ok(Err(quinn::StoppedError::ConnectionLost(source))) => Err(wire::closed(&self.peer, source)),
            Ok(Err(quinn::StoppedError::ZeroRttRejected)) => Err(abandoned()),
            Err(_) => {
                // What the peer has not taken is not kept for it any longer.
                self.send.reset(code::ABANDONED).ok();
                let what = "acknowledge a response";
                Err(NetError::Timeout { peer: self.peer.to_string(), what, after: patience })
            }
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.answered {
            // Without a reset the stream would end in order, as if an empty answer had been sent.
            self.send.reset(code::ABANDONED).ok();
        }
    }
}

fn shorten(mut message: String) -> String {
    if message.len() > MAX_REFUSAL_BYTES {
        message.truncate(message.floor_char_boundary(MAX_REFUSAL_BYTES));
        message.push('…');
    }
    message
}
