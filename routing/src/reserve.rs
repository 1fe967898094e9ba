//! The choice of documents that are reserved for fitting a discriminative router.

/// Key context that separates this use of BLAKE3 from all others.
const CONTEXT: &str = "dipaco 2026 documents reserved for the router";

/// True if a document with these `tokens` is reserved for the router: no path trains on it, all paths score it, and a
/// discriminative router is fitted on the scores (arXiv:2403.10616 §2.4.2).
///
/// A share `share` (0 to 1) of all documents is reserved. The decision depends only on a hash of the document's tokens and
/// on `seed`, so it is independent of the files of the corpus, and copies of a document stay together.
#[must_use]
pub fn is_router_document(tokens: &[u32], seed: u64, share: f64) -> bool {
    if share <= 0.0 {
        return false;
    }
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
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
    let number = (u64::from_le_bytes(number) >> 11) as f64 / (1u64 << 53) as f64;
    number < share
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserved(share: f64, seed: u64) -> Vec<u32> {
        (0..20_000u32).filter(|&i| is_router_document(&[i, i / 7, 3], seed, share)).collect()
    }

    #[test]
    fn the_share_is_kept_and_the_seed_chooses() {
        let few = reserved(0.005, 1);
        // 100 are expected, with a standard deviation of 10.
        assert!((60..140).contains(&few.len()), "{}", few.len());
        let more = reserved(0.05, 1);
        assert!((850..1150).contains(&more.len()), "{}", more.len());
        assert!(few.iter().all(|document| more.contains(document)), "a larger share keeps the smaller one");
        assert_ne!(few, reserved(0.005, 2));
    }

    #[test]
    fn none_and_all() {
        assert!(reserved(0.0, 0).is_empty());
        assert_eq!(reserved(1.0, 0).len(), 20_000);
        assert!(is_router_document(&[], 0, 1.0));
    }

    #[test]
    fn every_token_counts_and_the_decision_never_changes() {
        let long: Vec<u32> = (0..1000).collect();
        let decide =
            |tokens: &[u32]| (0..64).map(|seed| is_router_document(tokens, seed, 0.5)).collect::<Vec<_>>();
        let known = decide(&long);
        for changed in [0, 255, 256, 999] {
            let mut other = long.clone();
            other[changed] += 1;
            assert_ne!(decide(&other), known, "token {changed}");
        }
        // Fixed for good, and computed by BLAKE3's Python package: a run that a later version resumes must reserve the
        // same documents.
        let chosen: Vec<u64> = (0..64).filter(|&seed| is_router_document(&[1, 2, 3], seed, 0.1)).collect();
        assert_eq!(chosen, [1, 23, 25, 38]);
    }
}
