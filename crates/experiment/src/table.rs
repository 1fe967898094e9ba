//! Results of an experiment, over the seeds.

use serde::{Deserialize, Serialize};

use crate::results::{CellResult, Facts, Measurement, Results};
use crate::spread::Spread;

/// One line for each run, router and evaluation, in the order in which they were first met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The experiment's name.
    pub name: String,
    /// One line above it.
    pub title: String,
    /// What it is to show.
    pub notes: String,
    /// The run that others are compared with.
    pub baseline: String,
    /// The lines.
    pub rows: Vec<TableRow>,
    /// Cells that are still missing.
    pub missing: Vec<String>,
}

/// A line of a [`Table`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableRow {
    /// The run's name.
    pub run: String,
    /// The router's name, or empty.
    pub router: String,
    /// The evaluation's name, or empty.
    pub evaluation: String,
    /// What was trained, of the first seed.
    pub facts: Facts,
    /// Perplexity by seed.
    pub perplexities: Vec<(u64, f64)>,
    /// Perplexity over the seeds.
    pub perplexity: Spread,
    /// Change of the perplexity against the baseline of the same seed, as a share; absent where no seed has both.
    pub change: Option<Spread>,
    /// Bits per byte over the seeds.
    pub bits_per_byte: Option<Spread>,
    /// Purity of the paths over the seeds; absent without labels.
    pub purity: Option<Spread>,
    /// Normalised mutual information of paths and domains over the seeds; absent without labels.
    pub nmi: Option<Spread>,
    /// What says that a seed had too little data per path.
    pub warnings: Vec<String>,
}

impl Table {
    /// Of all that is finished.
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
            missing: results.missing.clone(),
        }
    }
}

/// The line of a run, router and evaluation.
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
    // The baseline as it is evaluated first: the same tokens, whatever the evaluation of this line.
    let base = |seed: u64| {
        let base = results.cells.iter().find(|cell| cell.run == results.baseline && cell.seed == seed)?;
        base.measurements.first().map(|found| found.perplexity)
    };
    let changes: Vec<f64> = perplexities
        .iter()
        .filter_map(|(seed, perplexity)| base(*seed).map(|base| perplexity / base - 1.0))
        .collect();
    let over = |get: fn(&Measurement) -> Option<f64>| {
        Spread::of(&measured.iter().filter_map(|(_, found)| get(found)).collect::<Vec<_>>())
    };
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
        bits_per_byte: over(|found| found.bits_per_byte),
        purity: over(|found| found.purity),
        nmi: over(|found| found.nmi),
        warnings,
    })
}

#[cfg(test)]
mod tests;
