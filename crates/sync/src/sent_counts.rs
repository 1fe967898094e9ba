//! How often the paths of each fragment have sent it, counted so that nobody has to ask every path.

use std::collections::BTreeSet;

use dipaco_topology::{PathId, Topology};

use crate::fragment_id::fragment_ids_of;
use crate::tally::Tally;
use crate::{FragmentId, PathProgress, SharedMap};

/// Counts of the outer gradients that paths have sent, and the fragments whose paths have all sent the next one.
#[derive(Debug, Default)]
pub(crate) struct SentCounts {
    /// Number of paths through each fragment that have sent so many outer gradients of it.
    paths: Tally<(FragmentId, u32)>,
    /// Fragments all of whose paths have sent more outer gradients than the fragment has taken outer steps.
    complete: BTreeSet<FragmentId>,
    /// Those of them that may be so for another outer step than at the last look.
    news: BTreeSet<FragmentId>,
}

impl SentCounts {
    /// The counts of these paths, of modules with `fragments` fragments each at these versions.
    pub(crate) fn new(
        topology: &Topology,
        fragments: u32,
        paths: &SharedMap<PathId, PathProgress>,
        versions: &SharedMap<FragmentId, u32>,
    ) -> Self {
        let mut counts = Self::default();
        for (&path, progress) in paths.iter() {
            let of_path = fragment_ids_of(topology, fragments, path).into_iter().zip(&progress.sent);
            of_path.for_each(|(fragment, &sent)| counts.paths.add((fragment, sent)));
        }
        for (&fragment, &version) in versions.iter() {
            counts.is_at(fragment, version);
        }
        counts
    }

    /// A path that had sent `from` outer gradients of a fragment at this version has sent `to`.
    pub(crate) fn sends(&mut self, fragment: FragmentId, from: u32, to: u32, version: u32) {
        if from == to {
            return;
        }
        self.paths.add((fragment, to));
        // Other paths may not have sent more before this was the last one.
        if self.paths.take(&(fragment, from)) {
            self.is_at(fragment, version);
        }
    }

    /// A fragment has this version.
    pub(crate) fn is_at(&mut self, fragment: FragmentId, version: u32) {
        let least = self.paths.range((fragment, 0)..=(fragment, u32::MAX)).next();
        if least.is_some_and(|&(_, sent)| sent > version) {
            self.complete.insert(fragment);
            self.news.insert(fragment);
        } else {
            self.complete.remove(&fragment);
            self.news.remove(&fragment);
        }
    }

    /// The fragments that have become complete since the last call, in order; also again, after an outer step.
    pub(crate) fn take_news(&mut self) -> BTreeSet<FragmentId> {
        std::mem::take(&mut self.news)
    }

    /// The fragments all of whose paths have sent the outer gradient of the next outer step, in order.
    pub(crate) fn complete(&self) -> &BTreeSet<FragmentId> {
        &self.complete
    }
}

#[cfg(test)]
mod tests {
    use dipaco_topology::{ModuleId, TopologyConfig};

    use super::*;

    #[test]
    fn a_fragment_is_complete_from_the_send_of_its_last_path_to_its_outer_step() {
        let topology = TopologyConfig { replicas: 3, ..TopologyConfig::dense(1) };
        let topology = Topology::new(&topology, 1).unwrap();
        let [a, b] = [0, 1].map(|index| FragmentId { module: ModuleId { level: 0, index: 0 }, index });
        let path = PathProgress { sent: vec![2, 4], ..PathProgress::default() };
        let versions = [(a, 2), (b, 3)].into_iter().collect();
        let paths = topology.path_ids().map(|id| (id, path.clone())).collect();
        let mut counts = SentCounts::new(&topology, 2, &paths, &versions);
        assert!(counts.complete().iter().eq([&b]));
        assert_eq!((counts.take_news(), counts.take_news()), ([b].into(), [].into()), "each is told once");
        counts.sends(a, 2, 3, 2);
        // A path may run ahead.
        counts.sends(a, 3, 4, 2);
        counts.sends(a, 2, 3, 2);
        assert!(counts.complete().iter().eq([&b]), "one path has not sent");
        counts.sends(a, 2, 3, 2);
        assert!(counts.complete().iter().eq([&a, &b]));
        assert_eq!(counts.take_news(), [a].into());
        counts.is_at(a, 3);
        counts.is_at(b, 4);
        assert!(counts.complete().is_empty() && counts.take_news().is_empty());
        counts.sends(a, 3, 5, 3);
        counts.sends(a, 3, 5, 3);
        assert!(counts.complete().iter().eq([&a]));
        counts.sends(a, 4, 5, 3);
        counts.take_news();
        // All paths have also sent the outer gradient of the step after it.
        counts.is_at(a, 4);
        assert_eq!(counts.take_news(), [a].into());
    }
}
