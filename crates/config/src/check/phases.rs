//! Checks of `routing.phases`.

use std::collections::BTreeMap;

use dipaco_topology::{ModuleId, PathId, Topology};

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
        } else if let Some((first, second)) = equal_paths(topology) {
            problems.add(format!(
                "routing.phases is not empty but path {second} has the same modules as path {first} in all levels that train: \
                 paths with the same weights score all text alike, so their scores can't divide it; leave routing.phases out, or \
                 use topology.replicas = 1, list no path twice and give frozen levels one module"
            ));
        }
    }
}

/// Two paths with the same weights, if there are any. Modules of a frozen level are equal, because all keep the weights of the seed;
/// only a run with kept paths may have others.
fn equal_paths(topology: &Topology) -> Option<(PathId, PathId)> {
    let trained = |path: PathId| -> Vec<ModuleId> {
        let trains = |module: &ModuleId| topology.trains(module.level.into());
        topology.modules_of(path).into_iter().filter(trains).collect()
    };
    let mut known = BTreeMap::new();
    topology.path_ids().find_map(|path| Some((known.insert(trained(path), path)?, path)))
}
