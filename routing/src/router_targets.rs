//! Targets of the transformer router.

/// The best path for each position of a sequence (arXiv:2403.10616 §7.2.2). The score of a path at a position is the sum of
/// its log-probabilities of `window` tokens from the position on, or of all tokens to the end of the sequence. Of equal
/// paths the lowest wins. `scores` (P, T) has one list per path with the log-probability of each token in nats.
#[must_use]
pub fn router_targets(scores: &[&[f32]], window: usize) -> Vec<u32> {
    let length = scores.iter().map(|scores| scores.len()).min().unwrap_or(0);
    // Sums of the first tokens, so that each window's sum is a difference; f64 keeps it exact enough.
    let sums: Vec<Vec<f64>> = scores
        .iter()
        .map(|scores| {
            let next = |sum: &mut f64, &score: &f32| {
                *sum += f64::from(score);
                Some(*sum)
            };
            std::iter::once(0.0).chain(scores.iter().scan(0.0, next)).collect()
        })
        .collect();
    let best = |from: usize| {
        let until = from.saturating_add(window).min(length);
        let mut best = (0, f64::NEG_INFINITY);
        for (path, sums) in (0u32..).zip(&sums) {
            let score = sums[until] - sums[from];
            if score > best.1 {
                best = (path, score);
            }
        }
        best.0
    };
    (0..length).map(best).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_path_is_that_of_the_tokens_ahead() {
        // From the last token back, path 1 leads by 1, 2, 0, -3.
        let a = [-1.0, -1.0, -4.0, -3.0];
        let b = [-4.0, -3.0, -3.0, -2.0];
        assert_eq!(router_targets(&[&a, &b], usize::MAX), [0, 0, 1, 1]);
        // One token ahead at a time.
        assert_eq!(router_targets(&[&a, &b], 1), [0, 0, 1, 1]);
        // Two: -2 and -7, -5 and -6, -7 and -5, -3 and -2.
        assert_eq!(router_targets(&[&a, &b], 2), [0, 0, 1, 1]);
        let c = [-9.0, -9.0, 0.0, -9.0];
        assert_eq!(router_targets(&[&a, &b, &c], 1), [0, 0, 2, 1]);
        assert_eq!(router_targets(&[&a, &b, &c], usize::MAX), [0, 0, 1, 1]);
        assert_eq!(router_targets(&[&a, &a], 3), [0; 4]);
        assert!(router_targets(&[], 3).is_empty());
    }
}
