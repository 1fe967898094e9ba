//! Damage to JSON that leaves JSON, alone or as the header of a binary file.

use std::ops::Range;

use rand::Rng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use crate::CaseRng;

/// Returns the bytes with other values in their first JSON object; `None` if they hold none. A length of four or eight
/// bytes in front of the object is that of the new one.
pub(crate) fn damage_values(rng: &mut CaseRng, bytes: &[u8]) -> Option<Vec<u8>> {
    let (part, mut value) = first_object(bytes)?;
    for _ in 0..rng.random_range(1..=2) {
        change(rng, &mut value);
    }
    let text = serde_json::to_vec(&value).ok()?;
    let mut front = bytes[..part.start].to_vec();
    let (old, new) = (part.len() as u64, text.len() as u64);
    if front.last_chunk() == Some(&old.to_le_bytes()) {
        front.truncate(part.start - 8);
        front.extend(new.to_le_bytes());
    } else if front.last_chunk() == Some(&(old as u32).to_le_bytes()) {
        front.truncate(part.start - 4);
        front.extend((new as u32).to_le_bytes());
    }
    Some([&front, &text[..], &bytes[part.end..]].concat())
}

/// The first JSON object and its place. Spaces behind it belong to it: they fill a header up.
fn first_object(bytes: &[u8]) -> Option<(Range<usize>, Value)> {
    let start = bytes.iter().position(|&byte| byte == b'{')?;
    let mut values = serde_json::Deserializer::from_slice(&bytes[start..]).into_iter::<Value>();
    let value = values.next()?.ok()?;
    let end = start + values.byte_offset();
    let spaces = bytes[end..].iter().take_while(|&&byte| byte == b' ').count();
    Some((start..end + spaces, value))
}

/// Changes one value somewhere inside.
fn change(rng: &mut CaseRng, value: &mut Value) {
    match value {
        Value::Object(fields) if !fields.is_empty() && rng.random_bool(0.9) => {
            let names: Vec<String> = fields.keys().cloned().collect();
            let Some(name) = names.choose(rng) else { return };
            match rng.random_range(0..8) {
                0 => drop(fields.remove(name)),
                1 => drop(fields.insert(format!("{name}x"), Value::Null)),
                _ => fields.get_mut(name).into_iter().for_each(|inner| change(rng, inner)),
            }
        }
        Value::Array(list) if !list.is_empty() && rng.random_bool(0.9) => {
            let at = rng.random_range(0..list.len());
            match rng.random_range(0..6) {
                0 => drop(list.remove(at)),
                1 => list.push(list[at].clone()),
                2 => list.swap(0, at),
                _ => change(rng, &mut list[at]),
            }
        }
        other => *other = replacement(rng, other),
    }
}

/// Another value, mostly of the same kind.
fn replacement(rng: &mut CaseRng, value: &Value) -> Value {
    let numbers = [
        json!(0),
        json!(1),
        json!(-1),
        json!(0.5),
        json!(255),
        json!(1u64 << 20),
        json!(u32::MAX),
        json!(1u64 << 32),
        json!(1u64 << 62),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1e300),
    ];
    let texts = ["", "0", "é\n\u{0}", "../..", "ab", "4294967296"];
    match value {
        Value::Number(_) if rng.random_bool(0.9) => numbers.choose(rng).cloned().unwrap_or_default(),
        Value::String(text) if rng.random_bool(0.9) => match rng.random_range(0..3) {
            0 => Value::from(text.repeat(3)),
            1 => Value::from(text.chars().skip(1).collect::<String>()),
            _ => texts.choose(rng).copied().map(Value::from).unwrap_or_default(),
        },
        Value::Bool(flag) if rng.random_bool(0.9) => Value::from(!flag),
        _ => {
            [json!(null), json!([]), json!({}), json!([[1], {"a": null}]), json!("a"), json!(7), json!(true)]
                .choose(rng)
                .cloned()
                .unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_header_keeps_its_length_field_and_stays_json() {
        let header = br#"{"a":{"shape":[2,3]},"b":"c"}  "#;
        let file = [&(header.len() as u64).to_le_bytes()[..], header, b"data"].concat();
        for seed in 0..200 {
            let damaged = damage_values(&mut CaseRng::seed_from_u64(seed), &file).unwrap();
            let (length, rest) = damaged.split_first_chunk().unwrap();
            let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
            assert!(serde_json::from_slice::<Value>(header).is_ok() && data == b"data");
        }
        assert_eq!(damage_values(&mut CaseRng::seed_from_u64(0), b"no object"), None);
    }
}
