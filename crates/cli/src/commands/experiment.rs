//! `dipaco experiment`: trains and evaluates the cells of experiment files, and prints their tables.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use dipaco_experiment::{Cell, Experiment, ExperimentTable, Results, Selection, Sweep};
use dipaco_model::{parameters, path_specs};
use dipaco_telemetry::{Align, Progress, human};
use dipaco_topology::Topology;
use serde::Serialize;

use crate::device::DeviceOptions;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::{output, runtime};
use dipaco_pipeline::PipelineError;
use dipaco_pipeline::experiment::{self, Cancel, ExperimentFolder, ExperimentOptions, results_file};
use dipaco_pipeline::import::PretrainedModel;
use dipaco_pipeline::{prepare, vocabulary};
use tokio::runtime::Handle;

#[derive(Debug, Subcommand)]
pub(crate) enum ExperimentCommand {
    /// Train and evaluate the cells of experiments. Finished cells are not repeated.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunExperiment),
    /// Print the table of finished cells.
    #[command(after_help = TABLE_EXAMPLES)]
    Table(TableOptions),
}

const RUN_EXAMPLES: &str = "\
Examples:
  dipaco experiment run configs/experiments/headline.toml --data text/train --validation text/validation
  dipaco experiment run configs/experiments/*.toml --data text/ --dry-run
  dipaco experiment run my.toml --data text/ --out runs/mine --seed 1 --run dense --run 4x4
  dipaco experiment run configs/experiments/finetune.toml --data text/ --import smollm2/

The folder of --out may be shared by several experiments: prepared text, seed models and cells that are the same are
made once. The configuration of a cell is what the file says; environment variables do not enter it.";
const TABLE_EXAMPLES: &str = "\
Examples:
  dipaco experiment table configs/experiments/headline.toml --out runs/experiments
  dipaco experiment table runs/experiments/headline.json     a file of results, wherever it lies";

/// Options of `dipaco experiment run`.
#[derive(Debug, Args)]
pub(crate) struct RunExperiment {
    /// Experiment files.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Text to train on, as for `dipaco prepare`; may be repeated.
    #[arg(long, required = true, value_name = "PATH")]
    data: Vec<PathBuf>,
    /// Text to evaluate on; may be repeated. The default is a part of --data.
    #[arg(long, value_name = "PATH")]
    validation: Vec<PathBuf>,
    /// Begin all runs with a pretrained Llama, as `dipaco seed --import` does: a folder in Hugging Face's format, or a GGUF
    /// file.
    #[arg(long, value_name = "FOLDER|FILE")]
    import: Option<PathBuf>,
    /// Label file, a JSON object with `url` and `domain` on each line. Adds results by domain, purity and NMI to the tables.
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Folder of cells and results.
    #[arg(short, long, default_value = "runs/experiments", value_name = "DIR")]
    out: PathBuf,
    /// Number of worker processes of each training.
    #[arg(short, long, env = "DIPACO_WORKERS", default_value_t = 2, value_name = "N")]
    workers: usize,
    #[command(flatten)]
    device: DeviceOptions,
    /// Only the run of this name, with its sweeps; may be repeated.
    #[arg(long = "run", value_name = "NAME")]
    runs: Vec<String>,
    /// Only this seed; may be repeated. Sweeps keep their own seeds.
    #[arg(long = "seed", value_name = "N")]
    seeds: Vec<u64>,
    /// Keep the training shards and moments of finished cells, which take most of their space.
    #[arg(long)]
    keep_all: bool,
    /// List the cells and train nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the tables, or with --dry-run the cells, as JSON.
    #[arg(long)]
    json: bool,
}

/// Options of `dipaco experiment table`.
#[derive(Debug, Args)]
pub(crate) struct TableOptions {
    /// Experiment files (.toml), or files of results (.json).
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Folder of `dipaco experiment run`.
    #[arg(short, long, default_value = "runs/experiments", value_name = "DIR")]
    out: PathBuf,
    /// Print the tables as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &ExperimentCommand, progress: &Progress) -> Result<(), CliError> {
    match command {
        ExperimentCommand::Run(options) => run_all(options, progress),
        ExperimentCommand::Table(options) => show(options),
    }
}

fn run_all(options: &RunExperiment, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    // Everything is read and checked before anything is trained.
    let mut experiments = Vec::new();
    let model = options.import.as_deref().map(PretrainedModel::open).transpose()?;
    for file in &options.files {
        let mut experiment = Experiment::load(file)?;
        if let Some(model) = &model {
            experiment = experiment.beginning_with(model.pretrained());
        }
        let selection = selection(&experiment, options)?;
        experiment::check(&experiment, &selection, model.is_some())?;
        experiments.push((experiment, selection));
    }
    if options.dry_run {
        let plans =
            experiments.iter().map(|(experiment, selection)| ExperimentPlan::of(experiment, selection));
        return print_plans(&plans.collect::<Result<Vec<_>, _>>()?, options.json);
    }
    check_inputs(options)?;
    let setup = ExperimentOptions {
        data: options.data.clone(),
        validation: options.validation.clone(),
        model,
        labels: options.labels.clone(),
        out: options.out.clone(),
        workers: options.workers,
        program: runtime::program()?,
        device: options.device.choice(),
        keep_all: options.keep_all,
    };
    let cancel = Cancel { flag: interrupt.flag(), token: interrupt.token() };
    let progress = progress.clone();
    let work = move || {
        let mut folder = ExperimentFolder::open(setup, &progress, cancel, Handle::current())?;
        let (mut tables, mut failed, mut of) = (Vec::new(), 0, 0);
        for (experiment, selection) in &experiments {
            let outcome = experiment::run(&mut folder, experiment, selection)?;
            failed += outcome.failed;
            of += outcome.cells;
            tables.push(ExperimentTable::of(&outcome.results));
        }
        Ok((tables, failed, of))
    };
    let (tables, failed, of) = interrupt.judge(runtime::run(runtime::blocking(work)))?;
    print_tables(&tables, options.json)?;
    if failed > 0 { Err(CliError::Cells { failed, of }) } else { Ok(()) }
}

/// Looks whether the text and the label file are there, and no store in the text. The folder of results keeps those of an earlier
/// command after a mistyped name.
fn check_inputs(options: &RunExperiment) -> Result<(), CliError> {
    prepare::check_inputs(&options.data, &options.validation)?;
    if let Some(labels) = &options.labels {
        let failed = |source| CliError::Io { action: "read", path: labels.clone(), source };
        std::fs::metadata(labels).map_err(failed)?;
    }
    Ok(())
}

/// The part of the experiment that the options select. Checks every configuration.
fn selection(experiment: &Experiment, options: &RunExperiment) -> Result<Selection, CliError> {
    let cells = experiment.cells()?;
    experiment.sweeps()?;
    for name in &options.runs {
        if !cells.iter().any(|cell| cell.run == *name) {
            return Err(CliError::Usage {
                message: format!("experiment {} has no run `{name}`", experiment.name()),
                remedy: "--dry-run lists its cells".into(),
            });
        }
    }
    let selected = Selection { runs: options.runs.clone(), ..Selection::default() };
    let seeds: BTreeSet<u64> = cells.iter().filter(|cell| selected.has(cell)).map(|cell| cell.seed).collect();
    if let Some(seed) = options.seeds.iter().find(|seed| !seeds.contains(*seed)) {
        let known: Vec<String> = seeds.iter().map(ToString::to_string).collect();
        return Err(CliError::Usage {
            message: format!("no selected run of experiment {} has seed {seed}", experiment.name()),
            remedy: format!("name one of their seeds: {}", known.join(", ")),
        });
    }
    Ok(Selection { seeds: options.seeds.clone(), ..selected })
}

/// The selected cells of an experiment, those of its sweeps first.
#[derive(Serialize)]
struct ExperimentPlan {
    name: String,
    title: String,
    cells: Vec<PlannedCell>,
}

/// What a cell amounts to.
#[derive(Serialize)]
struct PlannedCell {
    cell: String,
    paths: u32,
    path_parameters: usize,
    /// Inner steps of a path: the mean of the paths if they rest in some rounds.
    inner_steps: u64,
    /// Tokens of the inner steps of all paths, with padding.
    tokens: u64,
    evaluations: Vec<String>,
}

impl ExperimentPlan {
    fn of(experiment: &Experiment, selection: &Selection) -> Result<Self, CliError> {
        let (sweeps, own) = (selection.sweeps(experiment)?, selection.cells(experiment)?);
        let cells = sweeps.iter().flat_map(Sweep::cells).chain(&own).map(PlannedCell::of);
        Ok(Self {
            name: experiment.name().to_owned(),
            title: experiment.title().to_owned(),
            cells: cells.collect::<Result<_, _>>()?,
        })
    }
}

impl PlannedCell {
    fn of(cell: &Cell) -> Result<Self, CliError> {
        let config = vocabulary::expected(&cell.config)?.config;
        let topology = Topology::new(&config.topology, config.model.blocks).map_err(PipelineError::from)?;
        let (train, trained) = (&config.train, topology.trained_paths().len() as u64);
        let rounds_of_paths = train.paths_per_round.rounds_of_paths(trained, train.rounds);
        let steps = rounds_of_paths.saturating_mul(train.inner_steps);
        Ok(Self {
            cell: cell.label(),
            paths: topology.paths(),
            path_parameters: parameters(&path_specs(&config.model)),
            inner_steps: steps / trained.max(1),
            tokens: steps.saturating_mul(train.batch as u64 * train.sequence_tokens as u64),
            evaluations: cell.evaluations.iter().map(|evaluation| evaluation.name.clone()).collect(),
        })
    }
}

fn print_plans(plans: &[ExperimentPlan], json: bool) -> Result<(), CliError> {
    if json {
        return output::print_json(&plans);
    }
    for plan in plans {
        let mut table = dipaco_telemetry::Table::new(&[
            ("cell", Align::Left),
            ("paths", Align::Right),
            ("parameters of a path", Align::Right),
            ("inner steps", Align::Right),
            ("tokens in all", Align::Right),
            ("evaluations", Align::Left),
        ]);
        for cell in &plan.cells {
            table.row([
                cell.cell.clone(),
                cell.paths.to_string(),
                human::count(cell.path_parameters as f64),
                cell.inner_steps.to_string(),
                human::count(cell.tokens as f64),
                cell.evaluations.join(", "),
            ]);
        }
        output::print(&format!("{}: {} cells\n\n{table}\n", plan.title, plan.cells.len()))?;
    }
    Ok(())
}

fn show(options: &TableOptions) -> Result<(), CliError> {
    let mut tables = Vec::new();
    for file in &options.files {
        let results = if file.extension().is_some_and(|ending| ending == "toml") {
            results_of(file, &options.out)?
        } else {
            file.clone()
        };
        tables.push(ExperimentTable::of(&Results::load(&results)?));
    }
    print_tables(&tables, options.json)
}

/// The results of the experiment in `file`, which `dipaco experiment run` has put into the folder `out`.
fn results_of(file: &Path, out: &Path) -> Result<PathBuf, CliError> {
    let experiment = Experiment::load(file)?;
    let results = results_file(out, experiment.name());
    // Any other reason why they can't be read is told when they are read.
    if !matches!(results.try_exists(), Ok(false)) {
        return Ok(results);
    }
    Err(CliError::Usage {
        message: format!("experiment {} has no results in {} yet", experiment.name(), out.display()),
        remedy: format!(
            "run `dipaco experiment run {}` first, or name its folder with --out",
            file.display()
        ),
    })
}

fn print_tables(tables: &[ExperimentTable], json: bool) -> Result<(), CliError> {
    if json {
        return output::print_json(&tables);
    }
    let texts: Vec<String> = tables.iter().map(ToString::to_string).collect();
    output::print(&texts.join("\n"))
}
