//! `dipaco simulate goodput`: the share of the chips' time that remains for training.

use clap::Args;
use dipaco_plot::{Axis, Line, LineChart};
use dipaco_simulate::{Chips, LargeRun, Played, SimulatedScheme, play};
use dipaco_telemetry::{Align, Progress, ProgressUnit, Table, human};
use rayon::prelude::*;
use serde::Serialize;

use super::report::{ReportOptions, refused};
use crate::error::CliError;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco simulate goodput                              150,000 to 2.4 million chips, as in arXiv:2604.21428, table 1
  dipaco simulate goodput --chips 4096 --chips 8192 --learners 1 --learners 8 --chip-failure-days 90
  dipaco simulate goodput --learners 8 --quorum 0      the same learners when everyone waits for everyone
  dipaco simulate goodput --out pictures --json";

/// Size of the synchronised model. It does not matter here, because links are not simulated.
const PARAMETERS: f64 = 1e11;
const DAY: f64 = 86_400.0;

/// Options of `dipaco simulate goodput`.
#[derive(Debug, Args)]
pub(crate) struct GoodputOptions {
    /// Number of chips; may be repeated.
    #[arg(long, value_name = "N", default_values_t = [150_000, 300_000, 600_000, 1_200_000, 2_400_000])]
    chips: Vec<u64>,
    /// Number of learners that share the chips (Decoupled DiLoCo); may be repeated. 1 is data parallel training.
    #[arg(long, value_name = "M", default_values_t = [1, 2, 4, 8, 16])]
    learners: Vec<u32>,
    /// Mean time between failures of one chip.
    #[arg(long, value_name = "DAYS", default_value_t = 365.25)]
    chip_failure_days: f64,
    /// Number of chips that one failure removes.
    #[arg(long, value_name = "N", default_value_t = 64)]
    slice_chips: u64,
    /// Time until they return.
    #[arg(long, value_name = "SECONDS", default_value_t = 14_400.0)]
    return_seconds: f64,
    /// Time that an elastic learner loses when it continues with fewer chips, the interrupted step included.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    downscale_seconds: f64,
    /// Time that an elastic learner loses when chips return.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    upscale_seconds: f64,
    /// Time to restart training that is not elastic after a failure.
    #[arg(long, value_name = "SECONDS", default_value_t = 75.0)]
    restart_seconds: f64,
    /// Seconds of an inner step of a learner with all its chips.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    step_seconds: f64,
    /// H, inner steps between two synchronisations of the same parameters.
    #[arg(long, value_name = "N", default_value_t = 24)]
    inner_steps: u32,
    /// Number of fragments, which are sent in turn.
    #[arg(long, value_name = "N", default_value_t = 12)]
    fragments: u32,
    /// Number of inner steps during the transfer of a fragment.
    #[arg(long, value_name = "N", default_value_t = 2)]
    overlap: u32,
    /// K, the number of learners that an outer step needs. 0 means all learners, and learners then wait for outer steps too.
    #[arg(long, value_name = "K", default_value_t = 1)]
    quorum: u32,
    /// Upper bound on the time that an outer step with its quorum waits for further learners.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    grace_seconds: f64,
    /// Seed of the failures.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    report: ReportOptions,
}

/// A line of the table.
#[derive(Serialize)]
struct GoodputRow {
    learners: u32,
    elastic: bool,
    /// A value for each number of chips.
    cells: Vec<GoodputCell>,
}

#[derive(Serialize)]
struct GoodputCell {
    chips: u64,
    #[serde(flatten)]
    played: Played,
}

impl GoodputRow {
    fn name(&self) -> String {
        match (self.learners, self.elastic) {
            (1, false) => "data parallel".into(),
            (1, true) => "data parallel, elastic".into(),
            (learners, _) => format!("{learners} learners"),
        }
    }
}

impl GoodputOptions {
    fn run(&self, count: u64, learners: u32, elastic: bool) -> LargeRun {
        let scheme = if learners == 1 {
            SimulatedScheme::data_parallel()
        } else {
            let mut scheme = SimulatedScheme::decoupled(
                self.inner_steps,
                self.fragments,
                self.overlap,
                self.grace_seconds,
            );
            scheme.sync.quorum = self.quorum;
            scheme
        };
        let chips = Some(Chips {
            count,
            elastic,
            failure_seconds: self.chip_failure_days * DAY,
            slice: self.slice_chips,
            return_seconds: self.return_seconds,
            downscale_seconds: self.downscale_seconds,
            upscale_seconds: self.upscale_seconds,
            restart_seconds: self.restart_seconds,
        });
        let seed = self.seed;
        LargeRun { chips, seed, ..LargeRun::new(learners, scheme, PARAMETERS, self.step_seconds) }
    }

    /// A table of one value of each cell, in percent.
    fn table(&self, rows: &[GoodputRow], number: impl Fn(&Played) -> f64) -> Table {
        let heads: Vec<String> = self.chips.iter().map(|&chips| human::integer(chips)).collect();
        let mut columns = vec![("chips", Align::Left)];
        columns.extend(heads.iter().map(|head| (head.as_str(), Align::Right)));
        let mut table = Table::new(&columns);
        for row in rows {
            let cells = row.cells.iter().map(|cell| format!("{:.1} %", number(&cell.played) * 100.0));
            table.row(std::iter::once(row.name()).chain(cells));
        }
        table
    }
}

/// Plays a run for each line of the table and each number of chips.
fn rows(options: &GoodputOptions, progress: &Progress) -> Result<Vec<GoodputRow>, CliError> {
    let kinds = options.learners.iter().flat_map(|&learners| match learners {
        1 => vec![(1, false), (1, true)],
        learners => vec![(learners, true)],
    });
    let kinds: Vec<(u32, bool)> = kinds.collect();
    let cells = (kinds.len() as u64).saturating_mul(options.chips.len() as u64);
    let task = progress.task("goodput", Some(cells), ProgressUnit::Count("runs"));
    let mut rows = Vec::new();
    for (learners, elastic) in kinds {
        let cell = |&chips: &u64| {
            let played =
                play(&options.run(chips, learners, elastic)).map_err(|error| refused("goodput", &error))?;
            task.add(1);
            Ok(GoodputCell { chips, played })
        };
        let cells = options.chips.par_iter().map(cell).collect::<Result<_, CliError>>()?;
        rows.push(GoodputRow { learners, elastic, cells });
    }
    task.finish();
    Ok(rows)
}

pub(crate) fn run(options: &GoodputOptions, progress: &Progress) -> Result<(), CliError> {
    let rows = rows(options, progress)?;
    let text = format!(
        "Share of the chips' time that is spent on training that counts (goodput):\n\n{}\nShare of the time in which some \
         learner trains (uptime):\n\n{}",
        options.table(&rows, |played| played.goodput),
        options.table(&rows, |played| played.uptime)
    );
    options.report.report(&text, &rows, || {
        let line = |(colour, row): (usize, &GoodputRow)| {
            let points = row.cells.iter().map(|cell| (cell.chips as f64, cell.played.goodput * 100.0));
            Line::new(row.name(), points.collect()).in_colour(colour)
        };
        let chart = LineChart {
            title: "Goodput under failures".into(),
            x: Axis::logarithmic("chips"),
            y: Axis::linear("% of the chips' time"),
            lines: rows.iter().enumerate().map(line).collect(),
        };
        Ok(("goodput", chart))
    })
}
