//! Results of an experiment, stored as JSON.

use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::ExperimentError;
use crate::sweep::SweepResult;

/// Number of passes over the smallest shard above which a training has little data per path. Up to about four passes,
/// repeated text is nearly as good as new text (arXiv:2305.16264).
const MANY_READINGS: f64 = 4.0;
/// Share above its minimum from which a held-out loss counts as risen.
const RISE: f64 = 0.005;

/// The results of an experiment: its finished cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Name of the experiment.
    pub name: String,
    /// Line above the table.
    pub title: String,
    /// Notes below the table, in Markdown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
    /// Name of the run that the other runs are compared with.
    pub baseline: String,
    /// Version of the program.
    pub program: String,
    /// Command that made the results.
    pub command: String,
    /// Names of the unfinished cells.
    pub missing: Vec<String>,
    /// The finished sweeps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sweeps: Vec<SweepResult>,
    /// The finished cells of the runs.
    pub cells: Vec<CellResult>,
}

/// A finished cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// Name of the run.
    pub run: String,
    /// Name of the router, or empty.
    #[serde(default)]
    pub router: String,
    /// Seed.
    pub seed: u64,
    /// Key of the cell, which is the name of its run directory.
    pub key: String,
    /// Facts about the training.
    pub facts: Facts,
    /// Measurements, one per evaluation.
    pub measurements: Vec<Measurement>,
}

/// Facts about the training of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// P, the number of paths.
    pub paths: u32,
    /// Number of modules of all levels.
    pub modules: u32,
    /// Number of parameters of a path.
    pub path_parameters: u64,
    /// Number of parameters of all modules together.
    pub all_parameters: u64,
    /// Number of inner steps of each path, without the steps of the seed model: the mean if paths rest in some rounds.
    pub steps: u64,
    /// Number of tokens of an inner step, including padding.
    pub step_tokens: u64,
    /// Seconds from the start of the training to the end of its last round, repeated rounds included; 0 if unknown.
    pub seconds: f64,
    /// Bytes exchanged between workers and coordinator, including headers and acknowledgements; `None` if the training was
    /// interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire_bytes: Option<u64>,
    /// Sizes of the training shards; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<Shards>,
    /// Number of passes of the training over the shard that it reads most often, without padding; `None` in results of earlier
    /// programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readings: Option<f64>,
    /// Bits per token by which a shard's own token frequencies predict its text better than those of all text, as in
    /// `route inspect`; `None` for a single path, or if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_gain: Option<f64>,
    /// Losses on the paths' held-out documents; `None` without held-out documents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heldout: Option<Heldout>,
    /// Measurements on validation text during training (`train.validate_every`), by steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub validation: Vec<ValidationPoint>,
    /// The build of the program and the fingerprint of the arithmetic that trained the cell; `None` in results of earlier programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_by: Option<String>,
}

/// A measurement on validation text during training, each path on its own documents.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValidationPoint {
    /// Inner steps of each path so far: the mean if paths rest in some rounds.
    pub steps: u64,
    /// Mean cross entropy in nats per token.
    pub loss: f64,
    /// Seconds of training so far, repeated rounds included; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Bytes between workers and coordinator so far; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire_bytes: Option<u64>,
}

/// Sizes of the training shards, in path order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shards {
    /// Number of documents of each shard (P).
    pub documents: Vec<u64>,
    /// Number of tokens of each shard (P).
    pub tokens: Vec<u64>,
}

/// Losses on held-out documents in nats per token, in path order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heldout {
    /// Lowest loss of each path (P).
    pub best: Vec<f64>,
    /// Last loss of each path (P).
    pub last: Vec<f64>,
}

/// Result of an evaluation of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Name of the evaluation, or empty.
    #[serde(default)]
    pub evaluation: String,
    /// Perplexity: e to the mean cross entropy of the counted tokens; infinite for a model that diverged.
    #[serde(deserialize_with = "infinite_if_null")]
    pub perplexity: f64,
    /// Cross entropy in bits per byte of text, which can be compared between tokenizers.
    #[serde(default)]
    pub bits_per_byte: Option<f64>,
    /// Number of counted tokens.
    pub tokens_counted: u64,
    /// Number of documents read.
    pub documents: u64,
    /// Share of validation documents whose domain is the most frequent domain of their path; `None` without labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purity: Option<f64>,
    /// Normalised mutual information of path and domain over validation documents; `None` without labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nmi: Option<f64>,
    /// Share of the prompts whose true continuation is the most probable of `evaluation.rank_candidates`, 0 to 1; `None` without
    /// prompts, without such candidates, and for a model that has no path for a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranking: Option<f64>,
    /// Results on the domains of the validation documents, sorted by name; empty without labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<DomainMeasurement>,
    /// Difference from the baseline of the same seed on the same documents; `None` for the baseline itself, and where one of
    /// the two is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against_baseline: Option<DocumentDifference>,
}

/// A difference in bits per byte with its 95 % interval over the documents.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentDifference {
    /// Bits per byte less those of the baseline.
    pub bits_per_byte: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Result of an evaluation on the documents of a domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DomainMeasurement {
    /// Name of the domain.
    pub domain: String,
    /// Number of its documents.
    pub documents: u64,
    /// Cross entropy in bits per byte of text.
    pub bits_per_byte: f64,
}

/// Reads `null` as infinity, which the writer stores as `null` because JSON has none.
fn infinite_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
}

impl Results {
    /// Reads a file written by `dipaco experiment run`.
    ///
    /// # Errors
    /// When the file can't be read or does not hold results.
    pub fn load(path: &Path) -> Result<Self, ExperimentError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ExperimentError::Read { path: path.to_owned(), source })?;
        serde_json::from_str(&text)
            .map_err(|source| ExperimentError::Results { path: path.to_owned(), source })
    }
}

impl Facts {
    /// Number of tokens that the inner steps of all paths read, including padding.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens_at(self.steps)
    }

    /// The same up to a number of inner steps of each path.
    #[must_use]
    pub fn tokens_at(&self, steps: u64) -> u64 {
        u64::from(self.paths).saturating_mul(steps).saturating_mul(self.step_tokens)
    }

    /// Number of passes of the training over the shard that it reads most often; `None` if unknown. Results of earlier programs
    /// count padding as text.
    #[must_use]
    pub fn most_readings(&self) -> Option<f64> {
        if self.readings.is_some() {
            return self.readings;
        }
        let smallest = self.shards.as_ref()?.tokens.iter().min().copied()?;
        (smallest > 0).then(|| self.steps as f64 * self.step_tokens as f64 / smallest as f64)
    }

    /// Number of paths whose last held-out loss is clearly above their lowest.
    #[must_use]
    pub fn risen_paths(&self) -> usize {
        let pairs = self.heldout.iter().flat_map(|heldout| heldout.best.iter().zip(&heldout.last));
        pairs.filter(|(best, last)| **last > **best * (1.0 + RISE)).count()
    }

    /// Signs of too little data per path, as sentences; empty without signs.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut out = Vec::new();
        if let Some(readings) = self.most_readings().filter(|readings| *readings > MANY_READINGS) {
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
