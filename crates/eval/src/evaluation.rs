//! The result of an evaluation.

use std::fmt;

use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};

use crate::EvalError;
use crate::sequences::Score;

/// Held-out perplexity of a model; its `Display` is a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Documents that were read.
    pub documents: u64,
    /// Sequences that had something to count.
    pub sequences: u64,
    /// Tokens that were counted.
    pub tokens_counted: u64,
    /// Sum of `-ln p` of the counted tokens, in nats.
    pub nll_sum: f64,
    /// `exp(nll_sum / tokens_counted)`.
    pub perplexity: f64,
    /// `nll_sum` in bits, divided by the bytes of the counted tokens; absent when the tokens' lengths were not given.
    /// Comparable between tokenizers, which the perplexity is not.
    pub bits_per_byte: Option<f64>,
    /// Tokens at the start of each sequence that were not counted.
    pub prefix_tokens: usize,
    /// The most tokens of a sequence.
    pub sequence_tokens: usize,
    /// What each path contributed, in their order; empty for a dense model.
    pub per_path: Vec<PathEvaluation>,
}

/// The contribution of one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathEvaluation {
    /// The path.
    pub path: PathId,
    /// Documents that it read.
    pub documents: u64,
    /// Sequences that had something to count.
    pub sequences: u64,
    /// Tokens that were counted.
    pub tokens_counted: u64,
    /// Sum of `-ln p` of the counted tokens, in nats.
    pub nll_sum: f64,
    /// `exp(nll_sum / tokens_counted)`; absent when nothing was counted.
    pub perplexity: Option<f64>,
}

/// What is summed up over the sequences of a token file, in their order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) documents: u64,
    pub(crate) sequences: u64,
    pub(crate) tokens: u64,
    pub(crate) nll: f64,
    pub(crate) bytes: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, score: &Score) {
        self.sequences += 1;
        self.tokens += score.tokens;
        self.nll += score.nll;
        self.bytes += score.bytes;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.documents += other.documents;
        self.sequences += other.sequences;
        self.tokens += other.tokens;
        self.nll += other.nll;
        self.bytes += other.bytes;
    }

    fn perplexity(&self) -> Option<f64> {
        (self.tokens > 0).then(|| (self.nll / self.tokens as f64).exp())
    }

    pub(crate) fn of_path(&self, path: PathId) -> PathEvaluation {
        PathEvaluation {
            path,
            documents: self.documents,
            sequences: self.sequences,
            tokens_counted: self.tokens,
            nll_sum: self.nll,
            perplexity: self.perplexity(),
        }
    }

    pub(crate) fn finish(
        &self,
        prefix_tokens: usize,
        sequence_tokens: usize,
        per_path: Vec<PathEvaluation>,
    ) -> Result<Evaluation, EvalError> {
        let documents = self.documents;
        let perplexity = self.perplexity().ok_or(EvalError::NothingToCount { documents, prefix_tokens })?;
        Ok(Evaluation {
            documents,
            sequences: self.sequences,
            tokens_counted: self.tokens,
            nll_sum: self.nll,
            perplexity,
            bits_per_byte: (self.bytes > 0).then(|| self.nll / std::f64::consts::LN_2 / self.bytes as f64),
            prefix_tokens,
            sequence_tokens,
            per_path,
        })
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>5} {:>12} {:>12} {:>14} {:>12}",
            "path", "documents", "sequences", "tokens", "perplexity"
        )?;
        for row in &self.per_path {
            let perplexity =
                row.perplexity.map_or_else(|| "-".into(), |perplexity| format!("{perplexity:.3}"));
            writeln!(
                f,
                "{:>5} {:>12} {:>12} {:>14} {perplexity:>12}",
                row.path, row.documents, row.sequences, row.tokens_counted
            )?;
        }
        write!(
            f,
            "{:>5} {:>12} {:>12} {:>14} {:>12.3}",
            "all", self.documents, self.sequences, self.tokens_counted, self.perplexity
        )?;
        if let Some(bits) = self.bits_per_byte {
            write!(f, "  ({bits:.4} bits per byte)")?;
        }
        Ok(())
    }
}
