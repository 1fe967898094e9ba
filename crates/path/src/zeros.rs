//! Zeros in memory that is there.

use std::hint::black_box;

/// So many zeros, each of them written.
///
/// For `vec![0.0; n]` the allocator takes fresh pages of the system, also where it keeps freed memory. An optimizer reads a
/// value before it writes it, so each of these pages would cost two page faults: the read finds the system's page of zeros,
/// and the write replaces it.
pub(crate) fn written_zeros(length: usize) -> Vec<f32> {
    // Hidden from the compiler, which may make a request for zeros of an allocation that is filled with zeros.
    let mut zeros = black_box(Vec::with_capacity(length));
    zeros.resize(length, 0.0);
    zeros
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    /// Page faults of this thread so far (proc(5), `minflt`, field 10).
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // The second field is the name in parentheses, which may hold spaces.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn an_optimizer_finds_the_pages_of_its_first_state_there() {
        // More than the allocator ever takes from memory that was used before.
        let mut zeros = written_zeros(16 << 20);
        let before = faults();
        assert!(zeros.iter().all(|value| *value == 0.0));
        zeros.iter_mut().for_each(|value| *value += 1.0);
        let found = faults() - before;
        // These are 16,384 pages of 4 KiB, or 1,024 of 64 KiB.
        assert!(found < 512, "{found} page faults");
        assert!(zeros.iter().all(|value| *value == 1.0));
    }
}
