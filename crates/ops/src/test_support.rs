//! Helpers of this package's tests.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::kernel_set::{forced, set_for_thread};

/// Numbers in -1..1 from a seed.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| random.random_range(-1.0..1.0)).collect()
}

/// Runs `f` in a thread pool of its own, whose threads have the kernel set of this thread.
pub(crate) fn in_pool<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    let set = forced();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool can be made");
    pool.broadcast(|_| set_for_thread(set));
    pool.install(f)
}
