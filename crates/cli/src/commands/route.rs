//! `dipaco route`: fits the router, divides the text, shows the shards.

use clap::{Args, Subcommand};
use dipaco_routing::{ShardSet, inspect};
use dipaco_shards::Part;
use dipaco_telemetry::{Progress, human};

use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::run_options::RunOptions;
use crate::steps::error::StepError;
use crate::steps::weights::{Version, Weights};
use crate::{output, runtime, steps};

#[derive(Debug, Subcommand)]
pub(crate) enum RouteCommand {
    /// Compute the features that the router is fitted on, to divide that work among machines.
    #[command(after_help = FEATURES_EXAMPLES)]
    Features(FeaturesOptions),
    /// Fit the router on features of the seed.
    #[command(after_help = FIT_EXAMPLES)]
    Fit(FitOptions),
    /// Divide training and validation text among the paths.
    #[command(after_help = ASSIGN_EXAMPLES)]
    Assign(AssignOptions),
    /// Show the shards: sizes, balance, examples.
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(InspectOptions),
}

const FEATURES_EXAMPLES: &str = "\
Examples:
  dipaco route features --run runs/c4 --part 2/8       on the second of eight machines
  dipaco route fit --run runs/c4                       takes them, or says which part is missing

`route fit` alone does the same in one go. The parts are in routing/features; every machine needs data/train.h5 and the
seed in store/ (docs/scale.md).";
const FIT_EXAMPLES: &str = "\
Examples:
  dipaco route fit --run runs/tiny
  dipaco route fit --run runs/tiny --set routing.seed=1";
const ASSIGN_EXAMPLES: &str = "\
Examples:
  dipaco route assign --run runs/tiny
  dipaco route assign --run runs/c4 --part 2/8         on the second of eight machines, then without --part to write
                                                       the shards, or to hear which part is missing

A command that was stopped, or found the disk full, goes on when it is repeated. The decisions of the parts are in
routing/train/parts and routing/validation/parts (docs/scale.md).";
const INSPECT_EXAMPLES: &str = "\
Examples:
  dipaco route inspect --run runs/tiny --examples 2
  dipaco route inspect --run runs/tiny --json";

#[derive(Debug, Args)]
pub(crate) struct FeaturesOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Only part I of N of the documents.
    #[arg(long, value_name = "I/N")]
    part: Option<Part>,
}

#[derive(Debug, Args)]
pub(crate) struct FitOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Print what was done as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AssignOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Only decide about part I of N of the documents, and write no shard.
    #[arg(long, value_name = "I/N")]
    part: Option<Part>,
    /// Print what was done as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Example documents of each shard.
    #[arg(long, default_value_t = 1, value_name = "N")]
    examples: usize,
    /// Tokens shown of each example.
    #[arg(long, default_value_t = 48, value_name = "N")]
    example_tokens: usize,
    /// Show the validation shards instead.
    #[arg(long)]
    validation: bool,
    /// Print the statistics as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &RouteCommand, progress: &Progress) -> Result<(), CliError> {
    match command {
        RouteCommand::Features(options) => features(options, progress),
        RouteCommand::Fit(options) => fit(options, progress),
        RouteCommand::Assign(options) => assign(options, progress),
        RouteCommand::Inspect(options) => show(options),
    }
}

fn features(options: &FeaturesOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (run, config) = options.run.open_to_write()?;
    let config = steps::seed::with_vocabulary(&run, &config)?;
    let (flag, progress, part) = (interrupt.flag(), progress.clone(), options.part.unwrap_or_default());
    let documents = interrupt.judge(runtime::run(async {
        let weights = Weights::open(&run, &config, Version::Current).await?;
        runtime::blocking(move || {
            Ok(steps::route::features_part(&run, &config, &weights, part, &progress, &flag)?)
        })
        .await
    }))?;
    output::print(&format!("part {part} is done: features of {} documents\n", human::integer(documents)))
}

fn fit(options: &FitOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (run, config) = options.run.open_to_write()?;
    let config = steps::seed::with_vocabulary(&run, &config)?;
    let (flag, progress) = (interrupt.flag(), progress.clone());
    let (router, new) = interrupt.judge(runtime::run(async {
        let weights = Weights::open(&run, &config, Version::Current).await?;
        runtime::blocking(move || Ok(steps::route::fit(&run, &config, &weights, &progress, &flag)?)).await
    }))?;
    let fitted = router.fitted_on();
    if options.json {
        return output::print_json(&serde_json::json!({
            "paths": router.paths(), "hash": router.hash(), "new": new, "fitted_on": fitted,
        }));
    }
    let done = if new { "is fitted" } else { "was there already" };
    output::print(&format!(
        "the router {done}: {} paths, {} documents, loss {:.4}\n",
        router.paths(),
        human::integer(fitted.documents),
        fitted.loss
    ))
}

fn assign(options: &AssignOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (run, config) = options.run.open_to_write()?;
    let config = steps::seed::with_vocabulary(&run, &config)?;
    let (flag, progress) = (interrupt.flag(), progress.clone());
    if let Some(part) = options.part {
        let documents = interrupt.judge(runtime::run(async {
            let weights = Weights::open(&run, &config, Version::Current).await?;
            runtime::blocking(move || Ok(steps::route::assign_part(&run, &weights, part, &progress, &flag)?))
                .await
        }))?;
        let documents: u64 = documents.iter().sum();
        if options.json {
            return output::print_json(&serde_json::json!({ "part": part, "documents": documents }));
        }
        return output::print(&format!("part {part} is done: {} documents\n", human::integer(documents)));
    }
    let division = interrupt.judge(runtime::run(async {
        let weights = Weights::open(&run, &config, Version::Current).await?;
        runtime::blocking(move || Ok(steps::route::assign(&run, &weights, &progress, &flag)?)).await
    }))?;
    if options.json {
        return output::print_json(&serde_json::json!({
            "skipped": division.skipped,
            "train": division.train.manifest(),
            "validation": division.validation.as_ref().map(ShardSet::manifest),
        }));
    }
    if division.skipped {
        output::print("the shards were there already\n")?;
    }
    output::print(&format!("{}\n", inspect(&division.train, 0, 0)?.to_string().trim_end()))
}

fn show(options: &InspectOptions) -> Result<(), CliError> {
    let (run, _) = options.run.open()?;
    let folder = if options.validation { run.validation_shards() } else { run.train_shards() };
    if !folder.exists() {
        return Err(StepError::NotRouted { folder }.into());
    }
    let statistics = inspect(&ShardSet::open(&folder)?, options.examples, options.example_tokens)?;
    steps::route::check_tokenizer(&run)?;
    let tokenizer = steps::seed::tokenizer(&run)?;
    if options.json {
        return output::print_json(&statistics);
    }
    let mut text = format!("{}\n", statistics.to_string().trim_end());
    for row in &statistics.rows {
        for example in &row.examples {
            let words = tokenizer.decode(&example.tokens)?.replace('\n', "⏎");
            text += &format!("\npath {} · document {}\n  {words}\n", row.path, example.document);
        }
    }
    output::print(&text)
}
