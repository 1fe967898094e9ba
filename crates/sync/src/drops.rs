//! Outer gradients that are never sent, for experiments.

use dipaco_topology::PathId;

/// Dropped outer gradients (arXiv:2311.08105, figure 8). A hash of path, fragment and sequence number selects them, so
/// every run of a seed drops the same ones. A path that drops an outer gradient continues from its own weights. Its
/// next outer gradient is the distance between these and the global weights of that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    seed: u64,
    /// Hashes below this number are dropped.
    below: u64,
}

impl Drops {
    /// Drops a share of the outer gradients, at least 0 and below 1.
    #[must_use]
    pub fn new(seed: u64, rate: f64) -> Self {
        // The conversion saturates: a number that is no share drops all or none.
        let below = (rate * u64::MAX as f64) as u64;
        Self { seed, below }
    }

    /// True if any outer gradient is dropped.
    #[must_use]
    pub fn any(&self) -> bool {
        self.below > 0
    }

    /// True if a path drops its outer gradient of this sequence number to a fragment, in all its modules at once.
    #[must_use]
    pub fn drops(&self, path: PathId, fragment: u32, number: u64) -> bool {
        self.any() && hash([self.seed, u64::from(path.0), u64::from(fragment), number]) < self.below
    }
}

/// Mixes words into a uniformly distributed number (the mixing of splitmix64).
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
