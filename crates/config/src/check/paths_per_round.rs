//! Checks of `train.paths_per_round`.

use dipaco_topology::Topology;

use super::Problems;
use crate::RunConfig;

impl RunConfig {
    pub(super) fn check_paths_per_round(&self, problems: &mut Problems) {
        let sync = &self.sync;
        if self.train.paths_per_round.all() {
            return;
        }
        let changes = self.train.paths_per_round.changes();
        let ordered = changes.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let last = changes.last().map_or(0, |&(before, _)| before);
        if changes.first().is_none_or(|&(before, _)| before > 0)
            || !ordered
            || last >= self.train.rounds.max(1)
        {
            problems.add(format!(
                "the changes of train.paths_per_round must begin with 0 rounds, go up, and end before the {} rounds of \
                 train.rounds: as in [[0, 4], [100, 8]]",
                self.train.rounds
            ));
        }
        let whole = sync.fragments == 1 && sync.overlap_steps == 0 && sync.quorum == 0;
        if !whole || sync.blend > 0.0 || sync.drop_rate > 0.0 {
            let problem = "train.paths_per_round lets paths rest, so each outer gradient must belong to one round: use \
                           sync.fragments = 1, and no sync.overlap_steps, sync.quorum, sync.blend and sync.drop_rate; or \
                           train.paths_per_round = 0, which trains all paths";
            problems.add(problem.to_owned());
        }
        if self.outer.delay > 0 {
            problems.add(
                "train.paths_per_round lets paths rest, but outer.delay applies contributions one by one, with the weights of \
                 all paths, so that a module would move too little: use outer.delay = 0, or train.paths_per_round = 0"
                    .to_owned(),
            );
        }
        // A wrong topology has a message of its own.
        let Ok(topology) = Topology::new(&self.topology, self.model.blocks) else { return };
        let trained = topology.trained_paths().len();
        let most = changes.iter().map(|&(_, paths)| paths).max().unwrap_or(0);
        if most as usize > trained {
            problems.add(format!(
                "train.paths_per_round is {most} but {trained} paths train: use at most {trained}, or 0 for all"
            ));
        }
    }
}
