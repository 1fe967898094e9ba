//! A cell of an experiment: one training and its evaluations.

use dipaco_config::RunConfig;

/// One combination of run, router and seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Name of the run.
    pub run: String,
    /// Name of the router; empty for a run without routers.
    pub router: String,
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
    /// Name for people: `4x4 · k-means · seed 1`.
    #[must_use]
    pub fn label(&self) -> String {
        let router = if self.router.is_empty() { String::new() } else { format!(" · {}", self.router) };
        format!("{}{router} · seed {}", self.run, self.seed)
    }
}
