//! A cell of an experiment: one training and its evaluations.

use dipaco_config::RunConfig;

/// One combination of run, router and seed, or one value of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Name of the run.
    pub run: String,
    /// Name of the router; empty for a run without routers.
    pub router: String,
    /// `key = value` in a cell of a sweep; empty in a run's own cell.
    pub swept: String,
    /// Seed.
    pub seed: u64,
    /// Configuration of the training. The size of the vocabulary is not known yet.
    pub config: RunConfig,
    /// Evaluations, at least one.
    pub evaluations: Vec<CellEvaluation>,
}

/// A way to evaluate a trained cell.
#[derive(Clone, Debug, PartialEq)]
pub struct CellEvaluation {
    /// Name of the evaluation; empty if the experiment lists no evaluations.
    pub name: String,
    /// Uses each path at its best version on the held-out documents, not at its last version.
    pub early_stopping: bool,
    /// Configuration of the cell with the keys of the evaluation.
    pub config: RunConfig,
}

impl Cell {
    /// Name for people: `4x4 · k-means · seed 1`. In a sweep: `4x4 · k-means · train.rounds = 4 · seed 1`.
    #[must_use]
    pub fn label(&self) -> String {
        let mut label = self.run.clone();
        for part in [&self.router, &self.swept].into_iter().filter(|part| !part.is_empty()) {
            label += &format!(" · {part}");
        }
        format!("{label} · seed {}", self.seed)
    }
}
