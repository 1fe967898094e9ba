//! The topology of a run: the modules of each path.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::parse_blocks;
use crate::ids::level_number;
use crate::listed::check_listed;
use crate::{ModuleId, Modules, PathId, TopologyConfig, TopologyError};

/// Part of the transformer. A level holds some of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Token embedding.
    Embedding,
    /// Transformer block with this number.
    Block(usize),
    /// Final norm and output projection.
    Head,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Embedding => f.write_str("the embedding"),
            Self::Block(i) => write!(f, "block {i}"),
            Self::Head => f.write_str("the head"),
        }
    }
}

/// Maximum number of paths of a run. It also bounds the memory that a damaged manifest can make a reader allocate.
const MAX_PATHS: u32 = 1 << 20;

/// The modules of each path, and the parts of the transformer in each level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// K of each level; `None` for a path-specific level.
    counts: Vec<Option<u32>>,
    /// Parts of each level, in the order of the model.
    parts: Vec<Vec<Part>>,
    /// True for each level that does not train: the configuration freezes it, or no path has a module there that trains.
    frozen: Vec<bool>,
    paths: u32,
    /// Modules of each path, if the paths are listed; empty for all combinations.
    listed: Vec<Vec<u32>>,
    /// Paths through each module, in order, if the paths are listed.
    listed_through: BTreeMap<ModuleId, Vec<PathId>>,
    /// Number of paths that nobody trains, the first of all.
    kept: u32,
    /// Modules of these paths.
    kept_modules: BTreeSet<ModuleId>,
}

impl Topology {
    /// Builds the topology of a model of `blocks` transformer blocks.
    ///
    /// # Errors
    /// A part of the model belongs to no level or to several, no level trains, a level names a block outside of the
    /// model, or a count is 0 or too large.
    pub fn new(config: &TopologyConfig, blocks: usize) -> Result<Self, TopologyError> {
        if config.levels.is_empty() {
            return Err(TopologyError::NoLevels);
        }
        let mut paths = u64::from(config.replicas);
        let mut counts = Vec::with_capacity(config.levels.len());
        let mut parts = Vec::with_capacity(config.levels.len());
        for (level, entry) in config.levels.iter().enumerate() {
            let count = match entry.modules {
                Modules::Count(k) => Some(k),
                Modules::Paths => None,
            };
            paths = paths.saturating_mul(u64::from(count.unwrap_or(1)));
            if count == Some(0) {
                return Err(TopologyError::Zero { what: format!("topology.levels[{level}].modules") });
            }
            counts.push(count);
            let mut held = Vec::new();
            held.extend(entry.embedding.then_some(Part::Embedding));
            let mut own = parse_blocks(&entry.blocks)?;
            own.sort_unstable();
            if let Some(&block) = own.iter().find(|&&block| block >= blocks) {
                return Err(TopologyError::NoSuchBlock { level, block, blocks });
            }
            held.extend(own.into_iter().map(Part::Block));
            held.extend(entry.head.then_some(Part::Head));
            parts.push(held);
        }
        let frozen: Vec<bool> = config.levels.iter().map(|level| level.frozen).collect();
        if paths == 0 {
            return Err(TopologyError::Zero { what: "topology.replicas".into() });
        }
        if !config.paths.is_empty() {
            check_listed(config)?;
            paths = config.paths.len() as u64;
        }
        let paths = u32::try_from(paths).ok().filter(|&p| p <= MAX_PATHS);
        let paths = paths.ok_or(TopologyError::TooManyPaths { limit: MAX_PATHS })?;
        let all = [Part::Embedding, Part::Head].into_iter().chain((0..blocks).map(Part::Block));
        for part in all {
            let holders = parts.iter().flatten().filter(|&&held| held == part).count();
            if holders != 1 {
                return Err(TopologyError::Part { part: part.to_string(), holders });
            }
        }
        let (listed, kept) = (config.paths.clone(), config.kept_paths);
        if kept > paths {
            return Err(TopologyError::TooManyKept { kept, paths });
        }
        if kept < paths && frozen.iter().all(|&frozen| frozen) {
            return Err(TopologyError::Frozen);
        }
        let (listed_through, kept_modules) = (BTreeMap::new(), BTreeSet::new());
        let mut topology = Self { counts, parts, frozen, paths, listed, listed_through, kept, kept_modules };
        if !topology.listed.is_empty() {
            for path in topology.path_ids() {
                for module in topology.modules_of(path) {
                    topology.listed_through.entry(module).or_default().push(path);
                }
            }
        }
        let kept_modules = (0..kept).flat_map(|path| topology.modules_of(PathId(path))).collect();
        topology.kept_modules = kept_modules;
        topology.freeze_shared_levels();
        topology.check_kept()?;
        Ok(topology)
    }

    /// Freezes each level in which the paths that train have modules of kept paths only. If they have no other module at all,
    /// it freezes none, and [`Self::check_kept`] names the first of these modules.
    fn freeze_shared_levels(&mut self) {
        if self.kept == 0 {
            return;
        }
        let modules = self.trained_paths().flat_map(|path| self.modules_of(path));
        let trained = modules.filter(|&module| self.module_trains(module));
        let levels: BTreeSet<usize> = trained.map(|module| module.level.into()).collect();
        if !levels.is_empty() {
            self.frozen = (0..self.levels()).map(|level| !levels.contains(&level)).collect();
        }
    }

    /// Checks that no path trains a module of a kept path.
    fn check_kept(&self) -> Result<(), TopologyError> {
        for path in self.trained_paths() {
            let mut trained =
                self.modules_of(path).into_iter().filter(|module| self.trains(module.level.into()));
            if let Some(module) = trained.find(|module| self.kept_modules.contains(module)) {
                let kept = self.paths_through(module).next().unwrap_or(path);
                return Err(TopologyError::KeptModule { path, module, kept });
            }
        }
        Ok(())
    }

    /// Returns P, the number of paths.
    #[must_use]
    pub fn paths(&self) -> u32 {
        self.paths
    }

    /// Returns the radix of each digit of a path id, most significant first: the replicas, then K of each level that
    /// multiplies the paths. Radices of 1 are left out, so a single path has none. Their product is P.
    ///
    /// Listed paths have the one radix P.
    #[must_use]
    pub fn radices(&self) -> Vec<u32> {
        if !self.listed.is_empty() {
            return Some(self.paths).filter(|&paths| paths > 1).into_iter().collect();
        }
        let counts = self.counts.iter().flatten().copied();
        std::iter::once(self.replicas()).chain(counts).filter(|&digit| digit > 1).collect()
    }

    /// Returns the number of paths through each combination of modules; 1 for listed paths.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        if !self.listed.is_empty() {
            return 1;
        }
        // P is the number of replicas times these.
        self.paths / self.counts.iter().flatten().product::<u32>().max(1)
    }

    /// Returns all paths in order.
    pub fn path_ids(&self) -> impl ExactSizeIterator<Item = PathId> + use<> {
        (0..self.paths).map(PathId)
    }

    /// Returns true if workers train a path. Nobody trains a kept path.
    #[must_use]
    pub fn path_trains(&self, path: PathId) -> bool {
        path.0 >= self.kept && path.0 < self.paths
    }

    /// Returns the paths that workers train, in order.
    pub fn trained_paths(&self) -> impl ExactSizeIterator<Item = PathId> + use<> {
        (self.kept..self.paths).map(PathId)
    }

    /// Returns true if outer steps change a module: its level trains, and it is no kept path's. All paths through such a
    /// module train.
    #[must_use]
    pub fn module_trains(&self, module: ModuleId) -> bool {
        self.trains(module.level.into()) && !self.kept_modules.contains(&module)
    }

    /// Returns L, the number of levels.
    #[must_use]
    pub fn levels(&self) -> usize {
        self.counts.len()
    }

    /// Returns K of a level, P for a path-specific level, and 0 for a level that does not exist.
    #[must_use]
    pub fn modules_in(&self, level: usize) -> u32 {
        self.counts.get(level).map_or(0, |count| count.unwrap_or(self.paths))
    }

    /// Returns all modules, level by level.
    pub fn module_ids(&self) -> impl Iterator<Item = ModuleId> + '_ {
        (0..self.levels()).flat_map(|level| {
            let level_id = level_number(level);
            (0..self.modules_in(level)).map(move |index| ModuleId { level: level_id, index })
        })
    }

    /// Returns the parts of a level, in the order of the model.
    #[must_use]
    pub fn parts(&self, level: usize) -> &[Part] {
        self.parts.get(level).map_or(&[], Vec::as_slice)
    }

    /// Returns the level of a part; `None` for a block outside of the model.
    #[must_use]
    pub fn level_of(&self, part: Part) -> Option<usize> {
        self.parts.iter().position(|held| held.contains(&part))
    }

    /// Returns true if the parameters of a level train. The weights of a frozen level stay those of the seed: it has no
    /// gradients, no moments, no outer steps and no contributions. False for a level that does not exist.
    #[must_use]
    pub fn trains(&self, level: usize) -> bool {
        self.frozen.get(level).is_some_and(|frozen| !frozen)
    }

    /// Returns true if a part belongs to a level that trains.
    #[must_use]
    pub fn part_trains(&self, part: Part) -> bool {
        self.level_of(part).is_some_and(|level| self.trains(level))
    }

    /// Returns the modules of a path, one per level.
    #[must_use]
    pub fn modules_of(&self, path: PathId) -> Vec<ModuleId> {
        if let Some(listed) = self.listed.get(path.index()) {
            let module = |(level, &index)| ModuleId { level: level_number(level), index };
            return listed.iter().enumerate().map(module).collect();
        }
        // The last level is the least significant digit of the path id.
        let mut modules = vec![ModuleId { level: 0, index: path.0 }; self.levels()];
        let mut rest = path.0;
        for (level, count) in self.counts.iter().enumerate().rev() {
            let index = match count {
                Some(k) => {
                    let digit = rest % k;
                    rest /= k;
                    digit
                }
                None => path.0,
            };
            modules[level] = ModuleId { level: level_number(level), index };
        }
        modules
    }

    /// Returns the paths through a module, in order; none for a module that does not exist. It looks at these paths only.
    pub fn paths_through(&self, module: ModuleId) -> impl Iterator<Item = PathId> + '_ {
        let level = usize::from(module.level);
        let exists = module.index < self.modules_in(level);
        let listed = self.listed_through.get(&module).filter(|_| exists);
        // Without listed paths, the module's digit in the path id stays for a run of ids, and comes again after a period.
        let (run, period) = match self.counts.get(level) {
            Some(Some(count)) => {
                let below: u32 = self.counts[level + 1..].iter().flatten().product();
                (below, below * count)
            }
            Some(None) | None => (1, self.paths),
        };
        let combined = exists && self.listed.is_empty();
        let from = if combined { module.index * run } else { self.paths };
        let runs = (from..self.paths).step_by(period.max(1) as usize);
        let ids = runs.flat_map(move |first| first..(first + run).min(self.paths));
        listed.into_iter().flatten().copied().chain(ids.map(PathId))
    }

    /// Returns true if a path goes through a module.
    #[must_use]
    pub fn goes_through(&self, path: PathId, module: ModuleId) -> bool {
        let level = usize::from(module.level);
        if let Some(listed) = self.listed.get(path.index()) {
            return listed.get(level) == Some(&module.index);
        }
        let Some(count) = self.counts.get(level) else { return false };
        let Some(k) = count else { return module.index == path.0 };
        let below: u32 = self.counts[level + 1..].iter().flatten().product();
        (path.0 / below) % k == module.index
    }
}

#[cfg(test)]
mod tests;
