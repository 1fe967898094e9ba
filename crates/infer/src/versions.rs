//! Numbers for the versions of paths.

use std::collections::BTreeMap;

use crate::PathVersion;

/// Versions of paths that have a number.
const VERSIONS: usize = 1 << 16;

/// A number for the modules of each path. Sequences with one number share pages.
#[derive(Default)]
pub(crate) struct Versions {
    numbers: BTreeMap<PathVersion, u32>,
    next: u32,
}

impl Versions {
    pub(crate) fn number(&mut self, version: PathVersion) -> u32 {
        // A forgotten version gets another number, and no page of its first one: a miss of the cache, never a wrong hit.
        if self.numbers.len() >= VERSIONS {
            self.numbers.clear();
        }
        *self.numbers.entry(version).or_insert_with(|| {
            self.next = self.next.wrapping_add(1);
            self.next
        })
    }
}
