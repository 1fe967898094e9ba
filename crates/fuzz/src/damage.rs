//! Damage to valid inputs.

use std::ops::Range;

use rand::Rng;
use rand::seq::IndexedRandom;

use crate::CaseRng;
use crate::json::damage_values;

/// Most kinds of damage to one input.
const MOST: usize = 3;
/// Headers stand at the start of an input. Half of all damage is within this many bytes.
const START: usize = 256;
/// Longest part of an input that is removed, doubled, exchanged or inserted, in bytes.
const PART: usize = 64;

/// Numbers that stand in JSON in place of a valid number.
const DECIMALS: [&str; 16] = [
    "0",
    "1",
    "-1",
    "255",
    "65536",
    "4294967295",
    "4294967296",
    "4611686018427387904",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e300",
    "1e999",
    "-0.0",
    "0.5",
    "null",
];

/// Returns `bytes` with other values in their JSON, or with damage of one to three kinds to their bytes. `other` is another valid input, for parts that belong elsewhere.
#[must_use]
pub fn damage(rng: &mut CaseRng, bytes: &[u8], other: &[u8]) -> Vec<u8> {
    // Most damage to bytes breaks JSON at its first check, so half of the inputs with JSON stay JSON.
    if rng.random()
        && let Some(damaged) = damage_values(rng, bytes)
    {
        return damaged;
    }
    let mut damaged = bytes.to_vec();
    for _ in 0..rng.random_range(1..=MOST) {
        damage_once(rng, &mut damaged, other);
    }
    damaged
}

fn damage_once(rng: &mut CaseRng, bytes: &mut Vec<u8>, other: &[u8]) {
    match rng.random_range(0..11) {
        0 => flip_bit(rng, bytes),
        1 => overwrite_byte(rng, bytes),
        2 | 3 => overwrite_number(rng, bytes),
        4 => overwrite_decimal(rng, bytes),
        5 => cut(rng, bytes),
        6 => {
            let part = part(rng, bytes);
            bytes.drain(part);
        }
        7 => {
            let part = part(rng, bytes);
            let doubled = bytes[part.clone()].to_vec();
            bytes.splice(part.end..part.end, doubled);
        }
        8 => exchange(rng, bytes),
        9 => {
            let (own, foreign) = (part(rng, bytes), part(rng, other));
            bytes.splice(own, other[foreign].iter().copied());
        }
        _ => splice(rng, bytes, other),
    }
}

/// A place below `length`, which is not 0. Half of the places are at the start.
fn place(rng: &mut CaseRng, length: usize) -> usize {
    let end = if rng.random_bool(0.5) { length.min(START) } else { length };
    rng.random_range(0..end.max(1))
}

/// A part of the input. Half of the parts begin and end at delimiters of JSON, if there are any.
fn part(rng: &mut CaseRng, bytes: &[u8]) -> Range<usize> {
    if bytes.is_empty() {
        return 0..0;
    }
    let start = place(rng, bytes.len());
    let end = (start + rng.random_range(1..=PART)).min(bytes.len());
    if rng.random_bool(0.5) {
        let delimiter = |at: &usize| b"{}[],:\"".contains(&bytes[*at]);
        let from = (start..bytes.len()).find(delimiter).unwrap_or(start);
        let to = (from + 1..(from + PART).min(bytes.len())).filter(delimiter).collect::<Vec<_>>();
        if let Some(&to) = to.choose(rng) {
            return from..to;
        }
    }
    start..end
}

fn flip_bit(rng: &mut CaseRng, bytes: &mut [u8]) {
    if !bytes.is_empty() {
        let at = place(rng, bytes.len());
        bytes[at] ^= 1 << rng.random_range(0..8);
    }
}

fn overwrite_byte(rng: &mut CaseRng, bytes: &mut [u8]) {
    if !bytes.is_empty() {
        let at = place(rng, bytes.len());
        bytes[at] = *[0, 1, 0x7f, 0x80, 0xff, rng.random()].choose(rng).unwrap_or(&0);
    }
}

/// Writes an integer of 1, 2, 4 or 8 bytes where a length may stand: an extreme number, one near the input's length, or
/// one near the number that stands there.
fn overwrite_number(rng: &mut CaseRng, bytes: &mut [u8]) {
    let width = *[1usize, 2, 4, 8].choose(rng).unwrap_or(&8);
    if bytes.len() < width {
        return;
    }
    // Fields of a binary header are often aligned.
    let mut at = place(rng, bytes.len() - width + 1);
    if rng.random_bool(0.5) {
        at -= at % width;
    }
    let mut found = [0; 8];
    found[..width].copy_from_slice(&bytes[at..at + width]);
    let (found, length) = (u64::from_le_bytes(found), bytes.len() as u64);
    let numbers = [
        0,
        1,
        u64::MAX,
        u64::MAX / 2,
        1 << 31,
        1 << 32,
        1 << 40,
        1 << 62,
        length,
        length.wrapping_sub(1),
        length + 1,
        found.wrapping_add(1),
        found.wrapping_sub(1),
        found.wrapping_mul(2),
        rng.random(),
    ];
    let number = numbers.choose(rng).copied().unwrap_or(0);
    bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
}

/// Writes another number in place of decimal digits.
fn overwrite_decimal(rng: &mut CaseRng, bytes: &mut Vec<u8>) {
    let begins = |at: &usize| bytes[*at].is_ascii_digit() && (*at == 0 || !bytes[*at - 1].is_ascii_digit());
    let numbers: Vec<usize> = (0..bytes.len()).filter(begins).collect();
    let Some(&start) = numbers.choose(rng) else { return flip_bit(rng, bytes) };
    let end = (start..bytes.len()).find(|&at| !bytes[at].is_ascii_digit()).unwrap_or(bytes.len());
    let number = DECIMALS.choose(rng).copied().unwrap_or("0");
    bytes.splice(start..end, number.bytes());
}

fn cut(rng: &mut CaseRng, bytes: &mut Vec<u8>) {
    if !bytes.is_empty() {
        bytes.truncate(place(rng, bytes.len()));
    }
}

/// Exchanges two parts of equal length.
fn exchange(rng: &mut CaseRng, bytes: &mut [u8]) {
    let first = part(rng, bytes);
    let length = first.len();
    let room = bytes.len().saturating_sub(first.end + length);
    if length == 0 || room == 0 {
        return;
    }
    let second = first.end + rng.random_range(0..room);
    for at in 0..length {
        bytes.swap(first.start + at, second + at);
    }
}

/// Goes on with the end of another input.
fn splice(rng: &mut CaseRng, bytes: &mut Vec<u8>, other: &[u8]) {
    if bytes.is_empty() || other.is_empty() {
        return;
    }
    let at = place(rng, bytes.len());
    bytes.truncate(at);
    // Mostly at the same place, so that lengths still fit.
    let from = if rng.random_bool(0.7) { at.min(other.len()) } else { place(rng, other.len()) };
    bytes.extend_from_slice(&other[from..]);
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn damage_changes_most_inputs_and_is_the_same_everywhere() {
        let (bytes, other) = (br#"{"a": 17, "b": [1, 2]}"#, br#"{"a": 5, "c": "x"}"#);
        let all = |seed| damage(&mut CaseRng::seed_from_u64(seed), bytes, other);
        let changed = (0..1000).filter(|&seed| all(seed) != bytes).count();
        assert!(changed > 950, "{changed}");
        assert!((0..100).all(|seed| all(seed) == all(seed)));
    }

    #[test]
    fn tiny_inputs_are_damaged_without_harm() {
        for seed in 0..1000 {
            let mut rng = CaseRng::seed_from_u64(seed);
            for length in 0..4 {
                let _ = damage(&mut rng, &vec![b'7'; length], b"");
                let _ = damage(&mut rng, &vec![b'{'; length], b"0");
            }
        }
    }

    #[test]
    fn every_kind_of_damage_is_dealt() {
        let bytes: Vec<u8> = (0..=255).chain(br#"{"n": 123456}"#.iter().copied()).collect();
        let all: Vec<Vec<u8>> =
            (0..3000).map(|seed| damage(&mut CaseRng::seed_from_u64(seed), &bytes, b"other")).collect();
        let any = |found: &dyn Fn(&Vec<u8>) -> bool| all.iter().any(found);
        let has = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        assert!(any(&|d| d.len() < bytes.len()) && any(&|d| d.len() > bytes.len()));
        assert!(any(&|d| d.len() == bytes.len()
            && d.iter().zip(&bytes).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>() == 1));
        assert!(any(&|d| has(d, b"18446744073709551615")), "a number in JSON");
        assert!(any(&|d| has(d, &[0xff; 8])), "a number of eight bytes");
        assert!(any(&|d| d.ends_with(b"other") || d.ends_with(b"her")), "the end of the other input");
        assert!(
            any(&|d| d.starts_with(&[0, 1, 2, 3]) && has(d.get(10..).unwrap_or(&[]), &[1, 2, 3, 4, 5])),
            "a doubled part"
        );
    }
}
