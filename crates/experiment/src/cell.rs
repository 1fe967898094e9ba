//! A cell of an experiment: one training and its evaluations.

use dipaco_config::RunConfig;

/// One combination of run, router and seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The run's name.
    pub run: String,
    /// The router's name; empty when the run is not multiplied with routers.
    pub router: String,
    /// The seed.
    pub seed: u64,
    /// What is trained. The vocabulary is not known yet.
    pub config: RunConfig,
    /// How it is evaluated, at least once.
    pub evaluations: Vec<Evaluation>,
}

/// A way to evaluate a trained cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Its name; empty when the experiment names none.
    pub name: String,
    /// Each path at the version that was best on its held-out documents, instead of the last.
    pub early_stopping: bool,
    /// The cell's configuration with the keys that the evaluation sets.
    pub config: RunConfig,
}

impl Cell {
    /// How people call it: `4x4 · k-means · seed 1`.
    #[must_use]
    pub fn label(&self) -> String {
        let router = if self.router.is_empty() { String::new() } else { format!(" · {}", self.router) };
        format!("{}{router} · seed {}", self.run, self.seed)
    }
}
