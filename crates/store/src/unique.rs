//! Names that no other process takes.

use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

/// A text that no other call in any process returns.
pub(crate) fn unique() -> String {
    let (nanoseconds, random) = unique_numbers();
    format!("{nanoseconds:x}-{random:016x}")
}

/// Two numbers that no other call in any process returns together.
pub(crate) fn unique_numbers() -> (u128, u64) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // The keys of each `RandomState` differ, and the system chooses them at random for each thread.
    let random = RandomState::new().hash_one((std::process::id(), now.as_nanos()));
    (now.as_nanos(), random)
}
