//! The bytes of an outer gradient.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `DIPACOOG` |
//! | 4 | version of the format, little-endian |
//! | 4 | compression: 0 f32, 1 bf16, 2 int8, 3 E3M0, 4 top-k |
//! | 8 | number of values |
//! | … | the values, as below |
//!
//! | compression | values, little-endian |
//! |---|---|
//! | f32, bf16 | one number per value |
//! | int8 | blocks of 256 values: a scale (f32) and one signed byte per value |
//! | E3M0 | blocks of 256 values: an exponent (i16) and half a byte per value, the first value of a pair in the lower half |
//! | top-k | chunks of 4,096 values: an exponent (i16) and 128 entries (u16): 12 bits of place, then the half byte of the value |

use crate::{CodecError, Compression, blocks, e3m0, first_not_finite, top_k};

const MAGIC: &[u8; 8] = b"DIPACOOG";
const VERSION: u32 = 1;
const HEADER: usize = 24;

/// Values per call of the closure of [`Decoder::read`]: whole blocks and chunks of every compression, and 1 MiB as f32.
const GROUP: usize = 1 << 18;

/// Returns the length in bytes of `count` encoded values; `None` if it is not below 2^64.
#[must_use]
pub fn encoded_len(count: u64, compression: Compression) -> Option<u64> {
    values_len(count, compression)?.checked_add(HEADER as u64)
}

/// Returns the length in bytes of `count` encoded values without the header.
fn values_len(count: u64, compression: Compression) -> Option<u64> {
    match compression {
        Compression::F32 => count.checked_mul(4),
        Compression::Bf16 => count.checked_mul(2),
        Compression::Int8 => blocks::bytes(count, 4, 8),
        Compression::E3m0 => blocks::bytes(count, 2, 4),
        Compression::TopK => top_k::bytes(count),
    }
}

/// Encodes values.
///
/// # Errors
///
/// [`CodecError::NotFinite`] for a NaN or an infinity.
pub fn encode(values: &[f32], compression: Compression) -> Result<Vec<u8>, CodecError> {
    finite(values, 0)?;
    let count = values.len() as u64;
    let length = encoded_len(count, compression).and_then(|length| usize::try_from(length).ok());
    let mut out = Vec::with_capacity(length.unwrap_or(HEADER));
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&compression.code().to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    match compression {
        Compression::F32 => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Compression::Bf16 => out.extend(values.iter().flat_map(|&value| bf16(value).to_le_bytes())),
        Compression::Int8 => blocks::encode_int8(values, &mut out),
        Compression::E3m0 => e3m0::encode(values, &mut out),
        Compression::TopK => top_k::encode(values, &mut out),
    }
    Ok(out)
}

/// Decodes `expected` values. Any bytes are safe to pass: the number of values and the length are checked before
/// anything is allocated.
///
/// # Errors
///
/// The bytes are not `expected` finite values.
pub fn decode(bytes: &[u8], expected: usize) -> Result<Vec<f32>, CodecError> {
    let (header, values) = bytes.split_at(bytes.len().min(HEADER));
    let compression = check_header(header, bytes.len() as u64, expected)?;
    let mut out = Vec::with_capacity(expected);
    decode_values(compression, values, expected, &mut out);
    finite(&out, 0)?;
    Ok(out)
}

/// Decodes bytes that come piece by piece, as [`decode`] does. Memory stays small.
#[derive(Debug)]
pub struct Decoder {
    /// Length of all pieces together.
    bytes: u64,
    expected: usize,
    /// `None` until the header has come.
    compression: Option<Compression>,
    /// The first bytes of the header or of a group of values that is not whole.
    cut: Vec<u8>,
    /// Number of values that have been decoded.
    decoded: usize,
    /// Memory for the values of a group.
    group: Vec<f32>,
}

impl Decoder {
    /// Begins `bytes` bytes that hold `expected` values.
    #[must_use]
    pub fn new(bytes: u64, expected: usize) -> Self {
        Self { bytes, expected, compression: None, cut: Vec::new(), decoded: 0, group: Vec::new() }
    }

    /// Reads the next piece. `take` gets the values in their order, at most 1 MiB of them per call.
    ///
    /// # Errors
    ///
    /// The bytes are not the expected number of finite values.
    pub fn read(&mut self, mut piece: &[u8], mut take: impl FnMut(&[f32])) -> Result<(), CodecError> {
        while let Some(length) = self.wanted() {
            let Some((own, rest)) = piece.split_at_checked(length.saturating_sub(self.cut.len())) else {
                self.cut.extend_from_slice(piece);
                return Ok(());
            };
            piece = rest;
            if self.cut.is_empty() {
                self.take_whole(own, &mut take)?;
            } else {
                let mut whole = std::mem::take(&mut self.cut);
                whole.extend_from_slice(own);
                self.take_whole(&whole, &mut take)?;
                whole.clear();
                self.cut = whole;
            }
        }
        let longer = CodecError::Length { expected: self.bytes, found: self.bytes + piece.len() as u64 };
        if piece.is_empty() { Ok(()) } else { Err(longer) }
    }

    /// Ends the pieces.
    ///
    /// # Errors
    ///
    /// Bytes are missing.
    pub fn finish(self) -> Result<(), CodecError> {
        let Some(compression) = self.compression else {
            // Shorter than a header, which this refuses.
            return check_header(&self.cut, self.bytes, self.expected).map(drop);
        };
        let found = encoded_len(self.decoded as u64, compression).unwrap_or(u64::MAX);
        let shorter = CodecError::Length { expected: self.bytes, found: found + self.cut.len() as u64 };
        if self.decoded == self.expected { Ok(()) } else { Err(shorter) }
    }

    /// Length of the header or of the next group of values; `None` at the end.
    fn wanted(&self) -> Option<usize> {
        let Some(compression) = self.compression else { return Some(HEADER) };
        let count = GROUP.min(self.expected - self.decoded);
        values_len(count as u64, compression)
            .and_then(|length| usize::try_from(length).ok())
            .filter(|_| count > 0)
    }

    /// Reads the header or a group of values.
    fn take_whole(&mut self, bytes: &[u8], take: &mut impl FnMut(&[f32])) -> Result<(), CodecError> {
        let Some(compression) = self.compression else {
            self.compression = Some(check_header(bytes, self.bytes, self.expected)?);
            return Ok(());
        };
        let count = GROUP.min(self.expected - self.decoded);
        self.group.clear();
        decode_values(compression, bytes, count, &mut self.group);
        finite(&self.group, self.decoded)?;
        self.decoded += count;
        take(&self.group);
        Ok(())
    }
}

/// Returns the compression in a header. Checks that the header announces `expected` values and that header and values
/// together have the length `bytes`.
fn check_header(header: &[u8], bytes: u64, expected: usize) -> Result<Compression, CodecError> {
    let rest = header.strip_prefix(MAGIC).ok_or(CodecError::Foreign)?;
    let length =
        |expected: Option<u64>| CodecError::Length { expected: expected.unwrap_or(u64::MAX), found: bytes };
    let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(|| length(Some(HEADER as u64)))?;
    let (code, rest) = rest.split_first_chunk::<4>().ok_or_else(|| length(Some(HEADER as u64)))?;
    let (count, _) = rest.split_first_chunk::<8>().ok_or_else(|| length(Some(HEADER as u64)))?;
    let (version, code) = (u32::from_le_bytes(*version), u32::from_le_bytes(*code));
    let compression = Compression::of_code(code)
        .filter(|_| version == VERSION)
        .ok_or(CodecError::Unknown { version, code })?;
    let count = u64::from_le_bytes(*count);
    if count != expected as u64 {
        return Err(CodecError::Count { expected: expected as u64, found: count });
    }
    let whole = encoded_len(count, compression);
    if whole == Some(bytes) { Ok(compression) } else { Err(length(whole)) }
}

/// Reads `count` values into the empty `out`. `bytes` has the length that [`values_len`] returns.
fn decode_values(compression: Compression, bytes: &[u8], count: usize, out: &mut Vec<f32>) {
    match compression {
        Compression::F32 => {
            out.extend(bytes.as_chunks::<4>().0.iter().map(|&value| f32::from_le_bytes(value)));
        }
        Compression::Bf16 => {
            let of = |&value: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(value)) << 16);
            out.extend(bytes.as_chunks::<2>().0.iter().map(of));
        }
        Compression::Int8 => blocks::decode_int8(bytes, count, out),
        Compression::E3m0 => e3m0::decode(bytes, count, out),
        Compression::TopK => top_k::decode(bytes, count, out),
    }
}

/// Checks that all values are finite. The first of them is the value number `begin` of the whole.
fn finite(values: &[f32], begin: usize) -> Result<(), CodecError> {
    match first_not_finite(values) {
        Some(position) => Err(CodecError::NotFinite { position: begin + position }),
        None => Ok(()),
    }
}

/// Returns the nearest bf16 of a finite number, ties to even, and the largest finite bf16 instead of infinity.
fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits + 0x7fff + (bits >> 16 & 1);
    let upper = (rounded >> 16) as u16;
    if upper & 0x7f80 == 0x7f80 { upper - 1 } else { upper }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Compression; 5] =
        [Compression::F32, Compression::Bf16, Compression::Int8, Compression::E3m0, Compression::TopK];

    /// Decodes bytes that lie in parts.
    fn decode_parts<'a>(
        parts: impl Iterator<Item = &'a [u8]> + Clone,
        expected: usize,
        mut take: impl FnMut(&[f32]),
    ) -> Result<(), CodecError> {
        let mut decoder = Decoder::new(parts.clone().map(|part| part.len() as u64).sum(), expected);
        for part in parts {
            decoder.read(part, &mut take)?;
        }
        decoder.finish()
    }

    #[test]
    fn known_values_have_known_bytes() {
        let bytes = |compression| encode(&[1.0, -2.0, 0.0], compression).unwrap()[HEADER..].to_vec();
        assert_eq!(bytes(Compression::F32), [0, 0, 128, 63, 0, 0, 0, 192, 0, 0, 0, 0]);
        assert_eq!(bytes(Compression::Bf16), [128, 63, 0, 192, 0, 0]);
        let scale = (2f32 / 127.0).to_le_bytes();
        assert_eq!(bytes(Compression::Int8), [scale[0], scale[1], scale[2], scale[3], 64, 129, 0]);
        // The exponent is 1: 1.0 has code 6, -2.0 has code 7 and the sign.
        assert_eq!(bytes(Compression::E3m0), [1, 0, 0xf6, 0]);
    }

    #[test]
    fn fewer_bits_are_fewer_bytes() {
        let length = |compression| encoded_len(1_000_000, compression).unwrap() as f64;
        assert!(length(Compression::F32) / length(Compression::E3m0) > 7.8);
        assert!(length(Compression::F32) / length(Compression::Int8) > 3.9);
        assert!(length(Compression::F32) / length(Compression::TopK) > 63.0);
    }

    #[test]
    fn bf16_rounds_to_nearest_even_and_stays_finite() {
        let round = |value: f32| decode(&encode(&[value], Compression::Bf16).unwrap(), 1).unwrap()[0];
        // 8 bits of mantissa: between 1 and 2 the steps are 1/128.
        assert_eq!(round(1.0 + 1.0 / 256.0).to_bits(), 1f32.to_bits());
        assert_eq!(round(1.0 + 3.0 / 256.0).to_bits(), (1.0 + 4.0 / 256.0f32).to_bits());
        assert!(round(f32::MAX).is_finite() && round(f32::MAX) > 3.38e38);
        assert!(round(f32::MIN).is_finite() && round(f32::MIN) < -3.38e38);
    }

    #[test]
    fn the_largest_numbers_of_f32_can_be_read_again() {
        let values = [f32::MAX, f32::MIN, f32::MAX.next_down(), f32::MAX / 2.0, 0.0];
        for compression in ALL {
            let found = decode(&encode(&values, compression).unwrap(), values.len()).unwrap();
            assert!(found.iter().any(|value| value.abs() >= f32::MAX / 2.0), "{compression:?}: {found:?}");
        }
        let found = decode(&encode(&values, Compression::Int8).unwrap(), values.len()).unwrap();
        let close = |(value, found): (&f32, &f32)| (value - found).abs() <= f32::MAX / 253.0;
        assert!(values.iter().zip(&found).all(close), "{found:?}");
    }

    #[test]
    fn wrong_bytes_are_named() {
        let bytes = encode(&[1.0; 300], Compression::E3m0).unwrap();
        assert_eq!(decode(&bytes, 299), Err(CodecError::Count { expected: 299, found: 300 }));
        assert!(matches!(decode(&bytes[..40], 300), Err(CodecError::Length { found: 40, .. })));
        assert!(matches!(decode(&bytes[..12], 300), Err(CodecError::Length { found: 12, .. })));
        assert_eq!(decode(b"safetensors", 300), Err(CodecError::Foreign));
        let mut other = bytes.clone();
        other[12] = 9;
        assert_eq!(decode(&other, 300), Err(CodecError::Unknown { version: 1, code: 9 }));
        let mut other = bytes.clone();
        other[HEADER..HEADER + 2].copy_from_slice(&500i16.to_le_bytes());
        assert_eq!(decode(&other, 300), Err(CodecError::NotFinite { position: 0 }));
        let many = GROUP + 2;
        let mut other = encode(&vec![1.0; many], Compression::F32).unwrap();
        other[HEADER + 4 * (GROUP + 1)..].copy_from_slice(&f32::NAN.to_le_bytes());
        let found = decode_parts(other.chunks(1000), many, |_| ());
        assert_eq!(found, Err(CodecError::NotFinite { position: GROUP + 1 }));
        // Pieces that are fewer or more than announced.
        let whole = encode(&[1.0; 4], Compression::F32).unwrap();
        let ended = |pieces: &[&[u8]]| {
            let mut decoder = Decoder::new(whole.len() as u64, 4);
            pieces.iter().try_for_each(|piece| decoder.read(piece, |_| ()))?;
            decoder.finish()
        };
        assert_eq!(ended(&[&whole]), Ok(()));
        assert_eq!(ended(&[&whole[..30]]), Err(CodecError::Length { expected: 40, found: 30 }));
        assert_eq!(ended(&[&whole, &[0; 3]]), Err(CodecError::Length { expected: 40, found: 43 }));
        // A promise of 2^62 values allocates nothing.
        let mut other = bytes;
        other[16..24].copy_from_slice(&(1u64 << 62).to_le_bytes());
        assert!(matches!(decode(&other, 1 << 62), Err(CodecError::Length { .. })));
        assert_eq!(encode(&[0.0, f32::NAN], Compression::Int8), Err(CodecError::NotFinite { position: 1 }));
    }

    #[test]
    fn names_are_those_of_the_configuration() {
        for (compression, name) in ALL.into_iter().zip(["f32", "bf16", "int8", "e3m0", "top-k"]) {
            assert_eq!(serde_json::to_value(compression).unwrap(), name);
            assert_eq!(Compression::of_code(compression.code()), Some(compression));
        }
    }

    /// A group of two chunks.
    const SMALL: usize = 8192;

    proptest! {
        #[test]
        fn decoded_values_are_within_the_rounding_of_the_compression(
            values in prop::collection::vec(-1e6f32..1e6, 0..700),
        ) {
            for compression in ALL {
                let bytes = encode(&values, compression).unwrap();
                prop_assert_eq!(Some(bytes.len() as u64), encoded_len(values.len() as u64, compression));
                let found = decode(&bytes, values.len()).unwrap();
                for (block, found) in values.chunks(256).zip(found.chunks(256)) {
                    let largest = block.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                    for (value, found) in block.iter().zip(found) {
                        let allowed = match compression {
                            Compression::F32 => 0.0,
                            Compression::Bf16 => value.abs() / 256.0,
                            Compression::Int8 => largest / 253.0,
                            // A third of the value, or half of the least power of two.
                            Compression::E3m0 => (value.abs() * 0.3334).max(largest / 95.0),
                            // The value may be lost.
                            Compression::TopK => value.abs(),
                        };
                        prop_assert!((value - found).abs() <= allowed, "{:?}: {} for {}", compression, found, value);
                    }
                }
            }
        }

        #[test]
        fn parts_are_read_as_the_whole(
            values in prop::collection::vec(-1e6f32..1e6, 1..3 * SMALL), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            for compression in ALL {
                let bytes = encode(&values, compression).unwrap();
                let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
                cuts.extend([0, bytes.len()]);
                cuts.sort_unstable();
                let parts = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
                let mut found = Vec::new();
                decode_parts(parts.clone(), values.len(), |group| {
                    assert!(group.len() <= GROUP);
                    found.extend_from_slice(group);
                }).unwrap();
                prop_assert_eq!(&found, &decode(&bytes, values.len()).unwrap());
                let cut = parts.clone().chain([&[0][..]]);
                let refused = decode_parts(cut, values.len(), |_| panic!("taken"));
                let longer = matches!(refused, Err(CodecError::Length { .. }));
                prop_assert!(longer);
            }
        }

        #[test]
        fn rounding_a_second_time_changes_nothing(values in prop::collection::vec(-10f32..10.0, 1..300)) {
            for compression in [Compression::Bf16, Compression::E3m0, Compression::TopK] {
                let once = decode(&encode(&values, compression).unwrap(), values.len()).unwrap();
                let twice = decode(&encode(&once, compression).unwrap(), values.len()).unwrap();
                prop_assert_eq!(once, twice);
            }
        }
    }
}
