//! Charts of an experiment's results.

use std::collections::BTreeMap;

use dipaco_experiment::{ExperimentTable, Results, TableRow};
use dipaco_plot::{Axis, DotChart, DotRow, Line, LineChart};

use super::chart::Chart;

/// Charts of an experiment: the perplexities of all rows of its table, and perplexity against the number of paths if it
/// varies.
pub fn of_results(results: &Results) -> Vec<Chart> {
    let table = ExperimentTable::of(results);
    let mut charts = Vec::new();
    if !table.rows.is_empty() {
        charts.push(Chart::dots(&table.name, &dots(&table)));
    }
    if let Some(chart) = against_paths(&table) {
        charts.push(Chart::lines(format!("{}-paths", table.name), &chart));
    }
    charts
}

fn label(row: &TableRow) -> String {
    let parts = [&row.run, &row.router, &row.evaluation];
    parts.into_iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(" · ")
}

fn dots(table: &ExperimentTable) -> DotChart {
    let mut runs: Vec<&str> = Vec::new();
    for row in &table.rows {
        if !runs.contains(&row.run.as_str()) {
            runs.push(&row.run);
        }
    }
    let row = |row: &TableRow| DotRow {
        label: label(row),
        values: row.perplexities.iter().map(|(_, perplexity)| *perplexity).collect(),
        colour: runs.iter().position(|run| *run == row.run).unwrap_or(0),
    };
    DotChart {
        title: table.title.clone(),
        x: Axis::linear("perplexity; each circle is a seed, the dot their mean"),
        rows: table.rows.iter().map(row).collect(),
    }
}

/// A line for each router and evaluation that was measured with several numbers of paths.
fn against_paths(table: &ExperimentTable) -> Option<LineChart> {
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    for row in table.rows.iter().filter(|row| row.facts.paths > 1) {
        if !kinds.contains(&(&row.router, &row.evaluation)) {
            kinds.push((&row.router, &row.evaluation));
        }
    }
    let mut lines = Vec::new();
    let mut ticks = Vec::new();
    for (router, evaluation) in kinds {
        // Of several runs with as many paths the first counts: a line shows one thing.
        let mut by_paths: BTreeMap<u32, &TableRow> = BTreeMap::new();
        for row in &table.rows {
            if row.router == router && row.evaluation == evaluation && row.facts.paths > 1 {
                by_paths.entry(row.facts.paths).or_insert(row);
            }
        }
        if by_paths.len() < 2 {
            continue;
        }
        let name = [router, evaluation].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
        let name = if name.is_empty() { "routed".to_owned() } else { name.join(" · ") };
        let points = by_paths.iter().map(|(paths, row)| (f64::from(*paths), row.perplexity.mean));
        let line = Line::new(name, points.collect()).in_colour(lines.len() + 1);
        let band = by_paths.values().map(|row| (row.perplexity.lowest, row.perplexity.highest)).collect();
        ticks.extend(by_paths.keys().map(|paths| f64::from(*paths)));
        lines.push(Line { marked: true, band, ..line });
    }
    if lines.is_empty() {
        return None;
    }
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    if let Some(base) = table.rows.iter().find(|row| row.run == table.baseline && row.facts.paths == 1) {
        let ends = [ticks[0], ticks[ticks.len() - 1]];
        let points = ends.map(|paths| (paths, base.perplexity.mean));
        lines.push(Line { dashed: true, ..Line::new(&*base.run, points.to_vec()) });
    }
    Some(LineChart {
        title: table.title.clone(),
        x: Axis::logarithmic("paths").with_ticks(ticks),
        y: Axis::linear("perplexity; mean and range over the seeds"),
        lines,
    })
}
