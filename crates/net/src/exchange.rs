//! An operation, at the end that answers it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::NetError;
use crate::peer_connection::Shared;
use crate::token_share::{PeerMemory, TokenShare};
use crate::transport::code;
use crate::wire::{self, PayloadHeader, Status, Transfer};

const MAX_REFUSAL_BYTES: usize = 2048;

/// Slowest accepted peer. A payload occupies memory here until it has arrived as a whole.
const SLOWEST_BYTES_PER_SECOND: u64 = 8 << 10;

/// An operation of a peer. A drop without an answer tells the peer that this end gave up.
pub struct Exchange {
    peer: Arc<str>,
    shared: Arc<Shared>,
    send: quinn::SendStream,
    receive: quinn::RecvStream,
    payload: Option<PayloadHeader>,
    answered: bool,
    /// Memory of the header and of the piece.
    memory: PeerMemory,
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
        share: Arc<TokenShare>,
        send: quinn::SendStream,
        receive: quinn::RecvStream,
    ) -> Self {
        let memory = PeerMemory::of(share);
        Self { peer, shared, send, receive, payload: None, answered: false, memory }
    }

    /// Reads the request's header. Call it before [`Exchange::receive_payload`].
    ///
    /// # Errors
    /// [`NetError::TooLarge`], [`NetError::Damaged`], [`NetError::Message`], [`NetError::Timeout`] and
    /// [`NetError::Abandoned`]; the peer gets a refusal with the same text.
    pub async fn request<Req: DeserializeOwned>(&mut self) -> Result<Req, NetError> {
        let request = self.read_request().await;
        self.refuse_if_failed(request).await
    }

    async fn read_request<Req: DeserializeOwned>(&mut self) -> Result<Req, NetError> {
        let limits = &self.shared.limits;
        let transfer = Transfer { peer: &self.peer, part: "request header", stall: limits.header_timeout };
        let preamble = transfer.read_preamble(&mut self.receive, limits.max_header_bytes).await?;
        let taken = timeout(limits.stall_timeout, self.memory.take_header(preamble.length.into())).await;
        taken.map_err(|_| self.late("wait for memory", limits.stall_timeout))?;
        let body = transfer.read_body(&mut self.receive, preamble).await?;
        let (payload, rest) = transfer.take(&body)?;
        self.payload = payload;
        transfer.last(rest)
    }

    /// Waits until there is memory for a piece of `bytes`, received or sent, in the share of the peer's token. The
    /// memory is free again when the exchange ends, unless [`Exchange::take_memory`] has taken it.
    pub async fn reserve(&mut self, bytes: u64) {
        self.memory.take_piece(bytes).await;
    }

    /// Takes the memory of the request out of the exchange, for work with the request that may go on after the exchange. It
    /// is free again when the result is dropped.
    #[must_use = "a drop frees the memory"]
    pub fn take_memory(&mut self) -> PeerMemory {
        self.memory.split_off()
    }

    fn late(&self, what: &'static str, after: Duration) -> NetError {
        NetError::Timeout { peer: self.peer.to_string(), what, after }
    }

    /// Time for a payload of this many bytes.
    fn patience(&self, bytes: u64) -> Duration {
        self.shared.limits.stall_timeout + Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND)
    }

    /// Reads the request's payload, of at most `max_bytes`. The time limit is [`Limits::stall_timeout`] plus a second for
    /// each 8 KiB.
    ///
    /// [`Limits::stall_timeout`]: crate::Limits::stall_timeout
    ///
    /// # Errors
    /// [`NetError::TooLarge`], [`NetError::Memory`], [`NetError::Payload`] (the request has no payload),
    /// [`NetError::Timeout`] and [`NetError::Abandoned`]; the peer gets a refusal with the same text.
    /// [`NetError::Lost`].
    pub async fn receive_payload(&mut self, max_bytes: u64) -> Result<Bytes, NetError> {
        let payload = self.read_payload(max_bytes).await;
        self.refuse_if_failed(payload).await
    }

    async fn read_payload(&mut self, max_bytes: u64) -> Result<Bytes, NetError> {
        let Some(header) = self.payload.take() else {
            return Err(NetError::Payload { peer: self.peer.to_string(), found: "no", expected: "one" });
        };
        let stall = self.shared.limits.stall_timeout;
        let transfer = Transfer { peer: &self.peer, part: "request payload", stall };
        // A limit for the whole: a byte in each stall period would hold the memory for years.
        let patience = self.patience(header.length.min(max_bytes));
        let reading = transfer.read_payload(&mut self.receive, header, max_bytes);
        let payload =
            timeout(patience, reading).await.map_err(|_| self.late("send a payload", patience))??;
        self.shared.counters.received(payload.len());
        Ok(payload)
    }

    async fn refuse_if_failed<T>(&mut self, result: Result<T, NetError>) -> Result<T, NetError> {
        // The peer waits for an answer, so tell it the error, unless its connection is gone or it has an answer already.
        if let Err(error) = &result
            && !matches!(error, NetError::Lost { .. } | NetError::Closed { .. } | NetError::Answered { .. })
            && let Err(refusal) = self.answer(&Status::Refused(shorten(error.to_string())), &(), None).await
        {
            tracing::debug!(%refusal, "the reason of a refusal did not reach the peer");
        }
        result
    }

    /// Answers the request. `Ok` means that the peer has received the whole answer. The time limit is
    /// [`Limits::stall_timeout`] plus a second for each 8 KiB of the payload.
    ///
    /// [`Limits::stall_timeout`]: crate::Limits::stall_timeout
    ///
    /// # Errors
    /// [`NetError::Abandoned`] if the peer gave up, [`NetError::Answered`], [`NetError::TooLarge`] (the peer gets a refusal
    /// with the same text), [`NetError::Timeout`], [`NetError::Lost`].
    pub async fn respond<Resp: Serialize>(
        mut self,
        response: &Resp,
        payload: Option<Bytes>,
    ) -> Result<(), NetError> {
        let header = payload.as_ref().map(PayloadHeader::of);
        match self.answer(&Status::Done(header), response, payload).await {
            // Nothing was sent. Without an answer the peer would ask again and again.
            Err(error @ NetError::TooLarge { .. }) => self.refuse_if_failed(Err(error)).await,
            answered => answered,
        }
    }

    /// Refuses the request. The peer gets the reason as [`NetError::Refused`] (truncated to 2 kB).
    ///
    /// # Errors
    /// As [`Exchange::respond`].
    pub async fn refuse(mut self, message: impl Into<String>) -> Result<(), NetError> {
        self.answer(&Status::Refused(shorten(message.into())), &(), None).await
    }

    /// Waits until the peer gives up the operation or its connection ends. Use it in handlers that wait before they
    /// answer.
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
        let mut transfer =
            Transfer { peer: &self.peer, part: "response header", stall: limits.stall_timeout };
        let frame = transfer.frame(status, response, limits.max_header_bytes)?;
        // From here on nothing reads the rest of the request, so stop the peer. An error means that the request has
        // arrived completely.
        self.receive.stop(code::ABANDONED).ok();
        transfer.write(&mut self.send, &frame).await?;
        let patience = self.patience(payload.as_ref().map_or(0, |payload| payload.len() as u64));
        if let Some(payload) = payload {
            transfer.part = "response payload";
            let length = payload.len();
            transfer.write_payload(&mut self.send, payload).await?;
            self.shared.counters.sent(length);
        }
        let abandoned = || NetError::Abandoned { peer: self.peer.to_string(), what: "response" };
        self.send.finish().map_err(|_| abandoned())?;
        self.answered = true;
        // `finish` only queues the end of the stream. `stopped` returns after the peer has acknowledged every byte, so
        // the caller may count the answer as delivered.
        match timeout(patience, self.send.stopped()).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(_))) => Err(abandoned()),
            Ok(Err(quinn::StoppedError::ConnectionLost(source))) => Err(wire::closed(&self.peer, source)),
            Ok(Err(quinn::StoppedError::ZeroRttRejected)) => Err(abandoned()),
            Err(_) => {
                // Free the memory of the unreceived part: a slow peer must not hold it for longer than `patience`.
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
            // Without a reset the stream would end in order, like an empty answer.
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
