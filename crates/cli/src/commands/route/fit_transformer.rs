//! `dipaco route fit-transformer`: fine-tunes the seed to the router that decides during a text.

use clap::Args;
use dipaco_telemetry::Progress;

use super::on_weights;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::output;
use crate::run_options::RunOptions;
use dipaco_pipeline::transformer_router;

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
    let opened = options.run.open_unsaved()?;
    dipaco_pipeline::route::check_tokenizer(&opened.0.run)?;
    let (flag, progress) = (interrupt.flag(), progress.clone());
    let (router, new) = on_weights(&interrupt, opened, move |unsaved, weights| {
        let fitted = transformer_router::fit(&unsaved.run, weights, &progress, &flag)?;
        unsaved.save()?;
        Ok(fitted)
    })?;
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
