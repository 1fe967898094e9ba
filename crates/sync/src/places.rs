//! Where all paths stand: counts by inner steps.

use std::collections::BTreeMap;

use dipaco_topology::{ModuleId, Topology};

use crate::PathProgress;

/// Counts of the paths of a run, so that nobody has to look at every path.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Number of paths that have taken so many inner steps.
    at: BTreeMap<u64, usize>,
    /// Number of paths that have not measured their final weights.
    unmeasured: usize,
    /// Number of paths through each module that have not taken all inner steps of the run; none for a finished module.
    under_way: BTreeMap<ModuleId, usize>,
}

impl Places {
    /// The places of these paths in a run of `total` inner steps each.
    pub(crate) fn new(topology: &Topology, paths: &[PathProgress], total: u64) -> Self {
        let mut places = Self::default();
        for (path, progress) in topology.path_ids().zip(paths) {
            *places.at.entry(progress.steps).or_default() += 1;
            places.unmeasured += usize::from(!progress.measured);
            if progress.steps < total {
                for module in topology.modules_of(path) {
                    *places.under_way.entry(module).or_default() += 1;
                }
            }
        }
        places
    }

    /// A path has moved on from a number of inner steps to another one.
    pub(crate) fn moves(&mut self, from: u64, to: u64) {
        if let Some(paths) = self.at.get_mut(&from) {
            *paths -= 1;
            if *paths == 0 {
                self.at.remove(&from);
            }
        }
        *self.at.entry(to).or_default() += 1;
    }

    /// A path has measured its final weights.
    pub(crate) fn measured(&mut self) {
        self.unmeasured -= 1;
    }

    /// A path through these modules has taken all inner steps. Returns the modules all of whose paths have.
    pub(crate) fn arrives(&mut self, modules: Vec<ModuleId>) -> Vec<ModuleId> {
        let mut finished = Vec::new();
        for module in modules {
            if let Some(paths) = self.under_way.get_mut(&module) {
                *paths -= 1;
                if *paths == 0 {
                    self.under_way.remove(&module);
                    finished.push(module);
                }
            }
        }
        finished
    }

    /// True if a path through a module has inner steps left in the run.
    pub(crate) fn is_under_way(&self, module: ModuleId) -> bool {
        self.under_way.contains_key(&module)
    }

    /// True if all paths have measured their final weights.
    pub(crate) fn all_measured(&self) -> bool {
        self.unmeasured == 0
    }

    /// The fewest inner steps of a path.
    pub(crate) fn least(&self) -> u64 {
        self.at.first_key_value().map_or(0, |(&steps, _)| steps)
    }

    /// True if every path has taken this many inner steps.
    pub(crate) fn all_at(&self, steps: u64) -> bool {
        self.at.keys().all(|&at| at == steps)
    }
}
