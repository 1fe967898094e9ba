//! How far the logits of two models are apart.

use std::fmt;

/// Logits of exported files beside those of the weights that were exported, after each token of one text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitDifference {
    /// The largest difference of a logit.
    pub largest: f32,
    /// The largest logit, without its sign.
    pub scale: f32,
    /// Number of tokens after which both find the same token most likely.
    pub same: usize,
    /// Number of tokens of the text.
    pub tokens: usize,
}

impl LogitDifference {
    /// Largest difference by rounding alone, relative to the largest logit, between two programs that compute in f32.
    pub const ROUNDING: f32 = 1e-4;

    /// Of the logits (T, V) of both after each of T tokens.
    pub(crate) fn between(own: &[f32], read: &[f32], tokens: usize) -> Self {
        let vocabulary = (own.len() / tokens).max(1);
        let rows = own.chunks(vocabulary).zip(read.chunks(vocabulary));
        // A NaN is a difference, and `f32::max` would lose it.
        let larger = |most: f32, value: f32| if value.is_nan() || value > most { value } else { most };
        let differences = own.iter().zip(read).map(|(own, read)| (own - read).abs());
        Self {
            largest: differences.fold(0.0, larger),
            scale: own.iter().map(|logit| logit.abs()).fold(0.0, larger),
            same: rows.filter(|(own, read)| likeliest(own) == likeliest(read)).count(),
            tokens,
        }
    }

    /// True if both are the same model, up to the rounding of sums.
    #[must_use]
    pub fn is_rounding(&self) -> bool {
        self.largest <= Self::ROUNDING * self.scale.max(1.0)
    }
}

impl fmt::Display for LogitDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { largest, scale, same, tokens } = self;
        write!(
            f,
            "logits differ by at most {largest:.2e} (the largest is {scale:.1}), and {same} of {tokens} likeliest tokens are \
             the same"
        )
    }
}

fn likeliest(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_the_largest_of_all_positions_and_nothing_undefined_is_rounding() {
        let own = [1.0, 2.0, -4.0, 3.0, 1.0, 0.0];
        let same = LogitDifference::between(&own, &own, 2);
        assert_eq!(same, LogitDifference { largest: 0.0, scale: 4.0, same: 2, tokens: 2 });
        assert!(same.is_rounding());
        let other = LogitDifference::between(&own, &[1.0, 2.0, -4.0, 0.5, 1.0, 0.0], 2);
        assert_eq!(other, LogitDifference { largest: 2.5, scale: 4.0, same: 1, tokens: 2 });
        assert!(!other.is_rounding());
        let undefined = LogitDifference::between(&own, &[f32::NAN, 2.0, -4.0, 3.0, 1.0, 0.0], 2);
        assert!(!undefined.is_rounding(), "{undefined}");
    }
}
