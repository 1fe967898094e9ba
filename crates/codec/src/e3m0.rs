//! Four bits per value: a sign and three bits of exponent (E3M0).
//!
//! arXiv:2501.18512 §2.4 names the format without its details. Here 256 values share the exponent of their largest
//! magnitude. Code 7 is that power of two, code 1 is a 64th of it, and code 0 is zero. A value becomes the nearest of
//! these.

use crate::blocks::BLOCK;

/// The code of the largest magnitude.
const LARGEST: i32 = 7;
/// The bit of the sign.
const NEGATIVE: u8 = 8;
/// Exponents of a block: the exponents of f32's normal numbers.
const EXPONENTS: std::ops::RangeInclusive<i16> = -126..=127;
/// The exponent of a block of zeros.
const ZEROS: i16 = i16::MIN;

/// Returns the exponent of the power of two nearest to a positive normal number.
fn exponent(value: f32) -> i32 {
    let bits = value.to_bits();
    let floor = (bits >> 23 & 0xff) as i32 - 127;
    // From a mantissa of 1.5 the next power of two is nearer, or equally near.
    floor + i32::from(bits & 0x40_0000 != 0)
}

/// Returns the shared exponent of values with this largest magnitude.
pub(crate) fn shared_exponent(largest: f32) -> i16 {
    if largest < f32::MIN_POSITIVE {
        return ZEROS;
    }
    // From -126 to 128, as it may have been rounded up.
    let shared = exponent(largest) as i16;
    shared.min(*EXPONENTS.end())
}

/// Returns the code of a value: 0, or a magnitude of 1 to 7 with the bit of the sign.
pub(crate) fn code(value: f32, shared: i16) -> u8 {
    let (magnitude, block) = (value.abs(), i32::from(shared));
    if shared == ZEROS || magnitude < f32::MIN_POSITIVE {
        return 0;
    }
    let code = exponent(magnitude) - block + LARGEST;
    let code = match code {
        1.. => code.min(LARGEST),
        // A value below the least power of two, but at least half of it, is nearer to it than to zero.
        _ if magnitude >= power(block - LARGEST) => 1,
        _ => return 0,
    };
    let code = code as u8;
    if value.is_sign_negative() { code | NEGATIVE } else { code }
}

/// Returns the values of all codes for a shared exponent. If the exponent is out of range, the values are NaN, which
/// the caller refuses.
pub(crate) fn table(shared: i16) -> [f32; 16] {
    let mut table = [0f32; 16];
    if shared != ZEROS {
        let valid = EXPONENTS.contains(&shared);
        for (code, step) in (1..).zip(1 - LARGEST..=0) {
            let value = if valid { power(i32::from(shared) + step) } else { f32::NAN };
            (table[code], table[code | usize::from(NEGATIVE)]) = (value, -value);
        }
    }
    table
}

/// Returns 2 to the power of `exponent`, or 0 if that is too small for f32.
fn power(exponent: i32) -> f32 {
    2f32.powi(exponent)
}

pub(crate) fn encode(values: &[f32], out: &mut Vec<u8>) {
    for block in values.chunks(BLOCK) {
        let largest = block.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let shared = shared_exponent(largest);
        out.extend_from_slice(&shared.to_le_bytes());
        let nibble = |value: &f32| code(*value, shared);
        out.extend(block.chunks(2).map(|pair| {
            let high = pair.get(1).map_or(0, nibble);
            pair.first().map_or(0, nibble) | high << 4
        }));
    }
}

/// Reads `count` values written by [`encode`]. `bytes` has the length that [`crate::blocks::bytes`] returns.
pub(crate) fn decode(mut bytes: &[u8], count: usize, out: &mut Vec<f32>) {
    while out.len() < count {
        let Some((head, rest)) = bytes.split_first_chunk::<2>() else { return };
        let table = table(i16::from_le_bytes(*head));
        let values = BLOCK.min(count - out.len());
        let (block, after) = rest.split_at(rest.len().min(values.div_ceil(2)));
        let before = out.len();
        out.extend(
            block.iter().flat_map(|&pair| [table[usize::from(pair & 15)], table[usize::from(pair >> 4)]]),
        );
        out.truncate(before + values);
        bytes = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(values: &[f32]) -> Vec<f32> {
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        encode(values, &mut bytes);
        decode(&bytes, values.len(), &mut out);
        out
    }

    #[test]
    fn values_become_the_nearest_of_zero_and_seven_powers_of_two() {
        // The largest is 1.49, nearest to 1: the others are 1/2 … 1/64, and 0.
        let values = [1.49, -1.0, 0.75, 0.74, 0.0469, 0.0234, 0.0157, 0.0078, -0.0079, 0.0, -0.0];
        let nearest = [1.0, -1.0, 1.0, 0.5, 0.0625, 0.015625, 0.015625, 0.0, -0.015625, 0.0, 0.0];
        assert_eq!(round(&values), nearest);
        assert_eq!(round(&[1.5, 0.02]), [2.0, 0.03125], "1.5 is rounded up, and so is the least value");
    }

    #[test]
    fn blocks_have_exponents_of_their_own() {
        let mut values = vec![1.0f32; BLOCK];
        values.extend([1e-30; 3]);
        let found = round(&values);
        assert_eq!(found[..BLOCK], values[..BLOCK]);
        assert!(
            found[BLOCK..].iter().all(|value| (value / 1e-30 - 1.0).abs() < 0.34),
            "{:?}",
            &found[BLOCK..]
        );
    }

    #[test]
    fn the_ends_of_f32_are_safe() {
        assert_eq!(round(&[0.0; 5]), [0.0; 5]);
        assert_eq!(round(&[1e-44, -1e-40]), [0.0, 0.0]);
        assert_eq!(round(&[f32::MAX, f32::MIN]), [2f32.powi(127), -2f32.powi(127)]);
        assert_eq!(round(&[f32::MIN_POSITIVE]), [f32::MIN_POSITIVE]);
    }
}
