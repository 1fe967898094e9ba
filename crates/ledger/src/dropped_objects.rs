//! The objects that nothing refers to any more, and that readers may still pin.

use std::collections::BTreeSet;

/// Names of the objects that [`WritePart::Deletions`](crate::WritePart::Deletions) has given, until they are deleted. A
/// coordinator that takes over finds them again in the store. A complete run gets no other coordinator, so its caller
/// looks for them.
#[derive(Clone, Debug, Default)]
pub struct DroppedObjects {
    names: BTreeSet<String>,
}

impl DroppedObjects {
    /// Adds names. The manifest on the disk does not refer to their objects.
    pub fn add(&mut self, names: Vec<String>) {
        self.names.extend(names);
    }

    /// True if nothing waits for its deletion.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Removes and returns the names that no reader has pinned. Their objects are to be deleted. The pins must have been read
    /// after the manifest was written: a reader that found its objects in the manifest before has written its pin by then.
    #[must_use]
    pub fn take_unpinned(&mut self, pinned: &BTreeSet<String>) -> Vec<String> {
        self.names.extract_if(.., |name| !pinned.contains(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_object_waits_for_the_end_of_its_pin() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let mut dropped = DroppedObjects::default();
        dropped.add(names(&["a", "b", "c"]));
        let pinned = BTreeSet::from(["b", "other"].map(str::to_owned));
        assert_eq!(dropped.take_unpinned(&pinned), names(&["a", "c"]));
        assert_eq!(dropped.take_unpinned(&pinned), names(&[]));
        dropped.add(names(&["d"]));
        assert_eq!(dropped.take_unpinned(&BTreeSet::new()), names(&["b", "d"]));
        assert!(dropped.is_empty());
    }
}
