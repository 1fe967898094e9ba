//! Where all paths stand: counts by inner steps.

use dipaco_topology::{ModuleId, PathId, Topology};

use crate::tally::Tally;
use crate::{PathProgress, SharedMap};

/// Counts of the paths of a run, so that nobody has to look at every path.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Number of paths that have taken so many inner steps.
    at: Tally<u64>,
    /// Number of paths that have not measured their final weights.
    unmeasured: usize,
    /// Number of paths through each module that have not taken all inner steps of the run; none for a finished module.
    under_way: Tally<ModuleId>,
    /// Number of paths through each module that have not taken all inner steps of the phase.
    in_phase: Tally<ModuleId>,
    /// Inner steps that the paths that train have taken together.
    taken: u64,
}

impl Places {
    /// The places of these paths in a run of `total` inner steps each, in a phase that ends after `end`.
    pub(crate) fn new(
        topology: &Topology,
        paths: &SharedMap<PathId, PathProgress>,
        total: u64,
        end: u64,
    ) -> Self {
        let mut places = Self::default();
        for (&path, progress) in paths.iter() {
            places.at.add(progress.steps);
            places.unmeasured += usize::from(!progress.measured);
            if progress.steps < total {
                topology.modules_of(path).into_iter().for_each(|module| places.under_way.add(module));
            }
            if topology.path_trains(path) {
                places.taken += progress.steps;
            }
        }
        places.begin_phase(topology, paths, end);
        places
    }

    /// A phase begins that ends after `end` inner steps. Looks at all paths, once a phase.
    pub(crate) fn begin_phase(
        &mut self,
        topology: &Topology,
        paths: &SharedMap<PathId, PathProgress>,
        end: u64,
    ) {
        self.in_phase = Tally::default();
        for (&path, _) in paths.iter().filter(|(_, progress)| progress.steps < end) {
            topology.modules_of(path).into_iter().for_each(|module| self.in_phase.add(module));
        }
    }

    /// A path that trains has moved on from a number of inner steps to another one.
    pub(crate) fn moves(&mut self, from: u64, to: u64) {
        self.at.take(&from);
        self.at.add(to);
        self.taken += to.saturating_sub(from);
    }

    /// A path has measured its final weights.
    pub(crate) fn measured(&mut self) {
        self.unmeasured -= 1;
    }

    /// A path through these modules has taken all inner steps. Returns the modules all of whose paths have.
    pub(crate) fn arrives(&mut self, modules: Vec<ModuleId>) -> Vec<ModuleId> {
        modules.into_iter().filter(|module| self.under_way.take(module)).collect()
    }

    /// A path through these modules has taken all inner steps of the phase.
    pub(crate) fn ends_phase(&mut self, modules: Vec<ModuleId>) {
        for module in modules {
            self.in_phase.take(&module);
        }
    }

    /// Number of paths through a module that have inner steps left in the phase.
    pub(crate) fn in_phase(&self, module: ModuleId) -> usize {
        self.in_phase.count(&module)
    }

    /// Inner steps that the paths that train have taken together.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
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
