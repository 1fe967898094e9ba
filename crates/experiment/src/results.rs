//! What came out, as JSON.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::ExperimentError;

/// Readings of the smallest shard from which on a training is said to have little data per path: up to about four,
/// repeated text is nearly as good as new text (arXiv:2305.16264).
const MANY_READINGS: f64 = 4.0;
/// Share by which a held-out loss counts as risen above its best.
const RISE: f64 = 0.005;

/// The results of an experiment: every cell that is finished.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The experiment's name.
    pub name: String,
    /// One line above the table.
    pub title: String,
    /// What the table is to show, in Markdown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
    /// The run that others are compared with.
    pub baseline: String,
    /// The program's version.
    pub program: String,
    /// The command that made them.
    pub command: String,
    /// Cells that are still missing.
    pub missing: Vec<String>,
    /// The finished ones.
    pub cells: Vec<CellResult>,
}

/// A finished cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// The run's name.
    pub run: String,
    /// The router's name, or empty.
    #[serde(default)]
    pub router: String,
    /// The seed.
    pub seed: u64,
    /// The cell's key: the name of its run directory.
    pub key: String,
    /// What was trained.
    pub facts: Facts,
    /// What was measured, one for each evaluation.
    pub measurements: Vec<Measurement>,
}

/// What was trained in a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// P.
    pub paths: u32,
    /// Modules of all levels.
    pub modules: u32,
    /// Parameters of a path.
    pub path_parameters: u64,
    /// Parameters of all modules together.
    pub all_parameters: u64,
    /// Inner steps of each path, those of the seed model not counted.
    pub steps: u64,
    /// Tokens of one inner step, padding included.
    pub step_tokens: u64,
    /// Seconds that all rounds took together.
    pub seconds: f64,
    /// Bytes that workers and coordinator exchanged, headers and acknowledgements included; absent when the training was
    /// interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire_bytes: Option<u64>,
    /// The training shards; absent when they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<Shards>,
    /// Losses on the paths' held-out documents; absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heldout: Option<Heldout>,
}

/// Sizes of the training shards, in path order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shards {
    /// Documents of each.
    pub documents: Vec<u64>,
    /// Tokens of each.
    pub tokens: Vec<u64>,
}

/// Losses on held-out documents in nats per token, in path order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heldout {
    /// The lowest of each path.
    pub best: Vec<f64>,
    /// The last of each path.
    pub last: Vec<f64>,
}

/// One evaluation of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The evaluation's name, or empty.
    #[serde(default)]
    pub evaluation: String,
    /// e to the mean cross entropy of the counted tokens.
    pub perplexity: f64,
    /// Comparable between tokenizers.
    #[serde(default)]
    pub bits_per_byte: Option<f64>,
    /// Tokens that were counted.
    pub tokens_counted: u64,
    /// Documents that were read.
    pub documents: u64,
    /// Share of validation documents whose domain is that of most documents of their path; absent without labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purity: Option<f64>,
    /// Normalised mutual information of path and domain over validation documents; absent without labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nmi: Option<f64>,
}

impl Results {
    /// Reads a file that `dipaco experiment run` wrote.
    ///
    /// # Errors
    /// A file that can't be read or holds something else.
    pub fn load(path: &Path) -> Result<Self, ExperimentError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ExperimentError::Read { path: path.to_owned(), source })?;
        serde_json::from_str(&text)
            .map_err(|source| ExperimentError::Results { path: path.to_owned(), source })
    }
}

impl Facts {
    /// How often training reads the smallest shard; absent when it is not known.
    #[must_use]
    pub fn readings_of_smallest_shard(&self) -> Option<f64> {
        let smallest = self.shards.as_ref()?.tokens.iter().min().copied()?;
        // Tokens are counted far below 2^53.
        #[allow(clippy::cast_precision_loss)]
        (smallest > 0).then(|| self.steps as f64 * self.step_tokens as f64 / smallest as f64)
    }

    /// How many paths end with a held-out loss clearly above their best.
    #[must_use]
    pub fn risen_paths(&self) -> usize {
        let pairs = self.heldout.iter().flat_map(|heldout| heldout.best.iter().zip(&heldout.last));
        pairs.filter(|(best, last)| **last > **best * (1.0 + RISE)).count()
    }

    /// What says that there is too little data per path, in words; empty when nothing does.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut out = Vec::new();
        if let Some(readings) = self.readings_of_smallest_shard().filter(|readings| *readings > MANY_READINGS)
        {
            out.push(format!("training reads the smallest shard {readings:.1} times"));
        }
        let risen = self.risen_paths();
        if risen > 0 {
            out.push(format!(
                "the held-out loss of {risen} of {} paths has risen above its best by more than {:.1} %",
                self.paths,
                100.0 * RISE
            ));
        }
        out
    }
}
