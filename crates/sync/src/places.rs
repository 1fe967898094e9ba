//! Where all paths stand: counts by inner steps.

use dipaco_topology::{ModuleId, Topology};

use crate::PathProgress;
use crate::tally::Tally;

/// Counts of the paths of a run, so that nobody has to look at every path.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Number of paths that have taken so many inner steps.
    at: Tally<u64>,
    /// Number of paths that have not measured their final weights.
    unmeasured: usize,
    /// Number of paths through each module that have not taken all inner steps of the run; none for a finished module.
    under_way: Tally<ModuleId>,
}

impl Places {
    /// The places of these paths in a run of `total` inner steps each.
    pub(crate) fn new(topology: &Topology, paths: &[PathProgress], total: u64) -> Self {
        let mut places = Self::default();
        for (path, progress) in topology.path_ids().zip(paths) {
            places.at.add(progress.steps);
            places.unmeasured += usize::from(!progress.measured);
            if progress.steps < total {
                topology.modules_of(path).into_iter().for_each(|module| places.under_way.add(module));
            }
        }
        places
    }

    /// A path has moved on from a number of inner steps to another one.
    pub(crate) fn moves(&mut self, from: u64, to: u64) {
        self.at.take(&from);
        self.at.add(to);
    }

    /// A path has measured its final weights.
    pub(crate) fn measured(&mut self) {
        self.unmeasured -= 1;
    }

    /// A path through these modules has taken all inner steps. Returns the modules all of whose paths have.
    pub(crate) fn arrives(&mut self, modules: Vec<ModuleId>) -> Vec<ModuleId> {
        modules.into_iter().filter(|module| self.under_way.take(module)).collect()
    }

    /// True if a path through a module has inner steps left in the run.
    pub(crate) fn is_under_way(&self, module: ModuleId) -> bool {
        self.under_way.count(&module) > 0
    }

    /// True if all paths have measured their final weights.
    pub(crate) fn all_measured(&self) -> bool {
        self.unmeasured == 0
    }

    /// The fewest inner steps of a path.
    pub(crate) fn least(&self) -> u64 {
        self.at.keys().next().copied().unwrap_or(0)
    }

    /// True if every path has taken this many inner steps.
    pub(crate) fn all_at(&self, steps: u64) -> bool {
        self.at.keys().all(|&at| at == steps)
    }
}
