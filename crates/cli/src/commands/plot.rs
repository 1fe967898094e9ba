//! `dipaco plot`: charts of runs and of experiments.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use dipaco_experiment::Results;

use crate::error::CliError;
use crate::output;
use crate::run_options::RunOptions;
use dipaco_pipeline::RunDirectory;
use dipaco_pipeline::charts::{Chart, RunCurves, domains, of_results, of_runs};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco plot --run runs/tiny                          loss, shards, outer gradients, into runs/tiny/plots
  dipaco plot --run runs/a --run runs/b --out pictures the loss of both in one chart
  dipaco evaluate --run runs/tiny --labels domains.jsonl.gz --json > tiny.json
  dipaco plot --evaluation tiny.json --out pictures    which domain goes to which path
  dipaco plot --results runs/experiments/paths.json --out pictures";

/// Options of `dipaco plot`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct PlotOptions {
    /// Directory of a run; may be repeated.
    #[arg(short, long, value_name = "DIR")]
    run: Vec<PathBuf>,
    /// Output of `dipaco evaluate --labels FILE --json`; may be repeated.
    #[arg(long, value_name = "FILE")]
    evaluation: Vec<PathBuf>,
    /// Results of `dipaco experiment run`; may be repeated.
    #[arg(long, value_name = "FILE")]
    results: Vec<PathBuf>,
    /// Folder of the pictures; the default is `plots` in the first run's directory.
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the names of the PNG files as JSON. Each has an SVG file beside it.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &PlotOptions) -> Result<(), CliError> {
    let out = match (&options.out, options.run.first()) {
        (Some(out), _) => out.clone(),
        (None, Some(run)) => run.join("plots"),
        (None, None) => {
            return Err(CliError::Usage {
                message: "there is no folder for the pictures".into(),
                remedy: "give --out DIR".into(),
            });
        }
    };
    let mut charts = Vec::new();
    let mut runs: Vec<(RunDirectory, RunCurves)> = Vec::new();
    for folder in &options.run {
        let mut curves = open(folder)?;
        let taken = |name: &str| runs.iter().any(|(_, other)| other.name == name);
        curves.1.name = free_name(&curves.1.name, folder, taken);
        charts.extend(of_cell(&curves.0, &curves.1.name)?);
        runs.push(curves);
    }
    charts.extend(of_runs(&runs)?);
    for file in &options.evaluation {
        let chart = domains(&stem(file), &read_json(file)?);
        charts.push(chart.ok_or_else(|| CliError::Usage {
            message: format!("{} has no documents by domain and path", file.display()),
            remedy: "make it with dipaco evaluate --labels FILE --json".into(),
        })?);
    }
    for file in &options.results {
        charts.extend(of_results(&Results::load(file)?));
    }
    if charts.is_empty() {
        let (why, remedy) = if options.run.is_empty() {
            ("these results have no finished cells", "finish cells with `dipaco experiment run`")
        } else {
            (
                "nothing was routed or trained in these runs",
                "run `dipaco route fit`, `dipaco route assign` and `dipaco train` first",
            )
        };
        return Err(CliError::Usage {
            message: format!("there is nothing to draw: {why}"),
            remedy: remedy.into(),
        });
    }
    let mut names = BTreeSet::new();
    for chart in &mut charts {
        chart.name = numbered(&chart.name, |name| names.contains(name));
        names.insert(chart.name.clone());
    }
    let files = charts.iter().map(|chart| Ok(chart.write(&out)?)).collect::<Result<Vec<_>, CliError>>()?;
    if options.json {
        return output::print_json(&files);
    }
    let names: Vec<String> = files.iter().map(|file| format!("{}\n", file.display())).collect();
    output::print(&names.concat())
}

/// The name of a run, or the first of these that is free: with the name of its folder, with a number after it.
fn free_name(name: &str, folder: &Path, taken: impl Fn(&str) -> bool) -> String {
    if !taken(name) {
        return name.to_owned();
    }
    numbered(&format!("{name} ({})", stem(folder)), taken)
}

/// The name, or the first of `name-2`, `name-3`… that is free.
fn numbered(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let others = (2u64..).map(|number| format!("{name}-{number}"));
    std::iter::once(name.to_owned()).chain(others).find(|name| !taken(name)).unwrap_or_default()
}

fn open(folder: &Path) -> Result<(RunDirectory, RunCurves), CliError> {
    if !RunDirectory::new(folder).config().exists() {
        return Err(CliError::Usage {
            message: format!("{} is no run: it has no config.toml", folder.display()),
            remedy: "name the directory of a run".into(),
        });
    }
    let options = RunOptions { run: Some(folder.to_owned()), config: None, overrides: Vec::new() };
    let (run, config) = options.open()?;
    let curves = RunCurves::read(&run, &config)?;
    Ok((run, curves))
}

/// The chart of domains of a cell of an experiment, if it was evaluated with labels.
fn of_cell(run: &RunDirectory, name: &str) -> Result<Option<Chart>, CliError> {
    let file = run.root().join("cell.json");
    if file.exists() { Ok(domains(name, &read_json(&file)?)) } else { Ok(None) }
}

fn read_json(file: &Path) -> Result<serde_json::Value, CliError> {
    let failed = |source| CliError::Io { action: "read", path: file.to_owned(), source };
    let bytes = std::fs::read(file).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))
}

/// The last part of a path, without its ending.
fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_pictures_of_one_name_are_told_apart() {
        let taken = ["tiny", "tiny (run)", "tiny (run)-2", "domains-eval"];
        let free =
            |name: &str, folder: &str| free_name(name, Path::new(folder), |name| taken.contains(&name));
        assert_eq!(free("small", "a/run"), "small");
        assert_eq!(free("tiny", "a/other"), "tiny (other)");
        assert_eq!(free("tiny", "c/run"), "tiny (run)-3");
        assert_eq!(numbered("domains-eval", |name| taken.contains(&name)), "domains-eval-2");
    }
}
