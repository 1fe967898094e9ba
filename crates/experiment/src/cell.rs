//! A cell of an experiment: one training and its evaluations.

use std::num::NonZeroU32;

use dipaco_config::RunConfig;
use serde::Deserialize;

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

/// The model of a trained cell that is evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvaluatedModel {
    /// The routed model, with the choices of paths that the configuration asks for.
    #[default]
    Routed,
    /// The weighted mean of this many best paths of each sequence (c-BTM, arXiv:2303.14177).
    Ensemble(NonZeroU32),
    /// The path with the lowest loss on each document: a bound for every router.
    Oracle,
    /// A random path for each document.
    RandomPath,
    /// The mean of the weights of all paths.
    Soup,
    /// The seed model.
    Seed,
    /// The imported model that the seed model began with.
    Imported,
}

/// A way to evaluate a trained cell.
#[derive(Clone, Debug, PartialEq)]
pub struct CellEvaluation {
    /// Name of the evaluation; empty if the experiment lists no evaluations.
    pub name: String,
    /// The model that is evaluated.
    pub model: EvaluatedModel,
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
