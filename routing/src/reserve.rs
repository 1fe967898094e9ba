//! The choice of documents that are reserved for fitting a discriminative router.

use dipaco_shards::document_number;

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
    document_number(CONTEXT, seed, tokens) < share
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
