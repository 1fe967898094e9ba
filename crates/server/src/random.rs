//! Numbers for ids and for the seeds of requests that name none.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of numbers that do not repeat: the standard library's keyed hash, whose keys the operating system's
/// randomness made, of a counter. Not for secrets.
#[derive(Debug, Default)]
pub(crate) struct Random {
    keys: RandomState,
    counter: AtomicU64,
}

impl Random {
    pub(crate) fn next(&self) -> u64 {
        self.keys.hash_one(self.counter.fetch_add(1, Ordering::Relaxed))
    }

    /// A seed that survives a reader of JSON whose numbers are doubles.
    pub(crate) fn seed(&self) -> u64 {
        self.next() >> 11
    }

    /// 32 hexadecimal digits.
    pub(crate) fn id(&self) -> String {
        format!("{:016x}{:016x}", self.next(), self.next())
    }
}
