//! Four bits a value: a sign and three bits of exponent (E3M0).
//!
//! arXiv:2501.18512 §2.4 names the format and not its details. Here 256 values share the exponent of their largest: code
//! 7 is that power of two, code 1 is a 64th of it, and code 0 is zero. A value takes the nearest of these.

use crate::blocks::BLOCK;

/// The code of the largest magnitude.
const LARGEST: i32 = 7;
/// The sign's bit.
const NEGATIVE: u8 = 8;
/// Exponents that a block may have: those of f32's normal numbers, one more for rounding up.
const EXPONENTS: std::ops::RangeInclusive<i16> = -126..=127;
/// The exponent of a block of zeros.
const ZEROS: i16 = i16::MIN;

/// The exponent of the power of two nearest to a positive normal number.
fn exponent(value: f32) -> i32 {
    let bits = value.to_bits();
    #[allow(clippy::cast_possible_wrap, reason = "eight bits of exponent")]
    let floor = (bits >> 23 & 0xff) as i32 - 127;
    // From 1.5 on the next power of two is nearer, or as near.
    floor + i32::from(bits & 0x40_0000 != 0)
}

/// The exponent that values share whose largest magnitude is this.
pub(crate) fn shared_exponent(largest: f32) -> i16 {
    if largest < f32::MIN_POSITIVE {
        return ZEROS;
    }
    #[allow(clippy::cast_possible_truncation, reason = "-126 to 128")]
    let shared = exponent(largest) as i16;
    shared.min(*EXPONENTS.end())
}

/// The code of a value that shares an exponent, `1 ..= 7` for magnitudes.
pub(crate) fn code(value: f32, shared: i16) -> u8 {
    let (magnitude, block) = (value.abs(), i32::from(shared));
    if shared == ZEROS || magnitude < f32::MIN_POSITIVE {
        return 0;
    }
    let code = exponent(magnitude) - block + LARGEST;
    let code = match code {
        1.. => code.min(LARGEST),
        // Between zero and the least power of two, half of which it must reach.
        _ if magnitude >= power(block - LARGEST) => 1,
        _ => return 0,
    };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 7")]
    let code = code as u8;
    if value.is_sign_negative() { code | NEGATIVE } else { code }
}

/// The values of all codes with a shared exponent. One that is out of range makes them NaN, which nobody takes for an
/// outer gradient.
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

/// 2 to the power of `exponent`, 0 when that is too small for f32.
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

/// Reads what [`encode`] wrote; `bytes` are as many as [`crate::blocks::bytes`] says.
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
        assert_eq!(round(&[1.5, 0.02]), [2.0, 0.03125], "1.5 is rounded up, and the least value with it");
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
