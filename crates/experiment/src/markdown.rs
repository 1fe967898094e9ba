//! A table as Markdown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use dipaco_telemetry::human;

use crate::spread::Spread;
use crate::sweep::SweepResult;
use crate::table::{ExperimentTable, TableRow};

/// Title of a column, whether its cells are numbers, and the cell of a row. A column without text in any row is left out.
type Column = (&'static str, bool, fn(&TableRow) -> String);

const COLUMNS: &[Column] = &[
    ("run", false, |row| row.run.clone()),
    ("router", false, |row| row.router.clone()),
    ("evaluation", false, |row| row.evaluation.clone()),
    ("paths", true, |row| row.facts.paths.to_string()),
    ("parameters of a path", true, |row| millions(row.facts.path_parameters)),
    ("of all modules", true, |row| millions(row.facts.all_parameters)),
    ("inner steps", true, |row| row.facts.steps.to_string()),
    ("tokens", true, |row| human::count(row.facts.tokens() as f64)),
    ("seconds", true, |row| seconds(row.facts.seconds)),
    ("MB on the wire", true, |row| row.facts.wire_bytes.map_or_else(String::new, megabytes)),
    ("perplexity", true, |row| with_deviation(&row.perplexity, 2)),
    ("by seed", true, |row| {
        let each = row.perplexities.iter().map(|(_, perplexity)| format!("{perplexity:.2}"));
        each.collect::<Vec<_>>().join(" / ")
    }),
    ("against the baseline", true, |row| row.change.as_ref().map_or_else(String::new, change)),
    ("bits per byte", true, |row| {
        row.bits_per_byte.as_ref().map_or_else(String::new, |bits| format!("{:.3}", bits.mean))
    }),
    ("against the baseline, by document", true, |row| {
        let each = row
            .differences
            .iter()
            .map(|(_, it)| format!("{:+.3} ({:+.3} to {:+.3})", it.bits_per_byte, it.low, it.high));
        each.collect::<Vec<_>>().join(" / ")
    }),
    ("bits per token of the division", true, |row| {
        row.token_gain.as_ref().map_or_else(String::new, |it| with_deviation(it, 3))
    }),
    ("purity", true, |row| row.purity.as_ref().map_or_else(String::new, |it| with_deviation(it, 3))),
    ("NMI", true, |row| row.nmi.as_ref().map_or_else(String::new, |it| with_deviation(it, 3))),
    ("ranking", true, |row| row.ranking.as_ref().map_or_else(String::new, |it| with_deviation(it, 3))),
];

fn millions(parameters: u64) -> String {
    let millions = parameters as f64 / 1e6;
    format!("{millions:.2}M")
}

fn megabytes(bytes: u64) -> String {
    let megabytes = bytes as f64 / 1e6;
    format!("{megabytes:.0}")
}

/// Nothing for results that hold no time.
fn seconds(seconds: f64) -> String {
    if seconds > 0.0 { format!("{seconds:.1}") } else { String::new() }
}

fn with_deviation(spread: &Spread, digits: usize) -> String {
    match spread.deviation {
        Some(deviation) => format!("{:.digits$} ± {deviation:.digits$}", spread.mean),
        None => format!("{:.digits$}", spread.mean),
    }
}

/// `-14.9 % (-15.8 to -14.0)`: the mean and its confidence interval.
fn change(spread: &Spread) -> String {
    let mean = format!("{:+.1} %", 100.0 * spread.mean);
    match spread.interval() {
        Some((low, high)) if low < high => format!("{mean} ({:+.1} to {:+.1})", 100.0 * low, 100.0 * high),
        _ => mean,
    }
}

/// The values of a sweep with their perplexities: `0.2: 91.30, 0.4: 90.12, 0.7: no result`.
fn swept_values(sweep: &SweepResult) -> String {
    let values = sweep.values.iter().map(|swept| match swept.perplexity {
        Some(perplexity) => format!("{}: {perplexity:.2}", swept.value),
        None => format!("{}: no result", swept.value),
    });
    values.collect::<Vec<_>>().join(", ")
}

/// The table of the sweeps, and a line for each value at the end of its range.
fn write_sweeps(f: &mut fmt::Formatter<'_>, sweeps: &[SweepResult]) -> fmt::Result {
    writeln!(f, "\nSweeps: the mean perplexity with each value, and the value that the run has.\n")?;
    writeln!(f, "| run | key | seeds | perplexity | chosen |\n|---|---|--:|---|--:|")?;
    let chosen = |sweep: &SweepResult| sweep.chosen.as_ref().map_or("none".into(), ToString::to_string);
    for sweep in sweeps {
        let seeds = sweep.seeds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let cells = [sweep.run.clone(), sweep.key.clone(), seeds, swept_values(sweep), chosen(sweep)];
        writeln!(f, "| {} |", cells.map(|cell| escape(&cell)).join(" | "))?;
    }
    let at_end: Vec<String> = sweeps
        .iter()
        .filter(|sweep| sweep.at_end)
        .map(|sweep| {
            let place = format!("{}, {} = {}", sweep.run, sweep.key, chosen(sweep));
            format!("- {place}: the best value is at the end of the range, so add values beyond it")
        })
        .collect();
    if at_end.is_empty() { Ok(()) } else { writeln!(f, "\n{}", at_end.join("\n")) }
}

/// The table of bits per byte: a line for each domain, a column for each row of the main table that has domains.
fn write_domains(f: &mut fmt::Formatter<'_>, rows: &[&TableRow]) -> fmt::Result {
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.domains.keys()).collect();
    let heads: Vec<String> = rows.iter().map(|row| escape(&row.label())).collect();
    writeln!(f, "\nBits per byte by domain.\n\n| domain | {} |", heads.join(" | "))?;
    writeln!(f, "|---|{}", "--:|".repeat(rows.len()))?;
    for name in names {
        let bits = rows.iter().map(|row| match row.domains.get(name) {
            Some(bits) => format!("{:.3}", bits.mean),
            None => String::new(),
        });
        writeln!(f, "| {} | {} |", escape(name), bits.collect::<Vec<_>>().join(" | "))?;
    }
    Ok(())
}

/// The table of perplexities during training: a line for each measurement of the first seed of each run that has several.
fn write_curves(f: &mut fmt::Formatter<'_>, rows: &[&TableRow]) -> fmt::Result {
    writeln!(
        f,
        "\nPerplexity during training, on each path's validation documents, of the first seed.\n\n\
         | run | seed | inner steps | tokens of all paths | seconds | MB on the wire | perplexity |\n\
         |---|--:|--:|--:|--:|--:|--:|"
    )?;
    for row in rows {
        let seed = row.perplexities.first().map_or_else(String::new, |(seed, _)| seed.to_string());
        for point in &row.facts.validation {
            let cells = [
                escape(&row.of_run()),
                seed.clone(),
                point.steps.to_string(),
                human::count(row.facts.tokens_at(point.steps) as f64),
                seconds(point.seconds.unwrap_or_default()),
                point.wire_bytes.map_or_else(String::new, megabytes),
                format!("{:.2}", point.loss.exp()),
            ];
            writeln!(f, "| {} |", cells.join(" | "))?;
        }
    }
    Ok(())
}

/// Escapes the characters that would end a cell of a table.
fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

impl ExperimentTable {
    /// A line if rows were trained by different programs or with different arithmetic: the same training then has other results.
    fn write_arithmetic(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut known: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for row in &self.rows {
            for trained_by in &row.trained_by {
                let rows = known.entry(trained_by).or_default();
                if !rows.contains(&row.of_run()) {
                    rows.push(row.of_run());
                }
            }
        }
        if known.len() < 2 {
            return Ok(());
        }
        let each = known.iter().map(|(trained_by, rows)| format!("- {trained_by}: {}", rows.join(", ")));
        writeln!(
            f,
            "\nNot all rows come from the same program and arithmetic, which also changes results a little:\n\n{}",
            each.collect::<Vec<_>>().join("\n")
        )
    }
}

impl fmt::Display for ExperimentTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "## {}\n", self.title)?;
        let shown: Vec<&Column> = COLUMNS
            .iter()
            .filter(|(name, _, cell)| *name == "run" || self.rows.iter().any(|row| !cell(row).is_empty()))
            .collect();
        let mut head = String::from("|");
        let mut rule = String::from("|");
        for (name, number, _) in &shown {
            let _ = write!(head, " {name} |");
            rule += if *number { "--:|" } else { "---|" };
        }
        writeln!(f, "{head}\n{rule}")?;
        for row in &self.rows {
            let cells: Vec<String> = shown.iter().map(|(_, _, cell)| escape(&cell(row))).collect();
            writeln!(f, "| {} |", cells.join(" | "))?;
        }
        let seeds = self.rows.iter().map(|row| row.perplexity.count).max().unwrap_or(0);
        if seeds > 1 {
            writeln!(
                f,
                "\nMean ± sample standard deviation over the seeds; changes against `{}` of the same seed: mean and 95 % \
                 confidence interval of the mean (Student's t, paired by seed).",
                self.baseline
            )?;
        }
        if self.rows.iter().any(|row| !row.differences.is_empty()) {
            writeln!(
                f,
                "\nBy document: bits per byte less those of `{}` of the same seed, seed by seed, each with the 95 % interval \
                 over the documents (Student's t, paired by document).",
                self.baseline
            )?;
        }
        for row in self.rows.iter().filter(|row| row.counts_other_tokens) {
            writeln!(
                f,
                "\n`{}` counts other tokens or documents than `{}`, so their perplexities can't be compared: give both the same \
                 `[evaluation]`.",
                row.label(),
                self.baseline
            )?;
        }
        self.write_arithmetic(f)?;
        let with_domains: Vec<&TableRow> = self.rows.iter().filter(|row| !row.domains.is_empty()).collect();
        if !with_domains.is_empty() {
            write_domains(f, &with_domains)?;
        }
        let mut with_curves: Vec<&TableRow> = Vec::new();
        for row in self.rows.iter().filter(|row| row.facts.validation.len() > 1) {
            if !with_curves.iter().any(|known| known.of_run() == row.of_run()) {
                with_curves.push(row);
            }
        }
        if !with_curves.is_empty() {
            write_curves(f, &with_curves)?;
        }
        if !self.sweeps.is_empty() {
            write_sweeps(f, &self.sweeps)?;
        }
        let warned = self.rows.iter().flat_map(|row| row.warnings.iter().map(move |text| (row, text)));
        let mut told: Vec<String> = Vec::new();
        for (row, warning) in warned {
            let router = if row.router.is_empty() { String::new() } else { format!(" · {}", row.router) };
            let line = format!("- {}{router}, {warning}", row.run);
            if !told.contains(&line) {
                told.push(line);
            }
        }
        if !told.is_empty() {
            writeln!(f, "\nLittle data per path:\n\n{}", told.join("\n"))?;
        }
        if !self.notes.is_empty() {
            writeln!(f, "\n{}", self.notes)?;
        }
        if !self.missing.is_empty() {
            writeln!(f, "\nNot finished: {}.", self.missing.join("; "))?;
        }
        Ok(())
    }
}
