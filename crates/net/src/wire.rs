//! Frames and payloads on a stream.
//!
//! A *frame* is `length: u32 LE | checksum: 4 bytes | body`: the length counts the body, the checksum is the start of
//! the body's BLAKE3 hash, the body is postcard. A *payload* follows the frame that announces it, as it is.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::NetError;

const PREAMBLE_BYTES: usize = 8;
const CHUNK_BYTES: usize = 256 << 10;

/// What a header says about the payload behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announced {
    pub(crate) length: u64,
    pub(crate) hash: [u8; 32],
}

/// The first thing that a server sends.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) run_id: String,
}

/// How an operation ended; the response follows when it was done.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Status {
    Done(Option<Announced>),
    Refused(String),
}

/// One end of a stream in messages, and how long it may stand still.
pub(crate) struct Link<'a> {
    pub(crate) peer: &'a str,
    pub(crate) what: &'static str,
    pub(crate) stall: Duration,
}

impl Announced {
    pub(crate) async fn of(payload: &Bytes) -> Self {
        const INLINE: usize = 256 << 10;
        let length = payload.len() as u64;
        if payload.len() > INLINE {
            let shared = payload.clone();
            if let Ok(hash) = tokio::task::spawn_blocking(move || blake3::hash(&shared)).await {
                return Self { length, hash: hash.into() };
            }
        }
        Self { length, hash: blake3::hash(payload).into() }
    }
}

impl Link<'_> {
    /// A frame with `head` and then `body`.
    pub(crate) fn frame<H: Serialize, B: Serialize>(
        &self,
        head: &H,
        body: &B,
        max_bytes: u32,
    ) -> Result<Vec<u8>, NetError> {
        let failed = |source| NetError::Message { peer: self.peer.to_owned(), what: self.what, source };
        let frame = postcard::to_extend(head, vec![0; PREAMBLE_BYTES]).map_err(failed)?;
        let mut frame = postcard::to_extend(body, frame).map_err(failed)?;
        let bytes = frame.len() - PREAMBLE_BYTES;
        let length = u32::try_from(bytes).ok().filter(|&length| length <= max_bytes);
        let length = length.ok_or_else(|| self.too_large(bytes as u64, max_bytes.into()))?;
        let checksum = checksum(&frame[PREAMBLE_BYTES..]);
        frame[..4].copy_from_slice(&length.to_le_bytes());
        frame[4..PREAMBLE_BYTES].copy_from_slice(&checksum);
        Ok(frame)
    }

    /// The body of the next frame; its length is held against `max_bytes` before memory is taken for it.
    pub(crate) async fn read_frame(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        max_bytes: u32,
    ) -> Result<Vec<u8>, NetError> {
        let mut preamble = [0; PREAMBLE_BYTES];
        self.moving(stream.read_exact(&mut preamble)).await?;
        let [a, b, c, d, expected @ ..] = preamble;
        let length = u32::from_le_bytes([a, b, c, d]);
        if length > max_bytes {
            return Err(self.too_large(length.into(), max_bytes.into()));
        }
        let mut body = vec![0; length as usize];
        self.moving(stream.read_exact(&mut body)).await?;
        if checksum(&body) != expected {
            return Err(NetError::Damaged { peer: self.peer.to_owned(), what: self.what });
        }
        Ok(body)
    }

    /// Takes one value off the start of a frame's body.
    pub(crate) fn take<'b, T: Deserialize<'b>>(&self, body: &'b [u8]) -> Result<(T, &'b [u8]), NetError> {
        postcard::take_from_bytes(body).map_err(|source| self.not_a_message(source))
    }

    /// Reads the rest of a frame's body as one value, all of it.
    pub(crate) fn last<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, NetError> {
        let (value, rest) = self.take(body)?;
        if rest.is_empty() {
            Ok(value)
        } else {
            Err(self.not_a_message(postcard::Error::DeserializeBadEncoding))
        }
    }

    fn not_a_message(&self, source: postcard::Error) -> NetError {
        NetError::Message { peer: self.peer.to_owned(), what: self.what, source }
    }

    /// The announced payload, verified; its length is held against `max_bytes` before memory is taken for it.
    pub(crate) async fn read_payload(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        announced: Announced,
        max_bytes: u64,
    ) -> Result<Bytes, NetError> {
        let Announced { length: bytes, hash } = announced;
        if bytes > max_bytes {
            return Err(self.too_large(bytes, max_bytes));
        }
        let memory = |_| NetError::Memory { peer: self.peer.to_owned(), bytes };
        let length = usize::try_from(bytes).map_err(|_| self.too_large(bytes, usize::MAX as u64))?;
        let mut payload = Vec::new();
        payload.try_reserve_exact(length).map_err(memory)?;
        let mut hasher = blake3::Hasher::new();
        while payload.len() < length {
            let start = payload.len();
            let mut rest = (&mut *stream).take((length - start).min(CHUNK_BYTES) as u64);
            if self.moving(rest.read_buf(&mut payload)).await? == 0 {
                return Err(self.broken(&io::ErrorKind::UnexpectedEof.into()));
            }
            hasher.update(&payload[start..]);
        }
        if hasher.finalize() != hash {
            return Err(NetError::Damaged { peer: self.peer.to_owned(), what: self.what });
        }
        Ok(payload.into())
    }

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

    /// A step of a transfer, which must end before the transfer counts as stalled.
    async fn moving<T>(&self, step: impl Future<Output = io::Result<T>>) -> Result<T, NetError> {
        match timeout(self.stall, step).await {
            Ok(done) => done.map_err(|error| self.broken(&error)),
            Err(_) => {
                let what = "go on with a transfer";
                Err(NetError::Timeout { peer: self.peer.to_owned(), what, after: self.stall })
            }
        }
    }

    /// The two kinds of failure of a stream: with its connection or alone.
    fn broken(&self, error: &io::Error) -> NetError {
        match connection_error(error) {
            Some(source) => closed(self.peer, source),
            None => NetError::Abandoned { peer: self.peer.to_owned(), what: self.what },
        }
    }

    fn too_large(&self, bytes: u64, limit: u64) -> NetError {
        NetError::TooLarge { peer: self.peer.to_owned(), what: self.what, bytes, limit }
    }
}

/// The error for operations on a connection that ended.
pub(crate) fn closed(peer: &str, source: quinn::ConnectionError) -> NetError {
    let peer = peer.to_owned();
    match source {
        quinn::ConnectionError::ApplicationClosed(close)
            if close.error_code == crate::transport::code::BUSY =>
        {
            NetError::Busy { peer }
        }
        quinn::ConnectionError::ApplicationClosed(close) => {
            NetError::Closed { peer, reason: String::from_utf8_lossy(&close.reason).into_owned() }
        }
        quinn::ConnectionError::LocallyClosed => {
            NetError::Closed { peer, reason: "this end closed it".to_owned() }
        }
        source => NetError::Lost { peer, source: Box::new(source) },
    }
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
