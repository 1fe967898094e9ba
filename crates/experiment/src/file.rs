//! An experiment file, as written.

use serde::Deserialize;
use toml::Table;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// Letters, digits, `-` and `_`: results are stored under it.
    pub(crate) name: String,
    /// One line above the table.
    #[serde(default)]
    pub(crate) title: String,
    /// What the table is to show, in Markdown, below it.
    #[serde(default)]
    pub(crate) notes: String,
    /// A run configuration to start from, beside this file.
    pub(crate) base: Option<String>,
    /// Values of `run.seed` and `routing.seed`.
    #[serde(default = "one_seed")]
    pub(crate) seeds: Vec<u64>,
    /// The run that others are compared with; the first when it is not given.
    pub(crate) baseline: Option<String>,
    /// What all runs have in common, over `base`.
    #[serde(default)]
    pub(crate) configuration: Table,
    /// Routers that runs are multiplied with.
    #[serde(default)]
    pub(crate) routers: Vec<Variant>,
    /// How each trained run is evaluated; once, as its configuration says, when there are none.
    #[serde(default)]
    pub(crate) evaluations: Vec<EvaluationEntry>,
    /// The runs.
    pub(crate) runs: Vec<Run>,
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

/// A router, or another set of values with a name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Variant {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) configuration: Table,
}

/// A way to evaluate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvaluationEntry {
    pub(crate) name: String,
    /// Each path at the version that was best on its held-out documents.
    #[serde(default)]
    pub(crate) early_stopping: bool,
    /// Keys of `[evaluation]`, and of the sections that the evaluation itself reads.
    #[serde(default)]
    pub(crate) configuration: Table,
}

/// A run: what it is called, and how it differs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) configuration: Table,
    /// Names of routers; all when it is not given and the run has several paths.
    pub(crate) routers: Option<Vec<String>>,
    /// Names of evaluations; all when it is not given and the run has several paths, else the first.
    pub(crate) evaluations: Option<Vec<String>>,
    /// Seeds, when they are others than the experiment's.
    pub(crate) seeds: Option<Vec<u64>>,
}
