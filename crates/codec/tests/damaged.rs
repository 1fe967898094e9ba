//! Damaged outer gradients.
#![allow(clippy::unwrap_used)]

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::rand::seq::IndexedRandom;
use dipaco_fuzz::{Campaign, CaseRng, Reached};

use dipaco_codec::{CodecError, Compression, Decoder, decode, encode, encoded_len};

const ALL: [Compression; 5] =
    [Compression::F32, Compression::Bf16, Compression::Int8, Compression::E3m0, Compression::TopK];
/// Numbers of values that the reader may expect: none, one, and around the borders of blocks and chunks.
const COUNTS: [usize; 8] = [0, 1, 7, 255, 257, 4096, 4097, 9000];

fn valid(rng: &mut CaseRng) -> Vec<u8> {
    let count = *COUNTS.choose(rng).unwrap();
    let scale = 10f32.powi(rng.random_range(-30..30));
    let values: Vec<f32> = (0..count).map(|_| scale * rng.random_range(-1f32..1.0)).collect();
    encode(&values, *ALL.choose(rng).unwrap()).unwrap()
}

/// The bytes with the length that their header announces, if it announces one of the expected numbers of values.
fn fitted(bytes: &[u8]) -> Option<Vec<u8>> {
    let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let (compression, count) = (*ALL.get(number(12)? as usize)?, u64::from(number(16)?));
    let expected = COUNTS.contains(&(count as usize)) && number(20)? == 0;
    let mut fitted = bytes.to_vec();
    fitted.resize(usize::try_from(encoded_len(count, compression)?).ok().filter(|_| expected)?, 0x55);
    Some(fitted)
}

/// Reads the bytes as each of the expected numbers of values.
fn reached(bytes: &[u8]) -> Reached {
    let mut reached = Reached::Outside;
    for expected in COUNTS {
        let whole = decode(bytes, expected);
        let mut parts = Vec::new();
        let mut decoder = Decoder::new(bytes.len() as u64, expected);
        let read = bytes
            .chunks(1000)
            .try_for_each(|part| decoder.read(part, |group| parts.extend_from_slice(group)));
        let in_parts = read.and_then(|()| decoder.finish());
        assert_eq!(in_parts.map(|()| parts), whole, "in parts and as a whole");
        match whole {
            Ok(values) => {
                assert!(values.len() == expected && values.iter().all(|value| value.is_finite()));
                return Reached::Accepted;
            }
            Err(CodecError::NotFinite { .. }) => reached = Reached::Inside,
            Err(_) => {}
        }
    }
    reached
}

#[test]
fn damaged_outer_gradients_are_refused_or_read() {
    let counts = Campaign::new("codec").memory(1 << 20).play(valid, |bytes| match reached(bytes) {
        Reached::Outside => fitted(bytes).map_or(Reached::Outside, |bytes| reached(&bytes)),
        further => further,
    });
    assert!(counts.cases < 1000 || counts.inside > 10, "values that are not finite: {counts:?}");
}
