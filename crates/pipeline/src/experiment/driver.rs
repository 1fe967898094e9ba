//! All cells of an experiment, one after the other.

use std::error::Error as _;
use std::path::{Path, PathBuf};

use dipaco_experiment::{Cell, CellResult, Experiment, ExperimentTable, Measurement, Results};

use super::cell;
use super::folder::ExperimentFolder;
use super::record::write_json;
use crate::charts::of_results;
use crate::error::PipelineError;
use crate::files;

/// The end of an experiment.
#[derive(Clone, Debug)]
pub struct ExperimentOutcome {
    /// Results of the finished cells.
    pub results: Results,
    /// Number of cells that failed. Each failure is logged.
    pub failed: usize,
}

/// Finishes the given cells of an experiment, and writes results, table and charts into the folder after each. Cells that
/// are finished are not repeated. Blocks: call it from a thread that may, outside the tokio runtime.
///
/// # Errors
/// [`PipelineError::Interrupted`] when the work was asked to stop, and the errors of writing results. A cell that fails
/// does not end the experiment.
pub fn run(
    folder: &mut ExperimentFolder,
    experiment: &Experiment,
    cells: &[Cell],
) -> Result<ExperimentOutcome, PipelineError> {
    let mut results = Results {
        name: experiment.name().to_owned(),
        title: experiment.title().to_owned(),
        notes: experiment.notes().to_owned(),
        baseline: experiment.baseline().to_owned(),
        program: env!("CARGO_PKG_VERSION").to_owned(),
        command: command(experiment),
        missing: cells.iter().map(Cell::label).collect(),
        cells: Vec::new(),
    };
    let mut failed = 0;
    for (index, cell) in cells.iter().enumerate() {
        let place = format!("{}, cell {} of {}", experiment.name(), index + 1, cells.len());
        folder.say(&format!("{place}: {}", cell.label()))?;
        match cell::finish(folder, cell) {
            Ok(result) => {
                folder.progress.line(&describe(&result));
                results.missing.retain(|label| *label != cell.label());
                results.cells.push(result);
                publish(folder.out(), &results)?;
            }
            Err(error) if folder.cancel.requested() || matches!(error, PipelineError::Interrupted) => {
                return Err(PipelineError::Interrupted);
            }
            // The other cells may still succeed, and a night's results are worth more than an early end.
            Err(error) => {
                failed += 1;
                tracing::error!("{place}, {}, failed: {}", cell.label(), chain(&error));
            }
        }
    }
    publish(folder.out(), &results)?;
    for chart in of_results(&results) {
        chart.write(folder.out())?;
    }
    Ok(ExperimentOutcome { results, failed })
}

/// The results of an experiment in the folder `out`.
pub fn results_file(out: &Path, experiment: &str) -> PathBuf {
    out.join(format!("{experiment}.json"))
}

/// Writes results and table.
fn publish(out: &Path, results: &Results) -> Result<(), PipelineError> {
    let file = results_file(out, &results.name);
    write_json(&file, results)?;
    files::write(&file.with_extension("md"), ExperimentTable::of(results).to_string().as_bytes())
}

/// The command that makes an experiment's results, without the paths of this machine.
fn command(experiment: &Experiment) -> String {
    format!("dipaco experiment run {}.toml --data TRAIN --validation VALIDATION", experiment.name())
}

/// A cell's results in one line.
fn describe(result: &CellResult) -> String {
    let describe = |found: &Measurement| match found.evaluation.as_str() {
        "" => format!("perplexity {:.3}", found.perplexity),
        name => format!("{name} {:.3}", found.perplexity),
    };
    result.measurements.iter().map(describe).collect::<Vec<_>>().join(", ")
}

/// An error with its causes, in one line.
fn chain(error: &PipelineError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        // Some libraries repeat their source in their own message.
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        cause = next.source();
    }
    text
}
