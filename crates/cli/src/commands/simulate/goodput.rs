//! `dipaco simulate goodput`.

use clap::Args;
use dipaco_plot::{Axis, Line, LineChart};
use dipaco_simulate::{Fleet, Goodput, goodput};
use dipaco_telemetry::{Align, Table, human};
use serde::Serialize;

use super::{Telling, refused};
use crate::error::CliError;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco simulate goodput                              150,000 to 2.4 million chips, as in arXiv:2604.21428, table 1
  dipaco simulate goodput --chips 4096 --chips 8192 --learners 1 --learners 8 --chip-failure-days 90
  dipaco simulate goodput --out pictures --json";

const DAY: f64 = 86_400.0;

/// Options of `dipaco simulate goodput`.
#[derive(Debug, Args)]
pub(crate) struct GoodputOptions {
    /// Chips in all; may be repeated.
    #[arg(long, value_name = "N", default_values_t = [150_000, 300_000, 600_000, 1_200_000, 2_400_000])]
    chips: Vec<u64>,
    /// Learners that share them and wait for nobody; may be repeated. 1 is data parallel training.
    #[arg(long, value_name = "M", default_values_t = [1, 2, 4, 8, 16])]
    learners: Vec<u32>,
    /// Mean time between failures of one chip.
    #[arg(long, value_name = "DAYS", default_value_t = 365.25)]
    chip_failure_days: f64,
    /// Chips that one failure takes away.
    #[arg(long, value_name = "N", default_value_t = 64)]
    slice_chips: u64,
    /// Time until they are back.
    #[arg(long, value_name = "SECONDS", default_value_t = 14_400.0)]
    return_seconds: f64,
    /// What going on with fewer chips costs an elastic learner.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    downscale_seconds: f64,
    /// What taking chips back costs an elastic learner.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    upscale_seconds: f64,
    /// What a failure costs training that is not elastic.
    #[arg(long, value_name = "SECONDS", default_value_t = 75.0)]
    restart_seconds: f64,
    /// Seed of the failures.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    telling: Telling,
}

/// A line of the table.
#[derive(Serialize)]
struct Row {
    learners: u32,
    elastic: bool,
    /// One for each number of chips.
    cells: Vec<Cell>,
}

#[derive(Serialize)]
struct Cell {
    chips: u64,
    #[serde(flatten)]
    found: Goodput,
}

impl Row {
    fn name(&self) -> String {
        match (self.learners, self.elastic) {
            (1, false) => "data parallel".into(),
            (1, true) => "data parallel, elastic".into(),
            (learners, _) => format!("{learners} learners"),
        }
    }
}

impl GoodputOptions {
    fn fleet(&self, chips: u64, learners: u32, elastic: bool) -> Fleet {
        Fleet {
            chips,
            learners,
            elastic,
            chip_failure_seconds: self.chip_failure_days * DAY,
            slice_chips: self.slice_chips,
            return_seconds: self.return_seconds,
            downscale_seconds: self.downscale_seconds,
            upscale_seconds: self.upscale_seconds,
            restart_seconds: self.restart_seconds,
            seconds: 0.0,
            seed: self.seed,
        }
    }
}

pub(crate) fn run(options: &GoodputOptions) -> Result<(), CliError> {
    let kinds = options.learners.iter().flat_map(|&learners| match learners {
        1 => vec![(1, false), (1, true)],
        learners => vec![(learners, true)],
    });
    let mut rows = Vec::new();
    for (learners, elastic) in kinds {
        let mut cells = Vec::new();
        for &chips in &options.chips {
            let found = goodput(&options.fleet(chips, learners, elastic)).map_err(|error| refused(&error))?;
            cells.push(Cell { chips, found });
        }
        rows.push(Row { learners, elastic, cells });
    }
    let heads: Vec<String> = options.chips.iter().map(|&chips| human::integer(chips)).collect();
    let mut columns = vec![("chips", Align::Left)];
    columns.extend(heads.iter().map(|head| (head.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    for row in &rows {
        let cells = row.cells.iter().map(|cell| format!("{:.1} %", cell.found.goodput * 100.0));
        table.row(std::iter::once(row.name()).chain(cells));
    }
    let text = format!("Share of the chips' time that is spent on training (goodput):\n\n{table}");
    options.telling.tell(&text, &rows, || {
        let line = |(colour, row): (usize, &Row)| {
            let points = row.cells.iter().map(|cell| (cell.chips as f64, cell.found.goodput * 100.0));
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
