//! Only the largest values, four bits each (top-k).
//!
//! arXiv:2508.15706 keeps the values of largest magnitude of every chunk and writes them with few bits. Here a chunk
//! has 4,096 values, and one in 32 is kept, as E3M0 with one exponent for the chunk. An entry has 12 bits of place and
//! 4 bits of value: half a bit for each value of the outer gradient. All other values are lost, unless the sender adds
//! them to the next outer gradient (error feedback).

use crate::e3m0;

/// Values of a chunk. The last chunk has the remaining values.
const CHUNK: usize = 4096;
/// Values per kept value.
const VALUES_PER_KEPT: usize = 32;
/// Bits of a place in a chunk.
const PLACE_BITS: u32 = 12;

/// Returns the bytes of `count` values.
pub(crate) fn bytes(count: u64) -> Option<u64> {
    let (whole, rest) = (count / CHUNK as u64, count % CHUNK as u64);
    let of = |values: u64| 2 + 2 * values.div_ceil(VALUES_PER_KEPT as u64);
    whole.checked_mul(of(CHUNK as u64))?.checked_add(if rest > 0 { of(rest) } else { 0 })
}

pub(crate) fn encode(values: &[f32], out: &mut Vec<u8>) {
    let mut places: Vec<u16> = Vec::with_capacity(CHUNK);
    for chunk in values.chunks(CHUNK) {
        let kept = chunk.len().div_ceil(VALUES_PER_KEPT);
        places.clear();
        places.extend((0u16..).take(chunk.len()));
        // Of equal magnitudes the first is kept, so that the bytes do not depend on the selection algorithm.
        let magnitude = |place: u16| chunk.get(usize::from(place)).map_or(0.0, |value| value.abs());
        let order = |a: &u16, b: &u16| magnitude(*b).total_cmp(&magnitude(*a)).then(a.cmp(b));
        if kept < chunk.len() {
            places.select_nth_unstable_by(kept, order);
        }
        places.truncate(kept);
        places.sort_unstable();
        let shared = e3m0::shared_exponent(places.iter().map(|&place| magnitude(place)).fold(0.0, f32::max));
        out.extend_from_slice(&shared.to_le_bytes());
        for &place in &places {
            let code = chunk.get(usize::from(place)).map_or(0, |&value| e3m0::code(value, shared));
            out.extend_from_slice(&(place | u16::from(code) << PLACE_BITS).to_le_bytes());
        }
    }
}

/// Reads `count` values written by [`encode`]. `bytes` has the length that [`bytes`] returns. Places that are outside
/// of the chunk or not ascending make a value NaN, which the caller refuses.
pub(crate) fn decode(mut bytes: &[u8], count: usize, out: &mut Vec<f32>) {
    while out.len() < count {
        let Some((head, rest)) = bytes.split_first_chunk::<2>() else { return };
        let table = e3m0::table(i16::from_le_bytes(*head));
        let values = CHUNK.min(count - out.len());
        let (kept, after) = rest.split_at(rest.len().min(2 * values.div_ceil(VALUES_PER_KEPT)));
        let begin = out.len();
        out.resize(begin + values, 0.0);
        let chunk = &mut out[begin..];
        let mut next = 0;
        for entry in kept.as_chunks::<2>().0.iter().map(|&entry| u16::from_le_bytes(entry)) {
            let place = usize::from(entry & ((1 << PLACE_BITS) - 1));
            match chunk.get_mut(place) {
                Some(value) if place >= next => *value = table[usize::from(entry >> PLACE_BITS)],
                _ => chunk[0] = f32::NAN,
            }
            next = place + 1;
        }
        bytes = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(values: &[f32]) -> Vec<f32> {
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        encode(values, &mut bytes);
        assert_eq!(bytes.len() as u64, super::bytes(values.len() as u64).unwrap());
        decode(&bytes, values.len(), &mut out);
        out
    }

    #[test]
    fn the_largest_of_a_chunk_are_kept_where_they_were() {
        let mut values = vec![0.001; 64];
        (values[7], values[63]) = (-2.0, 0.5);
        let found = round(&values);
        assert_eq!((found[7], found[63]), (-2.0, 0.5));
        assert_eq!(found.iter().filter(|&&value| value != 0.0).count(), 2);
        // The first of equal values is kept.
        assert_eq!(round(&[1.0; 33])[..3], [1.0, 1.0, 0.0]);
    }

    #[test]
    fn chunks_have_exponents_of_their_own() {
        let mut values = vec![0.0; CHUNK + 40];
        (values[CHUNK - 1], values[CHUNK + 39]) = (1.0, 2f32.powi(-40));
        let found = round(&values);
        assert_eq!(found, values);
    }

    #[test]
    fn impossible_places_are_refused() {
        let mut bytes = Vec::new();
        encode(&[1.0; 64], &mut bytes);
        let decoded = |bytes: &[u8]| {
            let mut out = Vec::new();
            decode(bytes, 64, &mut out);
            out
        };
        assert!(decoded(&bytes).iter().all(|value| value.is_finite()));
        let mut outside = bytes.clone();
        outside[2] = 64;
        assert!(decoded(&outside)[0].is_nan());
        // The second entry at the place of the first.
        let mut twice = bytes.clone();
        twice[4] = 0;
        assert!(decoded(&twice)[0].is_nan());
    }
}
