//! `dipaco route fit-transformer`: fine-tunes the seed to the router that decides during a text.

use clap::Args;
use dipaco_telemetry::Progress;

use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::run_options::RunOptions;
use crate::{output, runtime};
use dipaco_pipeline::transformer_router;
use dipaco_pipeline::{Version, Weights};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco route fit-transformer --run runs/tiny
  dipaco route fit-transformer --run runs/tiny --set transformer_router.steps=2000
  dipaco evaluate --run runs/tiny --reroute 64         evaluates with it";

#[derive(Debug, Args)]
pub(crate) struct FitTransformerOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &FitTransformerOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (unsaved, config) = options.run.open_unsaved()?;
    dipaco_pipeline::route::check_tokenizer(&unsaved.run)?;
    let (flag, progress) = (interrupt.flag(), progress.clone());
    let (router, new) = interrupt.judge(runtime::run(async {
        let weights = Weights::open(&unsaved.run, &config, Version::Current).await?;
        runtime::blocking(move || {
            let fitted = transformer_router::fit(&unsaved.run, &config, &weights, &progress, &flag)?;
            unsaved.save()?;
            Ok(fitted)
        })
        .await
    }))?;
    let fitted = router.fitted_on();
    if options.json {
        return output::print_json(&serde_json::json!({
            "paths": router.paths(), "new": new, "fitted_on": fitted,
        }));
    }
    let done = if new { "is fitted" } else { "was there already" };
    let mut text = format!(
        "the transformer router {done}: {} paths, {} reserved documents, weights of step {}",
        router.paths(),
        fitted.documents,
        fitted.steps
    );
    if let (Some(found), Some(blind)) = (fitted.held_out_loss, fitted.blind_loss) {
        text += &format!(", held-out loss {found:.3} nats (without reading: {blind:.3})");
    }
    output::print(&(text + "\n"))
}
