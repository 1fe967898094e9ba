//! Numbers that follow from a document's tokens, for choices that do not depend on the files of a corpus.

/// A number from 0 to below 1, evenly distributed over documents. It depends only on the `tokens`, on `seed`, and on the
/// key context of the use, so copies of a document stay together.
#[must_use]
pub fn document_number(context: &str, seed: u64, tokens: &[u32]) -> f64 {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    hasher.update(&seed.to_le_bytes());
    let mut bytes = [0u8; 1024];
    for tokens in tokens.chunks(bytes.len() / 4) {
        for (place, token) in bytes.chunks_exact_mut(4).zip(tokens) {
            place.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(&bytes[..tokens.len() * 4]);
    }
    let mut number = [0; 8];
    hasher.finalize_xof().fill(&mut number);
    // f64 holds 53 bits exactly, so this is a number from 0 to below 1 without rounding.
    (u64::from_le_bytes(number) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_even_and_differ_between_uses_seeds_and_documents() {
        let numbers: Vec<f64> = (0..20_000u32).map(|i| document_number("a use", 1, &[i, 3])).collect();
        let tenths = |tenth: usize| numbers.iter().filter(|&&x| (x * 10.0) as usize == tenth).count();
        // 2,000 are expected, with a standard deviation of 42.
        assert!((0..10).all(|tenth| (1_800..2_200).contains(&tenths(tenth))));
        let one = document_number("a use", 1, &[1, 2]);
        assert_eq!(one, document_number("a use", 1, &[1, 2]));
        for other in [
            document_number("another use", 1, &[1, 2]),
            document_number("a use", 2, &[1, 2]),
            document_number("a use", 1, &[1, 2, 0]),
        ] {
            assert_ne!(one, other);
        }
    }
}
