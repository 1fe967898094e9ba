//! `dipaco simulate`: simulates large runs in virtual time.

mod bandwidth;
mod chaos;
mod goodput;
mod speeds;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use dipaco_plot::LineChart;
use dipaco_telemetry::Progress;

use self::bandwidth::BandwidthOptions;
use self::chaos::ChaosOptions;
use self::goodput::GoodputOptions;
use self::speeds::SpeedsOptions;
use crate::error::CliError;
use crate::output;
use dipaco_pipeline::charts::Chart;

#[derive(Debug, Subcommand)]
pub(crate) enum SimulateCommand {
    /// Compute the bandwidth between sites that each synchronisation scheme needs.
    #[command(after_help = bandwidth::EXAMPLES)]
    Bandwidth(BandwidthOptions),
    /// Compute the share of the chips' time that remains for training when chips fail.
    #[command(after_help = goodput::EXAMPLES)]
    Goodput(GoodputOptions),
    /// Compute the cost of learners of different speeds, by whom outer steps wait for.
    #[command(after_help = speeds::EXAMPLES)]
    Speeds(SpeedsOptions),
    /// Play small runs in which processes die, messages get lost and disks are slow, and check each of them.
    #[command(after_help = chaos::EXAMPLES)]
    Chaos(ChaosOptions),
}

/// How results are printed.
#[derive(Clone, Debug, Args)]
struct ReportOptions {
    /// Folder for a chart, as SVG and PNG; the default is no chart.
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

impl ReportOptions {
    /// Prints a table, or its content as JSON, and draws the chart if --out is given.
    fn report(
        &self,
        table: &str,
        content: &impl serde::Serialize,
        chart: impl FnOnce() -> Result<(&'static str, LineChart), CliError>,
    ) -> Result<(), CliError> {
        if self.json {
            output::print_json(content)?;
        } else {
            output::print(table)?;
        }
        if let Some(folder) = &self.out {
            let (name, chart) = chart()?;
            let picture = Chart::lines(name, &chart).write(folder)?;
            tracing::info!(picture = %picture.display(), "a chart is drawn");
        }
        Ok(())
    }
}

pub(crate) fn run(command: &SimulateCommand, progress: &Progress) -> Result<(), CliError> {
    match command {
        SimulateCommand::Bandwidth(options) => bandwidth::run(options),
        SimulateCommand::Goodput(options) => goodput::run(options),
        SimulateCommand::Speeds(options) => speeds::run(options),
        SimulateCommand::Chaos(options) => chaos::run(options, progress),
    }
}

/// A setting that can't be simulated, as wrong usage.
fn refused(error: &dipaco_simulate::SimulateError) -> CliError {
    CliError::Usage {
        message: error.to_string(),
        remedy: "`dipaco simulate --help` explains the options".into(),
    }
}
