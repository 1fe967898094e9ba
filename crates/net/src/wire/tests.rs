//! Tests of frames and payloads.

use std::pin::Pin;
use std::task::{Context, Poll};

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use proptest::prelude::*;
use tokio::io::ReadBuf;

use super::*;

const TRANSFER: Transfer<'static> =
    Transfer { peer: "the test", part: "header", stall: Duration::from_secs(60) };

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Returns its bytes, and fails the test at a read beyond them.
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
    let frame = TRANSFER.frame(&None::<PayloadHeader>, &"round", 100).unwrap();
    let body = b"\x00\x05round"; // no payload; a string of five bytes
    assert_eq!(frame[..4], [7, 0, 0, 0]);
    assert_eq!(frame[4..8], blake3::hash(body).as_bytes()[..4]);
    assert_eq!(&frame[8..], body);
}

#[test]
fn the_bodies_of_answers_are_as_documented() {
    let done = |payload| TRANSFER.frame(&Status::Done(payload), &"go", 100).unwrap();
    assert_eq!(&done(None)[PREAMBLE_BYTES..], b"\x00\x00\x02go");
    let payload = PayloadHeader { length: 300 };
    assert_eq!(&done(Some(payload))[PREAMBLE_BYTES..], b"\x00\x01\xac\x02\x02go");
    let refused = TRANSFER.frame(&Status::Refused("no".to_owned()), &(), 100).unwrap();
    assert_eq!(&refused[PREAMBLE_BYTES..], b"\x01\x02no");
}

#[test]
fn a_header_over_the_limit_is_refused_by_both_ends_before_its_body() {
    let text = "x".repeat(100);
    assert!(matches!(
        TRANSFER.frame(&(), &text, 100),
        Err(NetError::TooLarge { bytes: 101, limit: 100, .. })
    ));
    let frame = TRANSFER.frame(&(), &text, 101).unwrap();
    let error = run(TRANSFER.read_frame(&mut OnlyThis(&frame[..8]), 100)).unwrap_err();
    assert!(matches!(error, NetError::TooLarge { bytes: 101, limit: 100, .. }), "{error}");
    let error = run(TRANSFER.read_frame(&mut OnlyThis(&[0xff; 8]), 1 << 20)).unwrap_err();
    assert!(matches!(error, NetError::TooLarge { bytes: 0xffff_ffff, .. }), "{error}");
}

#[test]
fn a_payload_over_the_limit_or_the_memory_is_refused_before_it_is_read() {
    let header = |length| PayloadHeader { length };
    let read = |length, max| run(TRANSFER.read_payload(&mut OnlyThis(&[]), header(length), max));
    assert!(matches!(read(11, 10), Err(NetError::TooLarge { bytes: 11, limit: 10, .. })));
    assert!(matches!(read(u64::MAX, u64::MAX), Err(NetError::Memory { .. } | NetError::TooLarge { .. })));
}

#[test]
fn a_text_length_beyond_the_frame_is_no_message() {
    // A string of 2^32 - 1 bytes in a frame of 7.
    let error = TRANSFER.last::<String>(b"\xff\xff\xff\xff\x0fab").unwrap_err();
    assert!(matches!(error, NetError::Message { .. }), "{error}");
    let error = TRANSFER.last::<Vec<u64>>(b"\xff\xff\xff\xff\x0fab").unwrap_err();
    assert!(matches!(error, NetError::Message { .. }), "{error}");
    assert!(matches!(TRANSFER.last::<u8>(b"ab"), Err(NetError::Message { .. })), "rest after the message");
}

#[test]
fn the_reason_of_a_peer_sends_no_commands_to_a_terminal() {
    let reason = "größer \u{1b}[2J\u{9b}1m\r\n\0\u{7f}\u{202e}abc\u{2069}".into();
    let close = quinn::ApplicationClose { error_code: 0_u32.into(), reason };
    let error = closed("the peer", quinn::ConnectionError::ApplicationClosed(close));
    let NetError::Closed { reason, .. } = error else { panic!("{error}") };
    assert_eq!(reason, r"größer \u{1b}[2J\u{9b}1m\r\n\u{0}\u{7f}\u{202e}abc\u{2069}");
}

/// A message with the forms that requests have: numbers, texts, lists, options and variants.
type Message = (u64, String, Option<Vec<u8>>, Vec<(u32, String)>, Result<f64, [u8; 16]>);

/// A frame, the header of its payload, and the payload.
fn valid(rng: &mut CaseRng) -> Vec<u8> {
    let text = |rng: &mut CaseRng| "é".repeat(rng.random_range(0..20));
    let list =
        (0..rng.random_range(0..5)).map(|number| (number * rng.random_range(0..1000), text(rng))).collect();
    let last = if rng.random() { Ok(rng.random()) } else { Err(rng.random()) };
    let message: Message = (rng.random(), text(rng), rng.random::<bool>().then(|| vec![7; 9]), list, last);
    let payload = vec![5; rng.random_range(0..40)];
    let head = rng.random::<bool>().then_some(PayloadHeader { length: payload.len() as u64 });
    let mut bytes = TRANSFER.frame(&head, &message, 1 << 12).unwrap();
    if head.is_some() {
        bytes.extend(payload);
    }
    bytes
}

/// Reads a frame and the payload behind it. With `sealed`, the frame gets the right checksum first.
async fn reached(bytes: &[u8], sealed: bool) -> Reached {
    let mut stream = bytes;
    let Ok(preamble) = TRANSFER.read_preamble(&mut stream, 1 << 12).await else {
        return Reached::Outside;
    };
    let preamble = match stream.get(..preamble.length as usize) {
        Some(body) if sealed => Preamble { checksum: checksum(body), ..preamble },
        _ => preamble,
    };
    let Ok(body) = TRANSFER.read_body(&mut stream, preamble).await else { return Reached::Outside };
    let _ = (TRANSFER.take::<Status>(&body), TRANSFER.take::<Welcome>(&body));
    let Ok((head, rest)) = TRANSFER.take::<Option<PayloadHeader>>(&body) else { return Reached::Inside };
    let message = TRANSFER.last::<Message>(rest);
    let payload = match head {
        Some(head) => TRANSFER.read_payload(&mut stream, head, 1 << 12).await.map(|_| ()),
        None => Ok(()),
    };
    if message.is_ok() && payload.is_ok() { Reached::Accepted } else { Reached::Inside }
}

#[test]
fn damaged_frames_are_refused_or_read() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    Campaign::new("frame").memory(1 << 16).cases(5000).play(valid, |bytes| {
        let as_sent = runtime.block_on(reached(bytes, false));
        let sealed = runtime.block_on(reached(bytes, true));
        if as_sent == Reached::Outside { sealed } else { as_sent }
    });
}

proptest! {
    #[test]
    fn frames_come_back_and_any_flipped_bit_or_cut_is_found(
        message: (u64, String), at: prop::sample::Index, bit in 0..8_u8,
    ) {
        let frame = TRANSFER.frame(&None::<PayloadHeader>, &message, 1 << 20).unwrap();
        let body = run(TRANSFER.read_frame(&mut frame.as_slice(), 1 << 20)).unwrap();
        let (payload, rest) = TRANSFER.take::<Option<PayloadHeader>>(&body).unwrap();
        prop_assert_eq!(payload, None);
        prop_assert_eq!(TRANSFER.last::<(u64, String)>(rest).unwrap(), message);

        let at = at.index(frame.len());
        prop_assert!(run(TRANSFER.read_frame(&mut &frame[..at], 1 << 20)).is_err());
        let mut damaged = frame;
        damaged[at] ^= 1 << bit;
        prop_assert!(run(TRANSFER.read_frame(&mut damaged.as_slice(), 1 << 20)).is_err());
    }

    #[test]
    fn payloads_come_back_and_a_cut_is_found(
        payload in prop::collection::vec(any::<u8>(), 1..2000), at: prop::sample::Index, room in 0..4000_usize,
    ) {
        let header = PayloadHeader { length: payload.len() as u64 };
        let read = |bytes: &[u8]| run(TRANSFER.read_payload(&mut &*bytes, header, 2000));
        prop_assert_eq!(&read(&payload).unwrap()[..], &payload[..]);
        let at = at.index(payload.len());
        let cut = matches!(read(&payload[..at]), Err(NetError::Abandoned { .. }));
        prop_assert!(cut);

        let mut into = BytesMut::with_capacity(room);
        let room = into.capacity();
        into.resize(room / 2, 7);
        let memory = into.as_ptr();
        let read = run(TRANSFER.read_payload_into(&mut payload.as_slice(), header, &mut into));
        if payload.len() > room {
            let refused = matches!(read, Err(NetError::TooLarge { .. }));
            prop_assert!(refused);
        } else {
            prop_assert!(read.is_ok());
            prop_assert_eq!(&into[..], &payload[..]);
            prop_assert_eq!(into.as_ptr(), memory);
        }
    }
}
