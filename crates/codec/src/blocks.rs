//! Blocks of values with a common scale or exponent.

/// Values of a block. The last block has the remaining values.
pub(crate) const BLOCK: usize = 256;

/// Returns the bytes of `count` values in blocks, with `head` bytes per block and `bits` bits per value.
pub(crate) fn bytes(count: u64, head: u64, bits: u64) -> Option<u64> {
    let (whole, rest) = (count / BLOCK as u64, count % BLOCK as u64);
    let of = |values: u64| head + (values * bits).div_ceil(8);
    whole.checked_mul(of(BLOCK as u64))?.checked_add(if rest > 0 { of(rest) } else { 0 })
}

/// Writes values as signed bytes; the largest magnitude of a block becomes 127.
pub(crate) fn encode_int8(values: &[f32], out: &mut Vec<u8>) {
    for block in values.chunks(BLOCK) {
        let largest = block.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let scale = largest / 127.0;
        // Near the largest number of f32, the scale may be rounded up so far that the value would be read as infinite.
        let scale = if (scale * 127.0).is_finite() { scale } else { scale.next_down() };
        out.extend_from_slice(&scale.to_le_bytes());
        // The scale is 0 if all values are 0, or so small that a 127th of them is 0 in f32.
        let inverse = if scale > 0.0 { 1.0 / f64::from(scale) } else { 0.0 };
        out.extend(block.iter().map(|value| {
            // At most 127 in magnitude, by the choice of the scale.
            let byte = (f64::from(*value) * inverse).round_ties_even() as i8;
            byte.to_le_bytes()[0]
        }));
    }
}

/// Reads `count` values written by [`encode_int8`]. `bytes` has the length that [`bytes`] returns.
pub(crate) fn decode_int8(mut bytes: &[u8], count: usize, out: &mut Vec<f32>) {
    while out.len() < count {
        let Some((head, rest)) = bytes.split_first_chunk::<4>() else { return };
        let scale = f32::from_le_bytes(*head);
        let (block, after) = rest.split_at(rest.len().min(BLOCK.min(count - out.len())));
        out.extend(block.iter().map(|&byte| f32::from(i8::from_le_bytes([byte])) * scale));
        bytes = after;
    }
}
