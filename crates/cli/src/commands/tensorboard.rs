//! `dipaco tensorboard`: the events of a run as curves for TensorBoard.

use std::path::PathBuf;

use clap::Args;
use dipaco_monitor::TensorBoard;

use crate::error::CliError;
use crate::output;
use crate::run_options::RunOptions;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco tensorboard --run runs/tiny                   into runs/tiny/tensorboard
  tensorboard --logdir runs/tiny/tensorboard           shows them, after pip install tensorboard
  dipaco train --run runs/tiny --tensorboard logs/tiny the same while the training runs";

/// Options of `dipaco tensorboard`.
#[derive(Debug, Args)]
pub(crate) struct TensorboardOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Folder of the files; the default is `tensorboard` in the run's directory.
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the folder and the number of values as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &TensorboardOptions) -> Result<(), CliError> {
    let (run, _) = options.run.open_existing()?;
    if !run.events().exists() {
        return Err(CliError::Usage {
            message: format!("{} has no events yet", run.root().display()),
            remedy: "run `dipaco seed` first".into(),
        });
    }
    let folder = options.out.clone().unwrap_or_else(|| run.root().join("tensorboard"));
    let values = TensorBoard::new(&run.events(), &folder).update()?;
    if options.json {
        return output::print_json(&serde_json::json!({ "folder": folder, "values": values }));
    }
    output::print(&format!("{values} values; show them with: tensorboard --logdir {}\n", folder.display()))
}
