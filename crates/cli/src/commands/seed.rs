//! `dipaco seed`: pretrains the dense path that every path starts from.

use clap::Args;
use dipaco_telemetry::{Progress, human};

use crate::device::DeviceOptions;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::run_options::RunOptions;
use crate::{output, runtime};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco seed --run runs/tiny                          pretrain, or continue an interrupted pretraining
  dipaco seed --run runs/tiny --set seed_model.steps=1000 --restart
  dipaco seed --run runs/other --from runs/tiny        use the seed of another run";

#[derive(Debug, Args)]
pub(crate) struct SeedArguments {
    #[command(flatten)]
    run: RunOptions,
    /// Start over, even if the run has a seed of another configuration or text.
    #[arg(long)]
    restart: bool,
    /// Copy the finished seed of the run in DIR instead of training one.
    #[arg(long, value_name = "DIR", conflicts_with = "restart")]
    from: Option<std::path::PathBuf>,
    #[command(flatten)]
    device: DeviceOptions,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &SeedArguments, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (run, config) = options.run.open_prepared()?;
    if let Some(from) = &options.from {
        let from = dipaco_pipeline::RunDirectory::new(from);
        return runtime::run(async { Ok(dipaco_pipeline::seed::adopt(&run, &config, &from).await?) });
    }
    let how = dipaco_pipeline::seed::SeedHow { restart: options.restart, device: options.device.open()? };
    let summary = runtime::run(async {
        Ok(dipaco_pipeline::seed::seed(&run, &config, how, progress, interrupt.flag()).await?)
    })?;
    if options.json {
        output::print_json(&summary)?;
    } else {
        let loss =
            summary.validation_loss.map(|loss| format!(", validation loss {loss:.4}")).unwrap_or_default();
        let done = if summary.new_steps == 0 { "was there already" } else { "is done" };
        let tokens = human::integer(summary.tokens);
        output::print(&format!("the seed {done}: {} steps{loss} ({tokens} tokens)\n", summary.step))?;
    }
    if summary.finished { Ok(()) } else { Err(CliError::Interrupted) }
}
