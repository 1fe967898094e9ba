//! The paths of a run, one after the other, for evaluating all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_eval::PathSource;
use dipaco_model::{Module, Path};
use dipaco_routing::Source;
use dipaco_topology::PathId;

use crate::steps::error::StepError;
use crate::steps::weights::{ModuleVersion, Weights};

/// Loads paths in an order that is known beforehand. A module is read once, and forgotten when the last path that uses it
/// has been loaded: what is in memory are the modules of the paths in use and those that later paths share with earlier
/// ones.
pub(crate) struct PathsInTurn<'a> {
    weights: &'a Weights,
    /// How many of the paths to come use a module.
    uses: BTreeMap<ModuleVersion, u32>,
    kept: BTreeMap<ModuleVersion, Arc<Module>>,
}

impl<'a> PathsInTurn<'a> {
    pub(crate) fn new(weights: &'a Weights) -> Self {
        Self { weights, uses: BTreeMap::new(), kept: BTreeMap::new() }
    }

    fn next(&mut self, path: PathId) -> Result<Path, StepError> {
        let mut modules = Vec::new();
        for (key, objects) in self.weights.modules_of(path)? {
            let loaded = match self.kept.remove(&key) {
                Some(loaded) => loaded,
                None => self.weights.read_module(key.0, &objects)?,
            };
            let later = self.uses.get_mut(&key).map_or(0, |uses| {
                *uses = uses.saturating_sub(1);
                *uses
            });
            if later > 0 {
                self.kept.insert(key, loaded.clone());
            }
            modules.push(loaded);
        }
        self.weights.compose(&modules)
    }
}

impl PathSource for PathsInTurn<'_> {
    type Model = Path;

    fn context(&self) -> usize {
        self.weights.model().context
    }

    fn expect(&mut self, paths: &[PathId]) {
        // A path that can't be loaded is told when its turn comes.
        for (key, _) in paths.iter().filter_map(|&path| self.weights.modules_of(path).ok()).flatten() {
            *self.uses.entry(key).or_default() += 1;
        }
    }

    fn load(&mut self, path: PathId) -> Result<Path, Source> {
        Ok(self.next(path)?)
    }
}
