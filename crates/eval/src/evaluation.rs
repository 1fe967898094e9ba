//! The result of an evaluation.

use std::fmt;

use dipaco_topology::PathId;
use serde::{Deserialize, Deserializer, Serialize};

use crate::score::Score;
use crate::{EvalError, Ranking};

/// Held-out perplexity of a model. `Display` writes a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Number of documents read.
    pub documents: u64,
    /// Number of sequences with counted tokens.
    pub sequences: u64,
    /// Number of counted tokens.
    pub tokens_counted: u64,
    /// Sum of `-ln p` of the counted tokens, in nats.
    pub nll_sum: f64,
    /// `exp(nll_sum / tokens_counted)`; infinite above a mean of 709 nats.
    #[serde(deserialize_with = "infinite_if_null")]
    pub perplexity: f64,
    /// `nll_sum` in bits, divided by the bytes of the counted tokens; `None` without token lengths. Unlike the
    /// perplexity it can be compared between tokenizers.
    pub bits_per_byte: Option<f64>,
    /// Number of tokens at the start of each sequence that are read and not counted.
    pub prefix_tokens: usize,
    /// Largest number of tokens of a sequence.
    pub sequence_tokens: usize,
    /// Contribution of each path, in path order; empty for a dense model.
    pub per_path: Vec<PathEvaluation>,
    /// Choices of paths within sequences; `None` when each document had one path.
    #[serde(default)]
    pub reroute: Option<Rerouted>,
    /// Result on each domain, sorted by name; empty without labels.
    #[serde(default)]
    pub per_domain: Vec<DomainEvaluation>,
    /// Agreement between the paths of documents and their labels; `None` without labels or paths.
    #[serde(default)]
    pub agreement: Option<Agreement>,
    /// Zero-shot ranking of continuations; `None` when it was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranking: Option<Ranking>,
    /// Loss on each document with counted tokens, sorted by document, so that two models of the same text can be compared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub document_losses: Vec<DocumentLoss>,
}

/// The loss of a model on a document.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentLoss {
    /// The first 64 bits of the hash of the document's tokens.
    pub document: u64,
    /// Sum of `-ln p` of its counted tokens, in nats.
    pub nll_sum: f64,
    /// Bytes of text of its counted tokens; 0 without token lengths.
    pub bytes: u64,
}

/// Agreement between a router, which sees no labels, and the labels, over the documents with a label.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Share of documents whose domain is the most frequent domain of their path.
    pub purity: f64,
    /// Normalised mutual information of paths and domains, 0 to 1.
    pub nmi: f64,
}

/// Counts of the choices of paths within sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rerouted {
    /// W, tokens between two choices.
    pub tokens: usize,
    /// Number of choices. The first path of a sequence is not a choice.
    pub choices: u64,
    /// Number of choices that changed the path.
    pub switches: u64,
}

/// Result on the documents of one domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DomainEvaluation {
    /// Name of the domain, or [`crate::UNLABELLED`].
    pub domain: String,
    /// Number of its documents.
    pub documents: u64,
    /// Number of counted tokens.
    pub tokens_counted: u64,
    /// Sum of `-ln p` of the counted tokens, in nats.
    pub nll_sum: f64,
    /// `exp(nll_sum / tokens_counted)`; `None` when no token was counted.
    pub perplexity: Option<f64>,
    /// `nll_sum` in bits, divided by the bytes of the counted tokens; `None` without token lengths.
    pub bits_per_byte: Option<f64>,
    /// Number of its documents on each path (P); empty for a dense model.
    pub documents_of_path: Vec<u64>,
}

/// Contribution of one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathEvaluation {
    /// The path.
    pub path: PathId,
    /// Number of documents routed to the path.
    pub documents: u64,
    /// Number of sequences that the path scored, in whole or in part.
    pub sequences: u64,
    /// Number of tokens that the path scored.
    pub tokens_counted: u64,
    /// Sum of `-ln p` of these tokens, in nats.
    pub nll_sum: f64,
    /// `exp(nll_sum / tokens_counted)`; `None` when no token was counted.
    pub perplexity: Option<f64>,
}

/// Sums over the sequences of a token file, taken in their order.
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

    fn bits_per_byte(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.nll / std::f64::consts::LN_2 / self.bytes as f64)
    }

    pub(crate) fn of_domain(&self, domain: String, documents_of_path: Vec<u64>) -> DomainEvaluation {
        DomainEvaluation {
            domain,
            documents: self.documents,
            tokens_counted: self.tokens,
            nll_sum: self.nll,
            perplexity: self.perplexity(),
            bits_per_byte: self.bits_per_byte(),
            documents_of_path,
        }
    }

    /// The result without its paths and domains.
    pub(crate) fn finish(
        &self,
        prefix_tokens: usize,
        sequence_tokens: usize,
    ) -> Result<Evaluation, EvalError> {
        let documents = self.documents;
        let perplexity = self.perplexity().ok_or(EvalError::NothingToCount { documents, prefix_tokens })?;
        Ok(Evaluation {
            documents,
            sequences: self.sequences,
            tokens_counted: self.tokens,
            nll_sum: self.nll,
            perplexity,
            bits_per_byte: self.bits_per_byte(),
            prefix_tokens,
            sequence_tokens,
            per_path: Vec::new(),
            reroute: None,
            per_domain: Vec::new(),
            agreement: None,
            ranking: None,
            document_losses: Vec::new(),
        })
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.per_path.len() > 1 {
            self.write_paths(f)?;
            writeln!(f)?;
        }
        if !self.per_domain.is_empty() {
            self.write_domains(f)?;
            if let Some(Agreement { purity, nmi }) = self.agreement {
                writeln!(f, "paths and domains: purity {purity:.3}, normalised mutual information {nmi:.3}")?;
            }
            writeln!(f)?;
        }
        if let Some(Rerouted { tokens, choices, switches }) = self.reroute {
            writeln!(
                f,
                "rerouting every {tokens} tokens: {choices} choices, {switches} of them changed the path"
            )?;
        }
        if let Some(Ranking { candidates, prompts, right, .. }) = self.ranking {
            writeln!(
                f,
                "ranking: the true continuation is the first of {candidates} for {right} of {prompts} prompts"
            )?;
        }
        write!(
            f,
            "{} documents, {} sequences, {} tokens counted, perplexity {:.3}",
            self.documents, self.sequences, self.tokens_counted, self.perplexity
        )?;
        match self.bits_per_byte {
            Some(bits) => write!(f, ", {bits:.4} bits per byte"),
            None => Ok(()),
        }
    }
}

impl Evaluation {
    fn write_paths(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>5} {:>12} {:>12} {:>14} {:>12}",
            "path", "documents", "sequences", "tokens", "perplexity"
        )?;
        for row in &self.per_path {
            let perplexity = decimals(row.perplexity, 3);
            writeln!(
                f,
                "{:>5} {:>12} {:>12} {:>14} {perplexity:>12}",
                row.path, row.documents, row.sequences, row.tokens_counted
            )?;
        }
        Ok(())
    }

    fn write_domains(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.per_domain.iter().map(|row| row.domain.chars().count());
        let width = names.max().unwrap_or(0).max("domain".len());
        writeln!(
            f,
            "{:<width$} {:>12} {:>14} {:>12} {:>10}  paths of most documents",
            "domain", "documents", "tokens", "perplexity", "bits/byte"
        )?;
        for row in &self.per_domain {
            let (perplexity, bits) = (decimals(row.perplexity, 3), decimals(row.bits_per_byte, 4));
            write!(
                f,
                "{:<width$} {:>12} {:>14} {perplexity:>12} {bits:>10} ",
                row.domain, row.documents, row.tokens_counted
            )?;
            for (path, share) in row.main_paths(3) {
                write!(f, " {path}: {:.0} %", 100.0 * share)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl DomainEvaluation {
    /// The `most` paths with the largest shares of the domain's documents, and these shares.
    fn main_paths(&self, most: usize) -> Vec<(PathId, f64)> {
        let mut paths: Vec<(PathId, u64)> =
            (0..).map(PathId).zip(self.documents_of_path.iter().copied()).collect();
        paths.sort_by_key(|&(path, documents)| (std::cmp::Reverse(documents), path));
        let share = |(path, documents)| (path, documents as f64 / self.documents.max(1) as f64);
        paths.into_iter().filter(|&(_, documents)| documents > 0).take(most).map(share).collect()
    }
}

/// Reads `null` as infinity, which the writer stores as `null` because JSON has none.
fn infinite_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
}

fn decimals(number: Option<f64>, decimals: usize) -> String {
    number.map_or_else(|| "-".into(), |number| format!("{number:.decimals$}"))
}
