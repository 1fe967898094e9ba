//! Paths that the configuration lists one by one, in place of all combinations of modules.

use std::collections::BTreeSet;

use crate::ids::level_number;
use crate::{ModuleId, Modules, TopologyConfig, TopologyError};

/// Checks that each listed path names one module of each level, and that each module has a path.
pub(crate) fn check_listed(config: &TopologyConfig) -> Result<(), TopologyError> {
    let (replicas, levels) = (config.replicas, config.levels.len());
    if replicas > 1 {
        return Err(TopologyError::ListedReplicas { replicas });
    }
    let mut counts = Vec::with_capacity(levels);
    for (level, entry) in config.levels.iter().enumerate() {
        match entry.modules {
            Modules::Count(count) => counts.push(count),
            Modules::Paths => return Err(TopologyError::ListedPathSpecific { level }),
        }
    }
    let mut used = BTreeSet::new();
    for (path, listed) in config.paths.iter().enumerate() {
        if listed.len() != levels {
            return Err(TopologyError::ListedLength { path, named: listed.len(), levels });
        }
        for (level, (&index, &modules)) in listed.iter().zip(&counts).enumerate() {
            let module = ModuleId { level: level_number(level), index };
            if index >= modules {
                return Err(TopologyError::ListedModule { path, module, modules });
            }
            used.insert(module);
        }
    }
    for (level, &modules) in counts.iter().enumerate() {
        // Ends after as many modules as there are paths, because each path uses one.
        for index in 0..modules {
            let module = ModuleId { level: level_number(level), index };
            if !used.contains(&module) {
                return Err(TopologyError::Unused { module });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{LevelConfig, ModuleId, Modules, PathId, Topology, TopologyConfig, TopologyError};

    /// Two levels of one block each, with these numbers of modules, and these paths.
    fn listed(modules: [u32; 2], paths: &[[u32; 2]], kept_paths: u32) -> TopologyConfig {
        let level = |level: usize| LevelConfig {
            modules: Modules::Count(modules[level]),
            blocks: level.to_string(),
            embedding: level == 0,
            head: level == 1,
            frozen: false,
        };
        let paths = paths.iter().map(|path| path.to_vec()).collect();
        TopologyConfig { paths, kept_paths, ..TopologyConfig::grid(1, vec![level(0), level(1)]) }
    }

    fn error(config: &TopologyConfig) -> TopologyError {
        Topology::new(config, 2).unwrap_err()
    }

    const GRID: [[u32; 2]; 4] = [[0, 0], [0, 1], [1, 0], [1, 1]];

    #[test]
    fn all_combinations_listed_are_the_grid() {
        let grid = TopologyConfig { paths: Vec::new(), ..listed([2, 2], &GRID, 0) };
        let (grid, listed) =
            (Topology::new(&grid, 2).unwrap(), Topology::new(&listed([2, 2], &GRID, 0), 2).unwrap());
        assert_eq!(grid.paths(), listed.paths());
        assert_eq!((listed.radices(), listed.replicas()), (vec![4], 1), "no list is a product");
        for path in grid.path_ids() {
            assert_eq!(grid.modules_of(path), listed.modules_of(path));
        }
        for module in grid.module_ids() {
            let through = |topology: &Topology| topology.paths_through(module).collect::<Vec<_>>();
            assert_eq!(through(&grid), through(&listed));
        }
    }

    #[test]
    fn a_path_beside_the_grid_trains_and_the_grid_is_kept() {
        // Path 4 shares module 0/1, which freezes level 0, and has the new module 1/2.
        let config = listed([2, 3], &[GRID.as_slice(), &[[1, 2]]].concat(), 4);
        let topology = Topology::new(&config, 2).unwrap();
        assert_eq!((topology.trains(0), topology.trains(1)), (false, true));
        assert_eq!(topology.trained_paths().collect::<Vec<_>>(), [PathId(4)]);
        assert_eq!(topology.path_ids().filter(|&path| topology.path_trains(path)).count(), 1);
        assert!(!topology.path_trains(PathId(5)), "there is no path 5");
        let trains: Vec<_> = topology.module_ids().filter(|&module| topology.module_trains(module)).collect();
        assert_eq!(trains, [ModuleId { level: 1, index: 2 }]);
        assert_eq!(topology.paths_through(ModuleId { level: 0, index: 1 }).count(), 3);
    }

    #[test]
    fn a_kept_module_is_never_trained() {
        // Path 5 trains a module of level 0, so path 4 would train the one that it shares.
        let mut config = listed([3, 3], &[GRID.as_slice(), &[[1, 2], [2, 2]]].concat(), 4);
        let module = ModuleId { level: 0, index: 1 };
        let kept_module = TopologyError::KeptModule { path: PathId(4), module, kept: PathId(2) };
        assert_eq!(error(&config), kept_module);
        let message = error(&config).to_string();
        assert!(message.contains("freeze level 0 or give path 4 a module of its own"), "{message}");
        config.levels[0].frozen = true;
        assert!(Topology::new(&config, 2).is_ok());
        // Path 4 has no module of its own at all.
        let config = listed([2, 2], &[GRID.as_slice(), &[[1, 1]]].concat(), 4);
        assert_eq!(error(&config), kept_module);
    }

    #[test]
    fn all_paths_may_be_kept_even_with_frozen_levels() {
        let mut config = listed([2, 2], &GRID, 4);
        config.levels.iter_mut().for_each(|level| level.frozen = true);
        let topology = Topology::new(&config, 2).unwrap();
        assert_eq!(topology.trained_paths().len(), 0);
        config.kept_paths = 3;
        assert_eq!(error(&config), TopologyError::Frozen);
        config.kept_paths = 5;
        assert_eq!(error(&config), TopologyError::TooManyKept { kept: 5, paths: 4 });
    }

    #[test]
    fn refused_lists_are_named() {
        assert!(matches!(error(&listed([0, 1], &[[0, 0]], 0)), TopologyError::Zero { .. }));
        let module = ModuleId { level: 1, index: 2 };
        assert_eq!(
            error(&listed([1, 2], &[[0, 0], [0, 1], [0, 2]], 0)),
            TopologyError::ListedModule { path: 2, module, modules: 2 }
        );
        let huge = listed([1, u32::MAX], &[[0, 0]], 0);
        assert_eq!(error(&huge), TopologyError::Unused { module: ModuleId { level: 1, index: 1 } });
        let mut short = listed([1, 1], &[[0, 0]], 0);
        short.paths[0].pop();
        assert_eq!(error(&short), TopologyError::ListedLength { path: 0, named: 1, levels: 2 });
        let replicas = TopologyConfig { replicas: 2, ..listed([1, 1], &[[0, 0]], 0) };
        assert_eq!(error(&replicas), TopologyError::ListedReplicas { replicas: 2 });
        let mut specific = listed([1, 1], &[[0, 0]], 0);
        specific.levels[1].modules = Modules::Paths;
        assert_eq!(error(&specific), TopologyError::ListedPathSpecific { level: 1 });
    }
}
