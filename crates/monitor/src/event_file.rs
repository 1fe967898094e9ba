//! The format of TensorBoard's event files.
//!
//! A file is a sequence of records (`tensorflow/core/lib/io/record_writer.cc`): length, its checksum, content, its checksum.
//! The content is an `Event` (`tensorflow/core/util/event.proto`) in the encoding of Protocol Buffers. Three of its kinds are
//! written: the version, a scalar, and the message that a curve begins again at a step.

use crc_fast::{CrcAlgorithm, checksum};

/// The version that every file begins with. From version 2 on, readers look for [`restart`].
const VERSION: &[u8] = b"brain.Event:2";

/// Wire types of Protocol Buffers.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// The first record of a file. `time` is in seconds since 1970.
pub(crate) fn version(time: f64) -> Vec<u8> {
    let mut event = event(time, 0);
    bytes(&mut event, 3, VERSION);
    record(&event)
}

/// A value of the chart `tag` at `step`.
pub(crate) fn scalar(time: f64, step: u64, tag: &str, value: f64) -> Vec<u8> {
    let mut point = Vec::new();
    bytes(&mut point, 1, tag.as_bytes());
    key(&mut point, 2, FIXED32);
    // The format has room for single precision.
    point.extend_from_slice(&(value as f32).to_le_bytes());
    let mut summary = Vec::new();
    bytes(&mut summary, 1, &point);
    let mut event = event(time, step);
    bytes(&mut event, 5, &summary);
    record(&event)
}

/// The message that all values of this file from `step` on are void, because training repeats their steps.
pub(crate) fn restart(time: f64, step: u64) -> Vec<u8> {
    let mut session = Vec::new();
    key(&mut session, 1, VARINT);
    varint(&mut session, 1);
    let mut event = event(time, step);
    bytes(&mut event, 7, &session);
    record(&event)
}

/// An event with its time and step.
fn event(time: f64, step: u64) -> Vec<u8> {
    let mut event = Vec::new();
    key(&mut event, 1, FIXED64);
    event.extend_from_slice(&time.to_le_bytes());
    // Protocol Buffers leave out a zero.
    if step > 0 {
        key(&mut event, 2, VARINT);
        varint(&mut event, step);
    }
    event
}

/// A record with its checksums.
fn record(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), content, &masked(content)].concat()
}

/// The CRC-32C, turned and shifted so that a checksum of data with checksums in it stays meaningful.
fn masked(data: &[u8]) -> [u8; 4] {
    // A CRC of 32 bits lies in the lower half.
    let crc = checksum(CrcAlgorithm::Crc32Iscsi, data) as u32;
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn key(out: &mut Vec<u8>, field: u64, wire_type: u64) {
    varint(out, (field << 3) | wire_type);
}

fn bytes(out: &mut Vec<u8>, field: u64, content: &[u8]) {
    key(out, field, BYTES);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

/// Seven bits a byte, the lowest first. All bytes but the last have their highest bit set.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_bytes_of_tensorboards_own_writer() {
        // By tensorboard 2.21 and protobuf 7.36: RecordWriter(file).write(Event(wall_time=1.5, …).SerializeToString()).
        for (own, golden) in [
            (
                version(1.5),
                "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c",
            ),
            (
                scalar(1.5, 300, "loss", 2.25),
                "1b000000000000001a0d9e1309000000000000f83f10ac022a0d0a0b0a046c6f73731500001040e418822e",
            ),
            (restart(1.5, 7), "0f000000000000006d532b0909000000000000f83f10073a020801774771c7"),
        ] {
            let own: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(own, golden);
        }
    }
}
