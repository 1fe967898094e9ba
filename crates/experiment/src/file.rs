//! The format of an experiment file.

use serde::Deserialize;
use toml::{Table, Value};

use crate::cell::EvaluatedModel;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// Name under which results are stored: letters, digits, `-` and `_`.
    pub(crate) name: String,
    /// Line above the table.
    #[serde(default)]
    pub(crate) title: String,
    /// Notes below the table, in Markdown.
    #[serde(default)]
    pub(crate) notes: String,
    /// Run configuration to start from, a file in the same folder.
    pub(crate) base: Option<String>,
    /// Values of `run.seed` and `routing.seed`.
    #[serde(default = "one_seed")]
    pub(crate) seeds: Vec<u64>,
    /// Run that the other runs are compared with; the first run if not set.
    pub(crate) baseline: Option<String>,
    /// Configuration of all runs, merged over `base`.
    #[serde(default)]
    pub(crate) configuration: Table,
    /// Routers to combine with each run.
    #[serde(default)]
    pub(crate) routers: Vec<Variant>,
    /// Evaluations of each trained run. Without any, a run is evaluated once with its own configuration.
    #[serde(default)]
    pub(crate) evaluations: Vec<EvaluationEntry>,
    /// The runs.
    pub(crate) runs: Vec<Run>,
    /// Sweeps. Each run of a sweep has the best of its values.
    #[serde(default)]
    pub(crate) sweeps: Vec<SweepEntry>,
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

/// A named set of configuration values, such as a router.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Variant {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) configuration: Table,
}

/// An evaluation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvaluationEntry {
    pub(crate) name: String,
    /// The model that is evaluated: the routed model if not set.
    #[serde(default)]
    pub(crate) model: EvaluatedModel,
    /// Uses each path at its best version on the held-out documents.
    #[serde(default)]
    pub(crate) early_stopping: bool,
    /// Keys of `[evaluation]` and of other sections that an evaluation reads.
    #[serde(default)]
    pub(crate) configuration: Table,
}

/// A run: its name and its configuration values.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) configuration: Table,
    /// Names of routers. If not set, all routers for a run with several paths.
    pub(crate) routers: Option<Vec<String>>,
    /// Names of evaluations. If not set, all evaluations for a run with several paths, otherwise the first.
    pub(crate) evaluations: Option<Vec<String>>,
    /// Seeds; those of the experiment if not set.
    pub(crate) seeds: Option<Vec<u64>>,
}

/// A sweep: the values of a key, of which each run takes the best.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SweepEntry {
    /// Key of the configuration.
    pub(crate) key: String,
    /// Values, two or more.
    pub(crate) values: Vec<Value>,
    /// Names of runs. Each run is swept by itself.
    pub(crate) runs: Vec<String>,
    /// Configuration of the sweep's cells only.
    #[serde(default)]
    pub(crate) configuration: Table,
    /// Seeds of the sweep's cells; the first seed of the run if not set.
    pub(crate) seeds: Option<Vec<u64>>,
}
