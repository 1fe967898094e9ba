//! Results of an experiment, summarised over the seeds.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::results::{CellResult, DocumentDifference, Facts, Measurement, Results};
use crate::spread::Spread;
use crate::sweep::SweepResult;

/// A table with one row for each run, router and evaluation, in the order of their first results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExperimentTable {
    /// Name of the experiment.
    pub name: String,
    /// Line above the table.
    pub title: String,
    /// Notes below the table, in Markdown.
    pub notes: String,
    /// Name of the run that the other runs are compared with.
    pub baseline: String,
    /// The rows.
    pub rows: Vec<TableRow>,
    /// The sweeps that chose values of the runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sweeps: Vec<SweepResult>,
    /// Names of the unfinished cells.
    pub missing: Vec<String>,
}

/// A row of a [`ExperimentTable`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableRow {
    /// Name of the run.
    pub run: String,
    /// Name of the router, or empty.
    pub router: String,
    /// Name of the evaluation, or empty.
    pub evaluation: String,
    /// Facts about the training with the first seed.
    pub facts: Facts,
    /// Perplexity of each seed.
    pub perplexities: Vec<(u64, f64)>,
    /// Perplexity over the seeds.
    pub perplexity: Spread,
    /// Change of the perplexity against the baseline with the same seed, as a share, of the seeds that have both on the same number
    /// of tokens; `None` without such a seed.
    pub change: Option<Spread>,
    /// True if the baseline counted other tokens with one of the seeds: perplexities on other text can't be compared.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counts_other_tokens: bool,
    /// Bits per byte over the seeds.
    pub bits_per_byte: Option<Spread>,
    /// Bits per token that the division of the text explains ([`Facts::token_gain`]), over the seeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_gain: Option<Spread>,
    /// Purity of the paths over the seeds; `None` without labels.
    pub purity: Option<Spread>,
    /// Normalised mutual information of paths and domains over the seeds; `None` without labels.
    pub nmi: Option<Spread>,
    /// Share of right continuations ([`Measurement::ranking`]) over the seeds; `None` without a ranking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranking: Option<Spread>,
    /// Difference from the baseline of each seed on the same documents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<(u64, DocumentDifference)>,
    /// Bits per byte of each domain over the seeds; empty without labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub domains: BTreeMap<String, Spread>,
    /// Signs of too little data per path, by seed.
    pub warnings: Vec<String>,
    /// Programs and kinds of arithmetic of the trainings ([`Facts::trained_by`]), each once.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub trained_by: BTreeSet<String>,
}

impl ExperimentTable {
    /// The table of all finished cells.
    #[must_use]
    pub fn of(results: &Results) -> Self {
        let mut rows: Vec<TableRow> = Vec::new();
        let same = |row: &TableRow, cell: &CellResult, evaluation: &str| {
            row.run == cell.run && row.router == cell.router && row.evaluation == evaluation
        };
        for cell in &results.cells {
            for found in &cell.measurements {
                if !rows.iter().any(|row| same(row, cell, &found.evaluation)) {
                    rows.extend(row(results, cell, &found.evaluation));
                }
            }
        }
        Self {
            name: results.name.clone(),
            title: results.title.clone(),
            notes: results.notes.clone(),
            baseline: results.baseline.clone(),
            rows,
            sweeps: results.sweeps.clone(),
            missing: results.missing.clone(),
        }
    }
}

/// The row of a run, router and evaluation; `None` without a measurement.
fn row(results: &Results, of: &CellResult, evaluation: &str) -> Option<TableRow> {
    let cells: Vec<&CellResult> =
        results.cells.iter().filter(|cell| cell.run == of.run && cell.router == of.router).collect();
    let measured: Vec<(&CellResult, &Measurement)> = cells
        .iter()
        .filter_map(|cell| {
            let found = cell.measurements.iter().find(|found| found.evaluation == evaluation)?;
            Some((*cell, found))
        })
        .collect();
    let perplexities: Vec<(u64, f64)> =
        measured.iter().map(|(cell, found)| (cell.seed, found.perplexity)).collect();
    let numbers: Vec<f64> = perplexities.iter().map(|(_, perplexity)| *perplexity).collect();
    // Always the baseline's first evaluation: a baseline of one path has no other.
    let base = |seed: u64| {
        let base = results.cells.iter().find(|cell| cell.run == results.baseline && cell.seed == seed)?;
        base.measurements.first()
    };
    let text = |found: &Measurement| (found.tokens_counted, found.documents);
    let pairs = measured.iter().filter_map(|(cell, found)| Some((*found, base(cell.seed)?)));
    let (same, other): (Vec<_>, Vec<_>) = pairs.partition(|(found, base)| text(found) == text(base));
    let changes: Vec<f64> =
        same.iter().map(|(found, base)| found.perplexity / base.perplexity - 1.0).collect();
    let over = |get: fn(&Measurement) -> Option<f64>| {
        Spread::of(&measured.iter().filter_map(|(_, found)| get(found)).collect::<Vec<_>>())
    };
    let mut domains: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for found in measured.iter().flat_map(|(_, found)| &found.domains) {
        domains.entry(&found.domain).or_default().push(found.bits_per_byte);
    }
    let domains = domains.into_iter();
    let difference = |(cell, found): &(&CellResult, &Measurement)| Some((cell.seed, found.against_baseline?));
    let differences = measured.iter().filter_map(difference).collect();
    let mut warnings = Vec::new();
    for (cell, ..) in &measured {
        for warning in cell.facts.warnings() {
            warnings.push(format!("seed {}: {warning}", cell.seed));
        }
    }
    Some(TableRow {
        run: of.run.clone(),
        router: of.router.clone(),
        evaluation: evaluation.to_owned(),
        facts: of.facts.clone(),
        perplexity: Spread::of(&numbers)?,
        perplexities,
        change: Spread::of(&changes),
        counts_other_tokens: !other.is_empty(),
        bits_per_byte: over(|found| found.bits_per_byte),
        token_gain: Spread::of(
            &measured.iter().filter_map(|(cell, _)| cell.facts.token_gain).collect::<Vec<_>>(),
        ),
        purity: over(|found| found.purity),
        nmi: over(|found| found.nmi),
        ranking: over(|found| found.ranking),
        differences,
        domains: domains.filter_map(|(name, bits)| Some((name.to_owned(), Spread::of(&bits)?))).collect(),
        warnings,
        trained_by: measured.iter().filter_map(|(cell, _)| cell.facts.trained_by.clone()).collect(),
    })
}

impl TableRow {
    /// Name for people: `4 × 4 · k-means · routed once`.
    #[must_use]
    pub fn label(&self) -> String {
        named(&[&self.run, &self.router, &self.evaluation])
    }

    /// The same without the evaluation: `4 × 4 · k-means`.
    #[must_use]
    pub fn of_run(&self) -> String {
        named(&[&self.run, &self.router])
    }
}

fn named(parts: &[&str]) -> String {
    parts.iter().copied().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}

#[cfg(test)]
mod tests;
