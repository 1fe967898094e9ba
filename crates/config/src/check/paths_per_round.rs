//! Checks of `train.paths_per_round`.

use dipaco_topology::Topology;

use super::Problems;
use crate::RunConfig;

impl RunConfig {
    pub(super) fn check_paths_per_round(&self, problems: &mut Problems) {
        let (sync, awake) = (&self.sync, self.train.paths_per_round);
        if awake == 0 {
            return;
        }
        let whole = sync.fragments == 1 && sync.overlap_steps == 0 && sync.quorum == 0;
        if !whole || sync.blend > 0.0 || sync.drop_rate > 0.0 {
            problems.add(format!(
                "train.paths_per_round is {awake}, so each outer gradient must belong to one round: use sync.fragments = 1, and \
                 no sync.overlap_steps, sync.quorum, sync.blend and sync.drop_rate; or train.paths_per_round = 0, which \
                 trains all paths"
            ));
        }
        // A wrong topology has a message of its own.
        let Ok(topology) = Topology::new(&self.topology, self.model.blocks) else { return };
        let trained = topology.trained_paths().len();
        if awake as usize > trained {
            problems.add(format!(
                "train.paths_per_round is {awake} but {trained} paths train: use at most {trained}, or 0 for all"
            ));
        }
    }
}
