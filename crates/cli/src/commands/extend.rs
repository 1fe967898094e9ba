//! `dipaco extend`: a new run with the modules of a finished one, and further paths or fewer.

use std::path::PathBuf;

use clap::Args;
use dipaco_pipeline::extend::{Extended, PathChange, extend};
use dipaco_pipeline::{PipelineError, Run, RunDirectory};
use dipaco_telemetry::{Align, Progress, Table};
use dipaco_topology::{AddedPaths, PathId};

use crate::error::CliError;
use crate::run_options::{RunOptions, with_lasting_changes};
use crate::{output, runtime};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco extend --run runs/more --from runs/mine --add 3              a path that begins as a copy of path 3
  dipaco prepare --run runs/more new-text/                            the new text, with the same tokenizer
  dipaco route fit --run runs/more && dipaco route assign --run runs/more
  dipaco train --run runs/more --workers 2                            trains the new path only

  dipaco extend --run runs/more --from runs/mine --add 3 --add 7 --level 1 --set train.rounds=4
                                                       two paths, each with a module of its own in level 1 only
  dipaco extend --run runs/less --from runs/more --remove 16          without path 16; complete at once";

/// Options of `dipaco extend`.
#[derive(Debug, Args)]
pub(crate) struct ExtendOptions {
    /// Directory of the new run.
    #[arg(short, long, env = "DIPACO_RUN", value_name = "DIR")]
    run: PathBuf,
    /// Directory of the finished run. It stays as it is.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Add a path that begins as a copy of this one; may be repeated.
    #[arg(long, value_name = "PATH", required_unless_present = "remove")]
    add: Vec<PathId>,
    /// Give new paths modules of their own in this level only; may be repeated. In the other levels they share the modules
    /// of the paths that they are copies of. A frozen level that is named here trains. The default is
    /// all levels that topology.levels does not freeze.
    // clap lets a missing --add pass beside --remove, which conflicts with it, so these conflict with --remove themselves.
    #[arg(long, value_name = "LEVEL", requires = "add", conflicts_with = "remove")]
    level: Vec<usize>,
    /// Give all new paths one common module in each --level, instead of one each.
    #[arg(long, requires = "level", conflicts_with = "remove")]
    share: bool,
    /// Train all modules and paths, but for frozen levels. Otherwise everything but the new modules keeps its bits.
    #[arg(long, requires = "add", conflicts_with = "remove")]
    train_all: bool,
    /// Leave out this path and the modules that only it uses; may be repeated. The other paths get new numbers.
    #[arg(long, value_name = "PATH", conflicts_with = "add")]
    remove: Vec<PathId>,
    /// Change a key of the finished run's configuration, as in --set train.rounds=4; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Print the paths as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &ExtendOptions, progress: &Progress) -> Result<(), CliError> {
    let file = RunDirectory::new(&options.from).config();
    if !file.exists() {
        return Err(PipelineError::NoRun { folder: options.from.clone() }.into());
    }
    // The finished run's configuration with the user's changes.
    let source = RunOptions {
        run: Some(options.from.clone()),
        config: Some(file),
        overrides: options.overrides.clone(),
    };
    let finished = Run::open(&options.from)?.config;
    let config = with_lasting_changes(&RunDirectory::new(&options.run), source.open()?.1, &finished)?;
    let change = if options.remove.is_empty() {
        PathChange::Add(AddedPaths {
            like: options.add.clone(),
            own_levels: options.level.clone(),
            share: options.share,
            train_all: options.train_all,
        })
    } else {
        PathChange::Remove(options.remove.clone())
    };
    let extended =
        runtime::run(async { Ok(extend(&options.run, &config, &options.from, &change, progress).await?) })?;
    if options.json { output::print_json(&extended) } else { output::print(&describe(options, &extended)) }
}

/// The paths in a table, and the next step.
fn describe(options: &ExtendOptions, extended: &Extended) -> String {
    let right = Align::Right;
    let mut table =
        Table::new(&[("path", right), ("copy of", right), ("modules", Align::Left), ("trains", Align::Left)]);
    for path in &extended.paths {
        let trained =
            if path.trained_modules.is_empty() { "kept".to_owned() } else { path.trained_modules.join(" ") };
        table.row([path.path.to_string(), path.copy_of.to_string(), path.modules.join(" "), trained]);
    }
    let (run, from) = (options.run.display(), options.from.display());
    let done = if extended.new { "begins with" } else { "began before with" };
    let next = if options.remove.is_empty() {
        format!("`dipaco prepare --run {run}` with the new text is next")
    } else {
        format!("it is complete: `dipaco serve --run {run}` serves it")
    };
    format!("{table}{run} {done} the modules of {from}; {next}\n")
}
