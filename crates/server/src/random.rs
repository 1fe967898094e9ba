//! Random numbers for request ids, and for the seeds of requests without a seed.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of random numbers: the standard library's keyed hash of a counter. The operating system's random numbers
/// make the keys. Not for secrets.
#[derive(Debug, Default)]
pub(crate) struct Random {
    keys: RandomState,
    counter: AtomicU64,
}

impl Random {
    pub(crate) fn next(&self) -> u64 {
        self.keys.hash_one(self.counter.fetch_add(1, Ordering::Relaxed))
    }

    /// A seed below 2^53, which JSON readers with 64-bit floats keep exactly.
    pub(crate) fn seed(&self) -> u64 {
        self.next() >> 11
    }

    /// 32 hexadecimal digits.
    pub(crate) fn id(&self) -> String {
        format!("{:016x}{:016x}", self.next(), self.next())
    }
}
