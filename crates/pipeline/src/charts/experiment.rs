//! Charts of an experiment's results.

use std::collections::BTreeMap;

use dipaco_experiment::{ExperimentTable, Facts, Results, TableRow, ValidationPoint};
use dipaco_plot::{Axis, DotChart, DotMark, DotRow, Line, LineChart};

use super::by_domain::by_domain;
use super::chart::{Chart, joined};

/// Charts of an experiment: the perplexities of all rows of its table, differences from the baseline by domain if the text has
/// labels, perplexity against the number of paths if it varies, and perplexity during training, against steps, tokens, seconds and
/// bytes, if it was measured.
pub fn of_results(results: &Results) -> Vec<Chart> {
    let table = ExperimentTable::of(results);
    let mut charts = Vec::new();
    if !table.rows.is_empty() {
        charts.push(Chart::dots(&table.name, &dots(&table)));
    }
    if let Some(chart) = by_domain(results) {
        charts.push(Chart::dots(format!("{}-domains", table.name), &chart));
    }
    if let Some(chart) = against_paths(&table) {
        charts.push(Chart::lines(format!("{}-paths", table.name), &chart));
    }
    for (name, axis, at) in TRAINING_AXES {
        if let Some(chart) = during_training(results, axis, at) {
            charts.push(Chart::lines(format!("{}-{name}", table.name), &chart));
        }
    }
    charts
}

/// The place of a measurement during training on an axis; `None` if unknown.
type Place = fn(&Facts, &ValidationPoint) -> Option<f64>;

/// Each chart of a training: the end of its file's name, its axis, and the place of a measurement.
const TRAINING_AXES: [(&str, &str, Place); 4] = [
    ("curves", "inner steps of each path", |_, point| Some(point.steps as f64)),
    ("tokens", "tokens of all paths", |facts, point| Some(facts.tokens_at(point.steps) as f64)),
    ("seconds", "seconds of training", |_, point| point.seconds),
    ("bytes", "MB between workers and coordinator", |_, point| {
        point.wire_bytes.map(|bytes| bytes as f64 / 1e6)
    }),
];

/// A line for each cell that was measured during training, in one colour for each run. Seeds have lines of their own, because a
/// run may lack the measurements of some rounds.
fn during_training(results: &Results, axis: &str, at: Place) -> Option<LineChart> {
    let mut runs: Vec<String> = Vec::new();
    let mut lines = Vec::new();
    for cell in &results.cells {
        let point = |point: &ValidationPoint| Some((at(&cell.facts, point)?, point.loss.exp()));
        let points: Vec<_> = cell.facts.validation.iter().filter_map(point).collect();
        if points.len() < 2 {
            continue;
        }
        let run = joined(&[&cell.run, &cell.router]);
        let known = runs.iter().position(|known| *known == run);
        // The legend has each run once.
        let name = if known.is_none() { run.clone() } else { String::new() };
        let colour = known.unwrap_or_else(|| {
            runs.push(run);
            runs.len() - 1
        });
        lines.push(Line { marked: true, ..Line::new(name, points).in_colour(colour) });
    }
    if lines.is_empty() {
        return None;
    }
    Some(LineChart {
        title: results.title.clone(),
        x: Axis::logarithmic(axis),
        y: Axis::logarithmic("perplexity on each path's validation documents"),
        lines,
    })
}

fn dots(table: &ExperimentTable) -> DotChart {
    let mut runs: Vec<&str> = Vec::new();
    for row in &table.rows {
        if !runs.contains(&row.run.as_str()) {
            runs.push(&row.run);
        }
    }
    let row = |row: &TableRow| DotRow {
        label: joined(&[&row.run, &row.router, &row.evaluation]),
        marks: vec![DotMark {
            values: row.perplexities.iter().map(|(_, perplexity)| *perplexity).collect(),
            colour: runs.iter().position(|run| *run == row.run).unwrap_or(0),
        }],
    };
    DotChart {
        title: table.title.clone(),
        x: Axis::linear("perplexity; each circle is a seed, the dot their mean"),
        rows: table.rows.iter().map(row).collect(),
        names: Vec::new(),
    }
}

/// A line for each router and evaluation that was measured with several numbers of paths. Replicas of one model are no paths.
fn against_paths(table: &ExperimentTable) -> Option<LineChart> {
    let has_paths = |row: &TableRow| row.facts.paths > 1 && row.facts.modules != 1;
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    for row in table.rows.iter().filter(|row| has_paths(row)) {
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
            if row.router == router && row.evaluation == evaluation && has_paths(row) {
                by_paths.entry(row.facts.paths).or_insert(row);
            }
        }
        if by_paths.len() < 2 {
            continue;
        }
        let name = joined(&[router, evaluation]);
        let name = if name.is_empty() { "routed".to_owned() } else { name };
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

#[cfg(test)]
mod tests {
    use dipaco_experiment::CellResult;

    use super::*;
    use crate::charts::testing::results;

    fn cell(run: &str, seed: u64, losses: &[(u64, f64)]) -> CellResult {
        let point = |&(steps, loss): &(u64, f64)| ValidationPoint {
            steps,
            loss,
            seconds: None,
            wire_bytes: (run == "b").then_some(steps * 1_000_000),
        };
        let validation = losses.iter().map(point).collect();
        let facts = Facts { paths: 4, step_tokens: 100, validation, ..Facts::default() };
        let (run, router, key) = (run.to_owned(), String::new(), String::new());
        CellResult { run, router, seed, key, facts, measurements: Vec::new() }
    }

    #[test]
    fn each_seed_has_a_curve_in_the_colour_of_its_run() {
        let results = results(
            "a",
            vec![
                cell("a", 1, &[(10, 1.0), (20, 0.5)]),
                cell("b", 1, &[(10, 2.0), (30, 0.0)]),
                cell("b", 2, &[(10, 2.0), (20, 1.0)]),
                cell("alone", 1, &[(10, 2.0)]),
            ],
        );
        let chart = during_training(&results, "steps", |_, point| Some(point.steps as f64)).unwrap();
        let names: Vec<_> = chart.lines.iter().map(|line| (line.name.as_str(), line.colour)).collect();
        assert_eq!(names, [("a", 0), ("b", 1), ("", 1)]);
        assert_eq!(chart.lines[1].points, [(10.0, 2f64.exp()), (30.0, 1.0)]);
        // The bytes of the first run are not known, and no seconds.
        let files: Vec<_> = of_results(&results).into_iter().map(|chart| chart.name).collect();
        assert_eq!(files, ["n-curves", "n-tokens", "n-bytes"]);
        let lines = |name: &str| {
            let (_, axis, at) = *TRAINING_AXES.iter().find(|axis| axis.0 == name).unwrap();
            during_training(&results, axis, at).unwrap().lines
        };
        assert_eq!(lines("bytes").len(), 2);
        assert_eq!(lines("tokens")[1].points, [(4_000.0, 2f64.exp()), (12_000.0, 1.0)]);
    }
}
