//! All paths of a run, one after the other, for evaluation.

use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_eval::PathSource;
use dipaco_model::{Module, Path};
use dipaco_routing::BoxError;
use dipaco_topology::PathId;

use crate::error::PipelineError;
use crate::scored_path::{ScoredPath, ScoringDevice};
use crate::weights::{ModuleVersion, PathModule, Weights};

/// Loads paths in an order that is known in advance. A module is read once, and forgotten after the last path that uses
/// it. Memory holds the modules of the paths in use and the modules that later paths share with earlier paths.
pub(crate) struct PathsInTurn<'a> {
    weights: &'a Weights,
    device: ScoringDevice<'a>,
    /// Number of later paths that use a module.
    uses: BTreeMap<ModuleVersion, u32>,
    kept: BTreeMap<ModuleVersion, Arc<Module>>,
}

impl<'a> PathsInTurn<'a> {
    /// The paths of `weights`, on a device.
    pub(crate) fn new(weights: &'a Weights, device: ScoringDevice<'a>) -> Self {
        Self { weights, device, uses: BTreeMap::new(), kept: BTreeMap::new() }
    }

    fn next(&mut self, path: PathId) -> Result<Path, PipelineError> {
        let mut modules = Vec::new();
        for PathModule { version, objects } in self.weights.modules_of(path)? {
            let loaded = match self.kept.remove(&version) {
                Some(loaded) => loaded,
                None => self.weights.read_module(version.module, &objects)?,
            };
            let later = self.uses.get_mut(&version).map_or(0, |uses| {
                *uses = uses.saturating_sub(1);
                *uses
            });
            if later > 0 {
                self.kept.insert(version, loaded.clone());
            }
            modules.push(loaded);
        }
        self.weights.compose(&modules)
    }
}

impl PathSource for PathsInTurn<'_> {
    type Model = ScoredPath;

    fn context(&self) -> usize {
        self.weights.model().context
    }

    fn expect(&mut self, paths: &[PathId]) {
        // `load` reports a path that can't be loaded, at its turn.
        for module in paths.iter().filter_map(|&path| self.weights.modules_of(path).ok()).flatten() {
            *self.uses.entry(module.version).or_default() += 1;
        }
    }

    fn load(&mut self, path: PathId) -> Result<ScoredPath, BoxError> {
        Ok(self.device.place(self.next(path)?)?)
    }
}
