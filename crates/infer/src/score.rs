//! Log-probabilities of tokens.

use dipaco_model::sum_exp;

/// Lowest log-probability. Lower values are raised to it, because JSON has no infinity and clients add these numbers up.
pub const LOWEST_LOG_PROB: f32 = -9999.0;

/// A token and its log-probability from the raw logits, before temperature and penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// The token.
    pub token: u32,
    /// Log-probability of the token in nats; `None` for the first token of a prompt, which no position predicts.
    pub log_prob: Option<f32>,
    /// Place of the token among all tokens, 1 for the likeliest, lower ids first among equals; `None` like `log_prob`.
    pub rank: Option<usize>,
    /// The likeliest tokens with their log-probabilities, likeliest first, lower ids first among equals. The token itself
    /// comes last if it is not among them. Its entry equals `log_prob` bit for bit.
    pub top: Vec<(u32, f32)>,
}

impl TokenScore {
    /// The `count` likeliest tokens, as far as they were asked for, each with its log-probability and its place. The token
    /// itself comes last if it is not among them.
    pub fn likeliest(&self, count: usize) -> impl Iterator<Item = (u32, f32, usize)> + '_ {
        let placed = move |(place, &(token, log_prob)): (usize, &(u32, f32))| {
            let rank = if token == self.token { self.rank.unwrap_or(place) } else { place };
            (token, log_prob, rank)
        };
        (1..).zip(&self.top).map(placed).filter(move |&(token, _, rank)| rank <= count || token == self.token)
    }
}

/// Scores a token and the `top` likeliest tokens under logits (V). The exponentials and their sum are f32,
/// the rest is f64.
///
/// Returns `None` when the logits are not a distribution (a NaN, a +∞, or only -∞), or when the token is not below V.
#[must_use]
pub fn score(logits: &[f32], token: u32, top: usize) -> Option<TokenScore> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Checked here: an exponential in f32 turns -∞ into a tiny number.
    if !max.is_finite() {
        return None;
    }
    let normaliser = f64::from(max) + f64::from(sum_exp(logits, max)).ln();
    if !normaliser.is_finite() {
        return None;
    }
    let log_prob = |logit: f32| ((f64::from(logit) - normaliser) as f32).max(LOWEST_LOG_PROB);
    let own = log_prob(*logits.get(token as usize)?);
    let mut best: Vec<(u32, f32)> = likeliest(logits, top).map(|(id, logit)| (id, log_prob(logit))).collect();
    let place = best.iter().position(|&(id, _)| id == token);
    let before = place.unwrap_or_else(|| {
        best.push((token, own));
        likelier(logits, token)
    });
    Some(TokenScore { token, log_prob: Some(own), rank: Some(before + 1), top: best })
}

/// The number of tokens that come before `token`, likeliest first, lower ids first among equals.
fn likelier(logits: &[f32], token: u32) -> usize {
    let (lower, from) = logits.split_at(token as usize);
    let own = from[0];
    lower.iter().filter(|&&logit| logit >= own).count() + from.iter().filter(|&&logit| logit > own).count()
}

/// The `count` largest logits with their tokens, largest first, lower ids first among equals.
fn likeliest(logits: &[f32], count: usize) -> impl Iterator<Item = (u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(count.min(logits.len()) + 1);
    for (id, &logit) in (0u32..).zip(logits) {
        if best.len() == count && best.last().is_none_or(|&(_, least)| logit <= least) {
            continue;
        }
        let at = best.partition_point(|&(_, other)| other >= logit);
        best.insert(at, (id, logit));
        best.truncate(count);
    }
    best.into_iter()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_known_distribution_gives_its_logarithms() {
        let logits = [0.5f32.ln() + 3.0, 0.25f32.ln() + 3.0, 0.125f32.ln() + 3.0, 0.125f32.ln() + 3.0];
        let scored = score(&logits, 3, 2).unwrap();
        let probabilities: Vec<f32> = scored.top.iter().map(|(_, lp)| lp.exp()).collect();
        assert_eq!(scored.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(scored.rank, Some(4), "token 2 is as likely and has a lower id");
        for (given, expected) in probabilities.iter().zip([0.5, 0.25, 0.125]) {
            assert!((given - expected).abs() < 1e-6, "{given} {expected}");
        }
    }

    #[test]
    fn infinities_are_clamped_and_invalid_logits_refused() {
        let scored = score(&[0.0, f32::NEG_INFINITY], 1, 1).unwrap();
        assert_eq!(scored.log_prob, Some(LOWEST_LOG_PROB));
        assert_eq!(scored.top, [(0, 0.0), (1, LOWEST_LOG_PROB)]);
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(score(&[0.0, bad], 0, 1), None);
        }
        assert_eq!(score(&[f32::NEG_INFINITY; 2], 0, 1), None);
        assert_eq!(score(&[0.0], 1, 1), None);
    }

    proptest! {
        #[test]
        fn the_top_holds_the_maximum_and_the_tokens_own_number(
            logits in proptest::collection::vec(-50f32..50.0, 1..40), pick in any::<prop::sample::Index>(), k in 0usize..6,
        ) {
            let token = pick.index(logits.len()) as u32;
            let scored = score(&logits, token, k).unwrap();
            let own = scored.top.iter().find(|t| t.0 == token).unwrap().1;
            prop_assert_eq!(Some(own.to_bits()), scored.log_prob.map(f32::to_bits));
            prop_assert!(scored.top.len() <= k + 1);
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            order.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap());
            prop_assert_eq!(order[scored.rank.unwrap() - 1], token);
            // Fewer of the likeliest tokens are those that a smaller number gives.
            for fewer in 0..=k {
                let found: Vec<(u32, f32)> = scored.likeliest(fewer).map(|(token, log_prob, _)| (token, log_prob)).collect();
                prop_assert_eq!(found, score(&logits, token, fewer).unwrap().top);
            }
            prop_assert!(scored.likeliest(k).all(|(token, _, rank)| order[rank - 1] == token));
            if k > 0 {
                let max = (0..logits.len() as u32).filter_map(|t| score(&logits, t, 0)?.log_prob).fold(f32::MIN, f32::max);
                prop_assert_eq!(scored.top[0].1.to_bits(), max.to_bits());
            }
        }
    }
}
