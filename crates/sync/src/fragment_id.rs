//! Identity of a fragment of a module.

use std::fmt;

use dipaco_topology::{ModuleId, PathId, Topology};
use serde::{Deserialize, Serialize};

/// A part of a module that takes outer steps of its own. Its learners are the paths through the module. A module that
/// is not cut is its own fragment 0. A fragment of a frozen level takes no outer steps: its version stays 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FragmentId {
    /// The module.
    pub module: ModuleId,
    /// Index of the fragment within the module, from 0.
    pub index: u32,
}

impl FragmentId {
    /// Index of the fragment in lists over the fragments of a path, in the order of [`fragment_ids_of`].
    #[must_use]
    pub fn slot(self, fragments: u32) -> usize {
        usize::from(self.module.level) * fragments as usize + self.index as usize
    }
}

impl fmt::Display for FragmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.module, self.index)
    }
}

/// All fragments of a run with `fragments` fragments per module, in order.
pub fn fragment_ids(topology: &Topology, fragments: u32) -> impl Iterator<Item = FragmentId> + '_ {
    topology
        .module_ids()
        .flat_map(move |module| (0..fragments).map(move |fragment| FragmentId { module, index: fragment }))
}

/// The fragments of a path, level by level.
#[must_use]
pub fn fragment_ids_of(topology: &Topology, fragments: u32, path: PathId) -> Vec<FragmentId> {
    let of = |module| (0..fragments).map(move |fragment| FragmentId { module, index: fragment });
    topology.modules_of(path).into_iter().flat_map(of).collect()
}
