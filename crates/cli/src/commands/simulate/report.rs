//! Printing the results of a simulation.

use std::path::PathBuf;

use clap::Args;
use dipaco_pipeline::charts::Chart;
use dipaco_plot::LineChart;
use dipaco_simulate::SimulateError;

use crate::error::CliError;
use crate::output;

/// How results are printed.
#[derive(Clone, Debug, Args)]
pub(super) struct ReportOptions {
    /// Folder for a chart, as SVG and PNG; the default is no chart.
    #[arg(short, long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Print the results as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl ReportOptions {
    /// Prints a table, or its content as JSON, and draws the chart if --out is given.
    pub(super) fn report(
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

/// The usage error of a setting that `dipaco simulate COMMAND` can't simulate.
pub(super) fn refused(command: &str, error: &SimulateError) -> CliError {
    CliError::Usage {
        message: error.to_string(),
        remedy: format!("`dipaco simulate {command} --help` explains the options"),
    }
}
