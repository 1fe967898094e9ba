//! A shuffled order without a table.

/// Rounds of the network. Four give a pseudo-random permutation (Luby and Rackoff 1988) with strong round functions;
/// the other four make up for fast ones.
const ROUNDS: usize = 8;

/// A pseudo-random permutation of 0..n, keyed by a seed and an epoch: a balanced Feistel network over the next even
/// number of bits, with cycle walking (a value outside 0..n is mapped again; fewer than 4 mappings on average).
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..n` for an epoch.
    pub fn new(n: u64, seed: u64, epoch: u64) -> Self {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let mut material = blake3::Hasher::new_derive_key("dipaco sampler order 1");
        material.update(&seed.to_le_bytes());
        material.update(&epoch.to_le_bytes());
        let mut stream = material.finalize_xof();
        let keys = std::array::from_fn(|_| {
            let mut key = [0; 8];
            stream.fill(&mut key);
            u64::from_le_bytes(key)
        });
        Self { n, half_bits, keys }
    }

    /// New place of `place`, which is below n.
    pub fn apply(&self, place: u64) -> u64 {
        debug_assert!(place < self.n);
        let mut value = place;
        loop {
            value = self.network(value);
            if value < self.n {
                return value;
            }
        }
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// SplitMix64's output function.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_place_once(n in 1u64..3000, seed: u64, epoch: u64) {
            let permutation = Permutation::new(n, seed, epoch);
            let mut seen: Vec<u64> = (0..n).map(|place| permutation.apply(place)).collect();
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..n));
        }

        #[test]
        fn large_ranges_stay_inside(n in 1u64..=u64::MAX, place: u64) {
            prop_assert!(Permutation::new(n, 1, 2).apply(place % n) < n);
        }
    }

    #[test]
    fn the_order_of_a_seed_is_fixed() {
        // A run that is resumed by a later build has to see the same order.
        let order = |seed, epoch| {
            (0..8).map(|place| Permutation::new(8, seed, epoch).apply(place)).collect::<Vec<_>>()
        };
        assert_eq!(order(1, 0), [2, 4, 3, 6, 0, 7, 1, 5]);
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }
}
