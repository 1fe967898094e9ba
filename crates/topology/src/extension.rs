//! Topologies with paths added to those of a finished run, or removed from them.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::level_number;
use crate::{LevelConfig, ModuleId, Modules, PathId, Topology, TopologyConfig, TopologyError};

/// Paths to add to those of a finished run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddedPaths {
    /// A new path begins as a copy of each of these, in this order. A path may be named several times.
    pub like: Vec<PathId>,
    /// Levels in which a new path has a module of its own, a copy of its model's; empty for all levels that the configuration
    /// does not freeze. A level that is named trains. In the other levels it shares the module of its model.
    pub own_levels: Vec<usize>,
    /// The new paths share one new module in each of these levels, a copy of the first path's.
    pub share: bool,
    /// All paths train, in all levels that the configuration does not freeze. Otherwise only the new modules train, and all
    /// other paths are kept as they are.
    pub train_all: bool,
}

/// A topology made of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedTopology {
    /// The new topology. Its paths are listed.
    pub config: TopologyConfig,
    /// The modules of the new topology, level by level, each with the module of the other topology that it is a copy of.
    pub modules: Vec<(ModuleId, ModuleId)>,
    /// For each path of the new topology, the path of the other topology that it is a copy of.
    pub paths: Vec<PathId>,
}

impl Topology {
    /// Returns the topology with further paths. The paths of this topology keep their numbers, and their modules theirs.
    /// `config` is the configuration of this topology.
    ///
    /// # Errors
    /// [`TopologyError::NoSuchPath`] and [`TopologyError::NoSuchLevel`].
    pub fn with_paths(
        &self,
        config: &TopologyConfig,
        added: &AddedPaths,
    ) -> Result<DerivedTopology, TopologyError> {
        let levels = self.levels();
        if let Some(&level) = added.own_levels.iter().find(|&&level| level >= levels) {
            return Err(TopologyError::NoSuchLevel { level, levels });
        }
        let is_own = |level: usize| match added.own_levels.as_slice() {
            [] => config.levels.get(level).is_some_and(|entry| !entry.frozen),
            named => named.contains(&level),
        };
        let mut sources: BTreeMap<ModuleId, ModuleId> = self.module_ids().map(|id| (id, id)).collect();
        let mut counts: Vec<u32> = (0..levels).map(|level| self.modules_in(level)).collect();
        let mut paths: Vec<Vec<u32>> = self.path_ids().map(|path| self.indices(path)).collect();
        let mut copied: Vec<PathId> = self.path_ids().collect();
        let mut first: Option<Vec<u32>> = None;
        for &like in &added.like {
            self.check_path(like)?;
            let mut indices = self.indices(like);
            for level in (0..levels).filter(|&level| is_own(level)) {
                if let Some(shared) = first.as_ref().filter(|_| added.share) {
                    indices[level] = shared[level];
                    continue;
                }
                let level_id = level_number(level);
                let new = ModuleId { level: level_id, index: counts[level] };
                sources.insert(new, ModuleId { level: level_id, index: indices[level] });
                counts[level] += 1;
                indices[level] = new.index;
            }
            first.get_or_insert_with(|| indices.clone());
            paths.push(indices);
            copied.push(like);
        }
        // Only the user freezes levels, and trains them again by their names. Kept paths freeze those of which the new paths
        // share the modules, and leave no mark.
        let level = |(level, entry): (usize, &LevelConfig)| LevelConfig {
            modules: Modules::Count(counts[level]),
            frozen: entry.frozen && !added.own_levels.contains(&level),
            ..entry.clone()
        };
        let config = TopologyConfig {
            replicas: 1,
            paths,
            kept_paths: if added.train_all { 0 } else { self.paths() },
            levels: config.levels.iter().enumerate().map(level).collect(),
        };
        Ok(DerivedTopology { config, modules: sources.into_iter().collect(), paths: copied })
    }

    /// Returns the topology without some paths, and without the modules that only they used. All other paths are kept. They
    /// and their modules are numbered anew in the same order. `config` is the configuration of this topology.
    ///
    /// # Errors
    /// [`TopologyError::NoSuchPath`] and [`TopologyError::NoPathLeft`].
    pub fn without_paths(
        &self,
        config: &TopologyConfig,
        removed: &[PathId],
    ) -> Result<DerivedTopology, TopologyError> {
        removed.iter().try_for_each(|&path| self.check_path(path))?;
        let copied: Vec<PathId> = self.path_ids().filter(|path| !removed.contains(path)).collect();
        if copied.is_empty() {
            return Err(TopologyError::NoPathLeft);
        }
        let used: BTreeSet<ModuleId> = copied.iter().flat_map(|&path| self.modules_of(path)).collect();
        let mut counts = vec![0; self.levels()];
        let mut renamed = BTreeMap::new();
        for old in used {
            let count = &mut counts[usize::from(old.level)];
            renamed.insert(old, ModuleId { level: old.level, index: *count });
            *count += 1;
        }
        let indices = |&path: &PathId| self.modules_of(path).iter().map(|old| renamed[old].index).collect();
        let level =
            |(entry, &count)| LevelConfig { modules: Modules::Count(count), ..LevelConfig::clone(entry) };
        let config = TopologyConfig {
            replicas: 1,
            paths: copied.iter().map(indices).collect(),
            kept_paths: u32::try_from(copied.len()).unwrap_or(u32::MAX),
            levels: config.levels.iter().zip(&counts).map(level).collect(),
        };
        let modules = renamed.into_iter().map(|(old, new)| (new, old)).collect();
        Ok(DerivedTopology { config, modules, paths: copied })
    }

    fn check_path(&self, path: PathId) -> Result<(), TopologyError> {
        if path.0 < self.paths() {
            return Ok(());
        }
        Err(TopologyError::NoSuchPath { path, paths: self.paths() })
    }

    /// Returns the index of the path's module in each level.
    fn indices(&self, path: PathId) -> Vec<u32> {
        self.modules_of(path).iter().map(|module| module.index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two levels of two modules, one block each.
    fn grid() -> (TopologyConfig, Topology) {
        let level = |level: usize| LevelConfig {
            modules: Modules::Count(2),
            blocks: level.to_string(),
            embedding: level == 0,
            head: level == 1,
            frozen: false,
        };
        let config = TopologyConfig::grid(1, vec![level(0), level(1)]);
        let topology = Topology::new(&config, 2).unwrap();
        (config, topology)
    }

    fn texts(modules: &[(ModuleId, ModuleId)]) -> Vec<String> {
        modules.iter().filter(|(new, old)| new != old).map(|(new, old)| format!("{new} of {old}")).collect()
    }

    #[test]
    fn a_new_path_has_modules_of_its_own_and_the_old_paths_keep_theirs() {
        let (config, grid) = grid();
        let added =
            AddedPaths { like: vec![PathId(1), PathId(2)], own_levels: vec![1], ..AddedPaths::default() };
        let derived = grid.with_paths(&config, &added).unwrap();
        assert_eq!(derived.config.paths, [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [1, 3]]);
        assert_eq!(texts(&derived.modules), ["1/2 of 1/1", "1/3 of 1/0"]);
        assert_eq!(derived.paths.iter().map(|path| path.0).collect::<Vec<_>>(), [0, 1, 2, 3, 1, 2]);
        let topology = Topology::new(&derived.config, 2).unwrap();
        assert!(derived.modules.iter().map(|(new, _)| *new).eq(topology.module_ids()));
        assert_eq!((topology.trains(0), topology.trains(1)), (false, true));
        assert_eq!(topology.trained_paths().collect::<Vec<_>>(), [PathId(4), PathId(5)]);
        for path in grid.path_ids() {
            assert_eq!(topology.modules_of(path), grid.modules_of(path));
        }
        // Again, on what came out.
        let again = AddedPaths { like: vec![PathId(5)], ..AddedPaths::default() };
        let again = topology.with_paths(&derived.config, &again).unwrap();
        assert_eq!(again.config.paths[6], [2, 4]);
        assert_eq!(texts(&again.modules), ["0/2 of 0/1", "1/4 of 1/3"]);
        assert_eq!(Topology::new(&again.config, 2).unwrap().trained_paths().len(), 1);
    }

    #[test]
    fn new_paths_can_share_a_module_and_all_can_train() {
        let (config, grid) = grid();
        let added = AddedPaths {
            like: vec![PathId(1), PathId(2)],
            own_levels: vec![1],
            share: true,
            train_all: true,
        };
        let derived = grid.with_paths(&config, &added).unwrap();
        assert_eq!(derived.config.paths[4..], [[0, 2], [1, 2]]);
        assert_eq!(texts(&derived.modules), ["1/2 of 1/1"]);
        assert_eq!((derived.config.kept_paths, derived.config.levels[0].frozen), (0, false));
    }

    #[test]
    fn all_train_again_what_an_extension_froze_and_not_what_the_user_froze() {
        let (mut config, grid) = grid();
        let one_level = AddedPaths { like: vec![PathId(1)], own_levels: vec![1], ..AddedPaths::default() };
        let all = AddedPaths { like: vec![PathId(0)], train_all: true, ..AddedPaths::default() };
        let extended = grid.with_paths(&config, &one_level).unwrap().config;
        let topology = Topology::new(&extended, 2).unwrap();
        assert!(!topology.trains(0));
        let trained = topology.with_paths(&extended, &all).unwrap().config;
        assert_eq!(trained.levels.iter().map(|level| level.frozen).collect::<Vec<_>>(), [false, false]);
        let trained = Topology::new(&trained, 2).unwrap();
        assert_eq!(trained.trained_paths().len(), 6);
        assert!(trained.module_ids().all(|module| trained.module_trains(module)));

        config.levels[0].frozen = true;
        let own = Topology::new(&config, 2).unwrap();
        let frozen =
            |config: &TopologyConfig| config.levels.iter().map(|level| level.frozen).collect::<Vec<_>>();
        let trained = own.with_paths(&config, &all).unwrap().config;
        assert_eq!(frozen(&trained), [true, false]);
        // Kept paths in between change nothing.
        let less = own.without_paths(&config, &[PathId(3)]).unwrap().config;
        let topology = Topology::new(&less, 2).unwrap();
        let trained = topology.with_paths(&less, &AddedPaths { own_levels: vec![1], ..all }).unwrap().config;
        assert_eq!((frozen(&trained), trained.kept_paths), (vec![true, false], 0));
        // A new path has no module of its own in a frozen level, unless the user names the level.
        let added = AddedPaths { like: vec![PathId(0)], ..AddedPaths::default() };
        let more = topology.with_paths(&less, &added).unwrap();
        assert_eq!(
            (texts(&more.modules), frozen(&more.config)),
            (vec!["1/2 of 1/0".to_owned()], vec![true, false])
        );
        let named = AddedPaths { own_levels: vec![0], ..added };
        let more = topology.with_paths(&less, &named).unwrap();
        assert_eq!(
            (texts(&more.modules), frozen(&more.config)),
            (vec!["0/2 of 0/0".to_owned()], vec![false; 2])
        );
    }

    #[test]
    fn a_removed_path_takes_its_own_modules_along() {
        let (config, grid) = grid();
        let added = AddedPaths { like: vec![PathId(0)], ..AddedPaths::default() };
        let five = grid.with_paths(&config, &added).unwrap().config;
        let topology = Topology::new(&five, 2).unwrap();
        let back = topology.without_paths(&five, &[PathId(4)]).unwrap();
        assert_eq!(back.config.paths, [[0, 0], [0, 1], [1, 0], [1, 1]]);
        let without = topology.without_paths(&five, &[PathId(1), PathId(3)]).unwrap();
        assert_eq!(without.config.paths, [[0, 0], [1, 0], [2, 1]]);
        assert_eq!(texts(&without.modules), ["1/1 of 1/2"]);
        assert_eq!(without.paths, [PathId(0), PathId(2), PathId(4)]);
        assert_eq!(Topology::new(&without.config, 2).unwrap().trained_paths().len(), 0);
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        let (config, grid) = grid();
        let path = AddedPaths { like: vec![PathId(4)], ..AddedPaths::default() };
        let no_path = TopologyError::NoSuchPath { path: PathId(4), paths: 4 };
        assert_eq!(grid.with_paths(&config, &path).unwrap_err(), no_path);
        let level = AddedPaths { like: vec![PathId(0)], own_levels: vec![2], ..AddedPaths::default() };
        assert_eq!(
            grid.with_paths(&config, &level).unwrap_err(),
            TopologyError::NoSuchLevel { level: 2, levels: 2 }
        );
        assert_eq!(grid.without_paths(&config, &[PathId(4)]).unwrap_err(), no_path);
        let all: Vec<_> = grid.path_ids().collect();
        assert_eq!(grid.without_paths(&config, &all).unwrap_err(), TopologyError::NoPathLeft);
    }
}
