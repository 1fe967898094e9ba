//! Frames and payloads on a stream.
//!
//! A *frame* is `length: u32 LE | checksum: 4 bytes | body`: the length counts the body, the checksum is the start of
//! the body's BLAKE3 hash, the body is postcard. A *payload* follows a frame that gives its length. It is raw bytes
//! without a checksum of its own: TLS detects changes on the way, and the receiver verifies the hash of the whole
//! object that the payload belongs to.

use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::NetError;
use crate::printable::is_printable;

const PREAMBLE_BYTES: usize = 8;
const CHUNK_BYTES: usize = 256 << 10;

/// The part of a header that describes the payload behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PayloadHeader {
    pub(crate) length: u64,
}

/// The start of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preamble {
    /// Length of the body in bytes.
    pub(crate) length: u32,
    checksum: [u8; 4],
}

/// The first message of a server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) run_id: String,
}

/// Result of an operation. After `Done` the response follows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Status {
    Done(Option<PayloadHeader>),
    Refused(String),
}

/// A transfer of frames and payloads on a stream: names for its errors, and its time limit.
pub(crate) struct Transfer<'a> {
    pub(crate) peer: &'a str,
    pub(crate) part: &'static str,
    pub(crate) stall: Duration,
}

impl PayloadHeader {
    pub(crate) fn of(payload: &Bytes) -> Self {
        Self { length: payload.len() as u64 }
    }
}

impl Transfer<'_> {
    /// Encodes a frame with `head` and then `body`.
    pub(crate) fn frame<H: Serialize, B: Serialize>(
        &self,
        head: &H,
        body: &B,
        max_bytes: u32,
    ) -> Result<Vec<u8>, NetError> {
        let failed = |source| NetError::Message { peer: self.peer.to_owned(), what: self.part, source };
        let frame = postcard::to_extend(head, vec![0; PREAMBLE_BYTES]).map_err(failed)?;
        let mut frame = postcard::to_extend(body, frame).map_err(failed)?;
        // The length and the checksum are known only now: they fill the gap at the start of the buffer.
        let bytes = frame.len() - PREAMBLE_BYTES;
        let length = u32::try_from(bytes).ok().filter(|&length| length <= max_bytes);
        let length = length.ok_or_else(|| self.too_large(bytes as u64, max_bytes.into()))?;
        let checksum = checksum(&frame[PREAMBLE_BYTES..]);
        frame[..4].copy_from_slice(&length.to_le_bytes());
        frame[4..PREAMBLE_BYTES].copy_from_slice(&checksum);
        Ok(frame)
    }

    /// Reads the next frame and returns its body. Compares the length with `max_bytes` before it allocates memory.
    pub(crate) async fn read_frame(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        max_bytes: u32,
    ) -> Result<Vec<u8>, NetError> {
        let preamble = self.read_preamble(stream, max_bytes).await?;
        self.read_body(stream, preamble).await
    }

    /// Reads the start of the next frame, and compares its length with `max_bytes`.
    pub(crate) async fn read_preamble(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        max_bytes: u32,
    ) -> Result<Preamble, NetError> {
        let mut preamble = [0; PREAMBLE_BYTES];
        self.moving(stream.read_exact(&mut preamble)).await?;
        let [a, b, c, d, checksum @ ..] = preamble;
        let length = u32::from_le_bytes([a, b, c, d]);
        // The length comes from the peer: without this check four bytes could make this end allocate 4 GiB.
        if length > max_bytes {
            return Err(self.too_large(length.into(), max_bytes.into()));
        }
        Ok(Preamble { length, checksum })
    }

    /// Reads the body of the frame with this start.
    pub(crate) async fn read_body(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        Preamble { length, checksum: expected }: Preamble,
    ) -> Result<Vec<u8>, NetError> {
        let mut body = vec![0; length as usize];
        self.moving(stream.read_exact(&mut body)).await?;
        if checksum(&body) != expected {
            return Err(NetError::Damaged { peer: self.peer.to_owned(), what: self.part });
        }
        Ok(body)
    }

    /// Decodes a value at the start of a frame's body; returns the value and the rest.
    pub(crate) fn take<'b, T: Deserialize<'b>>(&self, body: &'b [u8]) -> Result<(T, &'b [u8]), NetError> {
        postcard::take_from_bytes(body).map_err(|source| self.not_a_message(source))
    }

    /// Decodes the rest of a frame's body as one value. Bytes after the value are an error.
    pub(crate) fn last<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, NetError> {
        let (value, rest) = self.take(body)?;
        if rest.is_empty() {
            Ok(value)
        } else {
            Err(self.not_a_message(postcard::Error::DeserializeBadEncoding))
        }
    }

    fn not_a_message(&self, source: postcard::Error) -> NetError {
        NetError::Message { peer: self.peer.to_owned(), what: self.part, source }
    }

    /// Reads a payload. Compares the length in its header with `max_bytes` before it allocates memory.
    pub(crate) async fn read_payload(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        PayloadHeader { length }: PayloadHeader,
        max_bytes: u64,
    ) -> Result<Bytes, NetError> {
        if length > max_bytes {
            return Err(self.too_large(length, max_bytes));
        }
        let memory = |_| NetError::Memory { peer: self.peer.to_owned(), bytes: length };
        let bytes = usize::try_from(length).map_err(|_| self.too_large(length, usize::MAX as u64))?;
        // A payload can be larger than the free memory: report it to the peer instead of ending the process.
        let mut payload = Vec::new();
        payload.try_reserve_exact(bytes).map_err(memory)?;
        self.fill(stream, &mut (&mut payload).limit(bytes)).await?;
        Ok(payload.into())
    }

    /// Reads a payload in place of the content of `into`. It must fit into the capacity of `into`.
    pub(crate) async fn read_payload_into(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        PayloadHeader { length }: PayloadHeader,
        into: &mut BytesMut,
    ) -> Result<(), NetError> {
        let room = into.capacity();
        let bytes = usize::try_from(length).ok().filter(|&bytes| bytes <= room);
        let bytes = bytes.ok_or_else(|| self.too_large(length, room as u64))?;
        into.clear();
        self.fill(stream, &mut into.limit(bytes)).await
    }

    /// Reads until `into` is full.
    async fn fill(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        into: &mut impl BufMut,
    ) -> Result<(), NetError> {
        while into.has_remaining_mut() {
            if self.moving(stream.read_buf(into)).await? == 0 {
                return Err(self.broken(&io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Ok(())
    }

    /// Writes bytes in chunks. Each chunk has the time limit for stalls, so a slow transfer that moves is no error.
    pub(crate) async fn write(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        bytes: &[u8],
    ) -> Result<(), NetError> {
        for chunk in bytes.chunks(CHUNK_BYTES) {
            self.moving(stream.write_all(chunk)).await?;
        }
        Ok(())
    }

    /// Writes a payload without copying it.
    pub(crate) async fn write_payload(
        &self,
        stream: &mut quinn::SendStream,
        mut payload: Bytes,
    ) -> Result<(), NetError> {
        while payload.has_remaining() {
            let part = payload.split_to(payload.len().min(CHUNK_BYTES));
            let written = async { stream.write_chunk(part).await.map_err(io::Error::from) };
            self.moving(written).await?;
        }
        Ok(())
    }

    /// Runs a step of a transfer within the time limit for stalls.
    async fn moving<T>(&self, step: impl Future<Output = io::Result<T>>) -> Result<T, NetError> {
        match timeout(self.stall, step).await {
            Ok(done) => done.map_err(|error| self.broken(&error)),
            Err(_) => {
                let what = "continue a transfer";
                Err(NetError::Timeout { peer: self.peer.to_owned(), what, after: self.stall })
            }
        }
    }

    /// The error of a broken stream: the connection was lost, or the peer gave up this stream only.
    pub(crate) fn broken(&self, error: &io::Error) -> NetError {
        match connection_error(error) {
            Some(source) => closed(self.peer, source),
            None => NetError::Abandoned { peer: self.peer.to_owned(), what: self.part },
        }
    }

    fn too_large(&self, bytes: u64, limit: u64) -> NetError {
        NetError::TooLarge { peer: self.peer.to_owned(), what: self.part, bytes, limit }
    }
}

/// The error of operations on an ended connection.
pub(crate) fn closed(peer: &str, source: quinn::ConnectionError) -> NetError {
    let peer = peer.to_owned();
    match source {
        quinn::ConnectionError::ApplicationClosed(close)
            if close.error_code == crate::transport::code::BUSY =>
        {
            NetError::Busy { peer }
        }
        quinn::ConnectionError::ApplicationClosed(close)
            if close.error_code == crate::transport::code::REVOKED =>
        {
            NetError::Revoked { peer }
        }
        quinn::ConnectionError::ApplicationClosed(close) => {
            NetError::Closed { peer, reason: spelled_out(&close.reason) }
        }
        quinn::ConnectionError::LocallyClosed => {
            NetError::Closed { peer, reason: "this end closed the connection".to_owned() }
        }
        source => NetError::Lost { peer, source: Box::new(source) },
    }
}

/// The other end's reason as text. Letters that are not [printable](is_printable) are spelled out.
fn spelled_out(reason: &[u8]) -> String {
    let mut text = String::with_capacity(reason.len());
    for letter in String::from_utf8_lossy(reason).chars() {
        if is_printable(letter) { text.push(letter) } else { text.extend(letter.escape_default()) }
    }
    text
}

fn connection_error(error: &io::Error) -> Option<quinn::ConnectionError> {
    let inner = error.get_ref()?;
    let from_read = || match inner.downcast_ref::<quinn::ReadError>()? {
        quinn::ReadError::ConnectionLost(source) => Some(source.clone()),
        _ => None,
    };
    let from_write = || match inner.downcast_ref::<quinn::WriteError>()? {
        quinn::WriteError::ConnectionLost(source) => Some(source.clone()),
        _ => None,
    };
    from_read().or_else(from_write)
}

fn checksum(body: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = *blake3::hash(body).as_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests;
