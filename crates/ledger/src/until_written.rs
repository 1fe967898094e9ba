//! What waits until a change of the ledger is on the disk.

use std::collections::BTreeMap;

/// Values that wait until a change of the ledger is on the disk: the answers that tell of it.
#[derive(Clone, Debug)]
pub struct UntilWritten<T> {
    /// The last change on the disk.
    written: u64,
    /// The values by the change that they wait for.
    waiting: BTreeMap<u64, Vec<T>>,
}

impl<T> Default for UntilWritten<T> {
    fn default() -> Self {
        Self { written: 0, waiting: BTreeMap::new() }
    }
}

impl<T> UntilWritten<T> {
    /// Keeps a value until `change` is on the disk. Returns the value if the change is there already.
    #[must_use]
    pub fn keep(&mut self, change: u64, value: T) -> Option<T> {
        if change <= self.written {
            return Some(value);
        }
        self.waiting.entry(change).or_default().push(value);
        None
    }

    /// Notes that all changes up to `change` are on the disk. Returns the values that waited for them, in the order of the
    /// changes.
    #[must_use]
    pub fn written(&mut self, change: u64) -> Vec<T> {
        self.written = self.written.max(change);
        let later = self.waiting.split_off(&self.written.saturating_add(1));
        std::mem::replace(&mut self.waiting, later).into_values().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_waits_for_its_change_and_for_no_later_one() {
        let mut answers = UntilWritten::default();
        // Two requests may read the number of their change, and be kept in the other order.
        for (change, answer) in [(3, "c"), (1, "a"), (3, "d"), (2, "b")] {
            assert_eq!(answers.keep(change, answer), None);
        }
        assert_eq!(answers.written(2), ["a", "b"]);
        assert_eq!(answers.keep(2, "repeated"), Some("repeated"), "the change is on the disk");
        assert_eq!(answers.written(1), [""; 0], "an older write takes nothing back");
        assert_eq!(answers.keep(2, "again"), Some("again"));
        assert_eq!(answers.written(9), ["c", "d"]);
    }
}
