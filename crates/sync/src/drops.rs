//! Outer gradients that are never sent, to see what a run makes of losing them.

use dipaco_topology::PathId;

/// Which outer gradients are dropped (arXiv:2311.08105, figure 8): a share of them that a hash of path, fragment and
/// number picks, so that every run of a seed drops the same ones. Whoever drops one goes on from its own weights; the
/// next one that it sends is measured from what it took over or sent last, so nothing that it learned is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    seed: u64,
    /// Hashes below are dropped.
    below: u64,
}

impl Drops {
    /// Drops this share of the outer gradients, at least 0 and below 1.
    #[must_use]
    pub fn new(seed: u64, rate: f64) -> Self {
        // Floats saturate: what is not a share drops all or nothing.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let below = (rate * u64::MAX as f64) as u64;
        Self { seed, below }
    }

    /// Whether any are dropped.
    #[must_use]
    pub fn any(&self) -> bool {
        self.below > 0
    }

    /// Whether an outer gradient is dropped: that of a path to the fragment of this number of all its modules at once.
    #[must_use]
    pub fn drops(&self, path: PathId, fragment: u32, number: u64) -> bool {
        self.any() && hash([self.seed, u64::from(path.0), u64::from(fragment), number]) < self.below
    }
}

/// A number that all words decide alike, every value as likely as any other (the mixing of splitmix64).
pub(crate) fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0x9E37_79B9_7F4A_7C15, |state: u64, word| {
        let mut mixed = (state ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_dropped_and_always_the_same() {
        let of = |seed, rate| {
            let drops = Drops::new(seed, rate);
            (0..100u32)
                .flat_map(|path| (1..=100).map(move |number| (path, number)))
                .filter(|&(path, number)| drops.drops(PathId(path), 0, number))
                .collect::<Vec<_>>()
        };
        // Of 10,000 at 30 %: three standard deviations are 137.
        assert!((2_863..3_137).contains(&of(1, 0.3).len()), "{}", of(1, 0.3).len());
        assert_eq!(of(1, 0.3), of(1, 0.3));
        assert_ne!(of(1, 0.3), of(2, 0.3));
        assert!(of(1, 0.0).is_empty() && !Drops::new(1, 0.0).any());
    }
}
