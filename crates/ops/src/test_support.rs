//! Helpers of this package's tests.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Numbers in -1..1 from a seed.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| random.random_range(-1.0..1.0)).collect()
}

/// Runs `f` in a thread pool of its own.
pub(crate) fn in_pool<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool can be made").install(f)
}
