//! Versions of fragments that paths need, counted so that nobody has to ask every path.

use std::collections::BTreeMap;

use dipaco_topology::PathId;

use crate::FragmentId;
use crate::tally::Tally;

/// The versions of fragments that each path needs, and by how many needs each version is held.
#[derive(Clone, Debug, Default)]
pub struct NeededVersions {
    of_paths: BTreeMap<PathId, Vec<(FragmentId, u32)>>,
    needs: Tally<(FragmentId, u32)>,
}

impl NeededVersions {
    /// Replaces what a path needs. A version may be named more than once.
    pub fn set(&mut self, path: PathId, needed: Vec<(FragmentId, u32)>) {
        if self.of_paths.get(&path).is_some_and(|before| *before == needed) {
            return;
        }
        for &version in &needed {
            self.needs.add(version);
        }
        for version in self.of_paths.insert(path, needed).unwrap_or_default() {
            self.needs.take(&version);
        }
    }

    /// True if a path needs these versions, as they were set.
    #[must_use]
    pub fn is(&self, path: PathId, needed: &[(FragmentId, u32)]) -> bool {
        self.of_paths.get(&path).map_or(&[][..], Vec::as_slice) == needed
    }

    /// True if a path needs a version of a fragment.
    #[must_use]
    pub fn contains(&self, fragment: FragmentId, version: u32) -> bool {
        self.needs.count(&(fragment, version)) > 0
    }

    /// The needed versions of a fragment, in order.
    #[cfg(test)]
    pub(crate) fn of(&self, fragment: FragmentId) -> impl Iterator<Item = u32> + '_ {
        self.needs.keys().filter(move |&&(other, _)| other == fragment).map(|&(_, version)| version)
    }
}

#[cfg(test)]
mod tests {
    use dipaco_topology::ModuleId;

    use super::*;

    #[test]
    fn a_version_is_needed_until_its_last_path_needs_it_no_more() {
        let [a, b] = [0, 1].map(|index| FragmentId { module: ModuleId { level: 0, index: 3 }, index });
        let mut needed = NeededVersions::default();
        needed.set(PathId(0), vec![(a, 4), (a, 4), (b, 1)]);
        needed.set(PathId(1), vec![(a, 4), (a, 5)]);
        assert!(needed.of(a).eq([4, 5]) && needed.of(b).eq([1]));
        needed.set(PathId(0), vec![(a, 5)]);
        assert!(needed.of(a).eq([4, 5]) && !needed.contains(b, 1));
        needed.set(PathId(1), Vec::new());
        assert!(needed.of(a).eq([5]) && !needed.contains(a, 4));
        needed.set(PathId(0), vec![(a, 5)]);
        needed.set(PathId(0), Vec::new());
        assert_eq!(needed.needs.len(), 0);
    }
}
