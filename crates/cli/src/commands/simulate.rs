//! `dipaco simulate`: what large runs would do, in virtual time.

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
    /// The bandwidth between sites that keeps compute busy, for each synchronisation scheme.
    #[command(after_help = bandwidth::EXAMPLES)]
    Bandwidth(BandwidthOptions),
    /// The share of all chips' time that is left for training when chips fail.
    #[command(after_help = goodput::EXAMPLES)]
    Goodput(GoodputOptions),
    /// What learners of different speeds cost each other, for whom outer steps wait for.
    #[command(after_help = speeds::EXAMPLES)]
    Speeds(SpeedsOptions),
    /// Synchronisation while processes die, messages are lost and disks are slow: thousands of small runs, each checked.
    #[command(after_help = chaos::EXAMPLES)]
    Chaos(ChaosOptions),
}

/// How results are told.
#[derive(Clone, Debug, Args)]
struct Telling {
    /// Draw a chart into this folder, as SVG and PNG.
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

impl Telling {
    /// Prints a table, or its content as JSON; draws a chart when one is wanted.
    fn tell(
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
