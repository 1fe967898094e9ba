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
/// What arrives is hashed in parts of this length: BLAKE3 is several times as fast on many blocks as on the one or two
/// that a datagram holds, and these still lie in the core's cache.
const HASHED_BYTES: usize = 64 << 10;

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
        let mut hashed = 0;
        while payload.len() < length {
            let mut rest = (&mut *stream).take((length - payload.len()).min(CHUNK_BYTES) as u64);
            if self.moving(rest.read_buf(&mut payload)).await? == 0 {
                return Err(self.broken(&io::ErrorKind::UnexpectedEof.into()));
            }
            if payload.len() - hashed >= HASHED_BYTES || payload.len() == length {
                hasher.update(&payload[hashed..]);
                hashed = payload.len();
            }
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
    pub(crate) fn broken(&self, error: &io::Error) -> NetError {
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

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use proptest::prelude::*;
    use tokio::io::ReadBuf;

    use super::*;

    const LINK: Link<'static> = Link { peer: "the test", what: "header", stall: Duration::from_secs(60) };

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    /// Gives what it has and fails the test when more is read.
    struct OnlyThis<'a>(&'a [u8]);

    impl AsyncRead for OnlyThis<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let (now, later) = self.0.split_at(self.0.len().min(buffer.remaining()));
            assert!(!now.is_empty(), "read past the length that was refused");
            buffer.put_slice(now);
            self.0 = later;
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn the_format_of_a_frame_is_as_documented() {
        let frame = LINK.frame(&None::<Announced>, &"round", 100).unwrap();
        let body = b"\x00\x05round"; // none announced; a string of five bytes
        assert_eq!(frame[..4], [7, 0, 0, 0]);
        assert_eq!(frame[4..8], blake3::hash(body).as_bytes()[..4]);
        assert_eq!(&frame[8..], body);
    }

    #[test]
    fn a_header_over_the_limit_is_refused_by_both_ends_before_its_body() {
        let text = "x".repeat(100);
        assert!(matches!(
            LINK.frame(&(), &text, 100),
            Err(NetError::TooLarge { bytes: 101, limit: 100, .. })
        ));
        let frame = LINK.frame(&(), &text, 101).unwrap();
        let error = run(LINK.read_frame(&mut OnlyThis(&frame[..8]), 100)).unwrap_err();
        assert!(matches!(error, NetError::TooLarge { bytes: 101, limit: 100, .. }), "{error}");
        let error = run(LINK.read_frame(&mut OnlyThis(&[0xff; 8]), 1 << 20)).unwrap_err();
        assert!(matches!(error, NetError::TooLarge { bytes: 0xffff_ffff, .. }), "{error}");
    }

    #[test]
    fn a_payload_over_the_limit_or_the_memory_is_refused_before_it_is_read() {
        let announced = |length| Announced { length, hash: [0; 32] };
        let read = |length, max| run(LINK.read_payload(&mut OnlyThis(&[]), announced(length), max));
        assert!(matches!(read(11, 10), Err(NetError::TooLarge { bytes: 11, limit: 10, .. })));
        assert!(matches!(read(u64::MAX, u64::MAX), Err(NetError::Memory { .. } | NetError::TooLarge { .. })));
    }

    #[test]
    fn text_that_claims_to_be_longer_than_its_frame_is_no_message() {
        // A string of 2^32 - 1 bytes in a frame of 7.
        let error = LINK.last::<String>(b"\xff\xff\xff\xff\x0fab").unwrap_err();
        assert!(matches!(error, NetError::Message { .. }), "{error}");
        let error = LINK.last::<Vec<u64>>(b"\xff\xff\xff\xff\x0fab").unwrap_err();
        assert!(matches!(error, NetError::Message { .. }), "{error}");
        assert!(matches!(LINK.last::<u8>(b"ab"), Err(NetError::Message { .. })), "rest after the message");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_never_taken_for_a_frame(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            // Four bytes of checksum let one in 2^32 through; an empty body with its checksum is not among the inputs.
            prop_assert!(run(LINK.read_frame(&mut bytes.as_slice(), 128)).is_err());
        }

        #[test]
        fn arbitrary_bodies_decode_or_fail(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = LINK.take::<Option<Announced>>(&body);
            let _ = LINK.take::<Status>(&body);
            let _ = LINK.take::<Welcome>(&body);
            let _ = LINK.last::<Vec<(u64, String, Option<Vec<u8>>)>>(&body);
        }

        #[test]
        fn frames_come_back_and_any_flipped_bit_or_cut_is_found(
            message: (u64, String), at: prop::sample::Index, bit in 0..8_u8,
        ) {
            let frame = LINK.frame(&None::<Announced>, &message, 1 << 20).unwrap();
            let body = run(LINK.read_frame(&mut frame.as_slice(), 1 << 20)).unwrap();
            let (announced, rest) = LINK.take::<Option<Announced>>(&body).unwrap();
            prop_assert_eq!(announced, None);
            prop_assert_eq!(LINK.last::<(u64, String)>(rest).unwrap(), message);

            let at = at.index(frame.len());
            prop_assert!(run(LINK.read_frame(&mut &frame[..at], 1 << 20)).is_err());
            let mut damaged = frame;
            damaged[at] ^= 1 << bit;
            prop_assert!(run(LINK.read_frame(&mut damaged.as_slice(), 1 << 20)).is_err());
        }

        #[test]
        fn payloads_come_back_and_damage_is_found(
            payload in prop::collection::vec(any::<u8>(), 1..2000), at: prop::sample::Index, bit in 0..8_u8,
        ) {
            let announced = run(Announced::of(&payload.clone().into()));
            let read = |bytes: &[u8]| run(LINK.read_payload(&mut &*bytes, announced, 2000));
            prop_assert_eq!(&read(&payload).unwrap()[..], &payload[..]);
            let at = at.index(payload.len());
            let cut = matches!(read(&payload[..at]), Err(NetError::Abandoned { .. }));
            prop_assert!(cut);
            let mut damaged = payload;
            damaged[at] ^= 1 << bit;
            let found = matches!(read(&damaged), Err(NetError::Damaged { .. }));
            prop_assert!(found);
        }
    }
}
