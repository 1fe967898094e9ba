//! `dipaco rollback`: takes a run back to an earlier round.

use clap::Args;
use dipaco_store::RollbackRecord;
use dipaco_telemetry::Progress;

use crate::error::CliError;
use crate::run_options::RunOptions;
use crate::{output, runtime};
use dipaco_pipeline::rollback::roll_back;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco token contributions gpu-3 --run runs/big      what a token contributed, and the round to go back to
  dipaco rollback --run runs/big --round 4             to the checkpoint after 4 complete rounds
  dipaco train --run runs/big --resume                 and on from there";

/// Options of `dipaco rollback`.
#[derive(Debug, Args)]
pub(crate) struct RollbackOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Complete rounds of the checkpoint to go back to. The run keeps the last train.checkpoints of them.
    #[arg(long, value_name = "N")]
    round: u32,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &RollbackOptions, progress: &Progress) -> Result<(), CliError> {
    let (run, _) = options.run.open()?;
    let rollback = runtime::run(async { Ok(roll_back(&run, options.round, progress).await?) })?;
    if options.json { output::print_json(&rollback) } else { output::print(&describe(&rollback)) }
}

/// A rollback in words.
pub(crate) fn describe(rollback: &RollbackRecord) -> String {
    let RollbackRecord { from, to, undone } = rollback;
    let undone = match undone.as_slice() {
        [] => String::new(),
        undone => {
            let rounds: Vec<_> = undone.iter().map(u32::to_string).collect();
            format!("; undone checkpoints: {}", rounds.join(", "))
        }
    };
    format!("went back to {to} complete rounds, from {from}{undone}\n")
}
