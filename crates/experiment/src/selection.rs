//! The part of an experiment that a command works on.

use crate::cell::Cell;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::sweep::Sweep;

/// Names of runs and seeds. The default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Names of runs; all runs if empty.
    pub runs: Vec<String>,
    /// Seeds; all seeds if empty.
    pub seeds: Vec<u64>,
}

impl Selection {
    /// The selected cells of the runs.
    ///
    /// # Errors
    /// As [`Experiment::cells`].
    pub fn cells(&self, experiment: &Experiment) -> Result<Vec<Cell>, ExperimentError> {
        let mut cells = experiment.cells()?;
        cells.retain(|cell| self.has(cell));
        Ok(cells)
    }

    /// True for a cell of a selected run and seed.
    #[must_use]
    pub fn has(&self, cell: &Cell) -> bool {
        (self.runs.is_empty() || self.runs.contains(&cell.run))
            && (self.seeds.is_empty() || self.seeds.contains(&cell.seed))
    }

    /// The sweeps of the runs that have a selected cell. They keep all their seeds, so that every command chooses the same
    /// value.
    ///
    /// # Errors
    /// As [`Experiment::sweeps`] and [`Experiment::cells`].
    pub fn sweeps(&self, experiment: &Experiment) -> Result<Vec<Sweep>, ExperimentError> {
        let cells = self.cells(experiment)?;
        let mut sweeps = experiment.sweeps()?;
        sweeps.retain(|sweep| cells.iter().any(|cell| cell.run == sweep.run));
        Ok(sweeps)
    }
}
