//! Checks of `routing.phases`.

use std::collections::BTreeMap;

use dipaco_topology::{PathId, Topology};

use super::Problems;
use crate::RunConfig;

impl RunConfig {
    /// Checks that the paths of a topology can divide text by their scores, if they are to.
    pub(super) fn check_phases(&self, topology: &Topology, problems: &mut Problems) {
        if self.routing.phases.is_empty() {
            return;
        }
        if self.topology.kept_paths > 0 {
            problems.add(
                "routing.phases is not empty but topology.kept_paths keeps paths: a new router would divide the text of kept \
                 paths anew, so leave routing.phases out"
                    .to_owned(),
            );
        }
        if let Some((first, second)) = replicas(topology) {
            problems.add(format!(
                "routing.phases is not empty but path {second} has the same modules as path {first}: paths with the same \
                 weights score all text alike, so their scores can't divide it; leave routing.phases out, or use \
                 topology.replicas = 1 and list no path twice"
            ));
        }
    }
}

/// Two paths with the same modules, if there are any.
fn replicas(topology: &Topology) -> Option<(PathId, PathId)> {
    let mut known = BTreeMap::new();
    topology.path_ids().find_map(|path| Some((known.insert(topology.modules_of(path), path)?, path)))
}
