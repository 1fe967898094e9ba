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

/// True if the page with this address is in memory (bit 63 of its entry in `/proc/self/pagemap`).
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn is_resident(address: usize) -> bool {
    use std::os::unix::fs::FileExt;

    /// Bytes of an entry.
    const ENTRY: usize = 8;
    // SAFETY: the call reads a constant of the system.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("the system has pages");
    let mut entry = [0; ENTRY];
    let file = std::fs::File::open("/proc/self/pagemap").expect("the system tells which pages are in memory");
    file.read_exact_at(&mut entry, (address / page * ENTRY) as u64).expect("a page has an entry");
    u64::from_le_bytes(entry) >> 63 == 1
}
