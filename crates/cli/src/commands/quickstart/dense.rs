//! The dense model of a quickstart: a run of its own beside that of the paths.

use std::io;

use dipaco_config::{OuterConfig, PathsPerRound, RunConfig};
use dipaco_optim::NesterovConfig;
use dipaco_pipeline::RunDirectory;
use dipaco_sync::{Rescale, SyncConfig};
use dipaco_topology::TopologyConfig;

use crate::error::CliError;

/// The run of the dense model.
#[derive(Clone)]
pub(super) struct DenseRun {
    pub(super) run: RunDirectory,
    pub(super) config: RunConfig,
}

/// The configuration of the dense model of a run of several paths: one path that reads all text and trains in each round. The outer
/// step of its modules takes the path's own weights as they are, whatever the paths of the run exchange.
pub(super) fn config(paths: &RunConfig) -> RunConfig {
    let mut config = paths.clone();
    config.run.name += "-dense";
    config.run.store = None;
    config.topology = TopologyConfig::dense(config.model.blocks);
    config.outer = OuterConfig {
        optimizer: paths.outer.optimizer,
        rescale: Rescale::NONE,
        nesterov: NesterovConfig { learning_rate: 1.0, momentum: 0.0 },
        ..OuterConfig::default()
    };
    config.sync = SyncConfig::default();
    config.routing.overlap = 1;
    config.routing.phases.clear();
    config.train.paths_per_round = PathsPerRound::default();
    config
}

/// Gives a run in the folder of another run the text of that run. The link is relative, so both can be moved together.
pub(super) fn link_text(run: &RunDirectory) -> Result<(), CliError> {
    let link = run.data();
    match std::os::unix::fs::symlink("../data", &link) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(CliError::Io { action: "create", path: link, source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dense_model_takes_its_own_weights_whatever_the_paths_exchange() {
        let mut paths = RunConfig::default();
        paths.outer.level_learning_rates = vec![0.35, 0.7];
        paths.outer.delay = 4;
        paths.sync.drop_rate = 0.5;
        paths.routing.overlap = 2;
        paths.train.paths_per_round = PathsPerRound::Always(2);
        let dense = config(&paths);
        dense.check().unwrap();
        assert_eq!(dense.outer.of_level(0).nesterov, NesterovConfig { learning_rate: 1.0, momentum: 0.0 });
        assert_eq!((dense.outer.delayed(), dense.sync), (None, SyncConfig::default()));
        assert!(dense.train.paths_per_round.all());
    }
}
