//! `dipaco route`: fits the router and divides the text.

mod fit_transformer;
mod inspect;

use clap::{Args, Subcommand};
use dipaco_config::RunConfig;
use dipaco_shards::WorkPart;
use dipaco_telemetry::{Progress, human};

use crate::device::DeviceOptions;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::run_options::{RunOptions, UnsavedRun};
use crate::{output, runtime};
use dipaco_pipeline::route::{Division, assign_part, features_part};
use dipaco_pipeline::{PipelineError, Version, Weights};
use dipaco_pipeline::{phases, vocabulary};

#[derive(Debug, Subcommand)]
pub(crate) enum RouteCommand {
    /// Compute a part of the features that the router is fitted on.
    #[command(after_help = FEATURES_EXAMPLES)]
    Features(FeaturesOptions),
    /// Fit the router on features of the documents.
    #[command(after_help = FIT_EXAMPLES)]
    Fit(FitOptions),
    /// Divide training and validation text among the paths.
    #[command(after_help = ASSIGN_EXAMPLES)]
    Assign(AssignOptions),
    /// Let the paths score the reserved documents, which the next router is fitted on.
    #[command(after_help = SCORE_EXAMPLES)]
    Score(ScoreOptions),
    /// Fit the router of the next phase on the scores, and divide the text by it.
    #[command(after_help = REFIT_EXAMPLES)]
    Refit(RefitOptions),
    /// Fine-tune the seed into the transformer router, which chooses paths again within a text.
    #[command(after_help = fit_transformer::EXAMPLES)]
    FitTransformer(fit_transformer::FitTransformerOptions),
    /// Show the shards: sizes, balance, examples.
    #[command(after_help = inspect::EXAMPLES)]
    Inspect(inspect::InspectOptions),
}

const FEATURES_EXAMPLES: &str = "\
Examples:
  dipaco route features --run runs/c4 --part 2/8       on the second of eight machines
  dipaco route features --run runs/c4 --part 2/8 --device cuda:1   features of a seed, on the second GPU
  dipaco route fit --run runs/c4                       uses them, or names the missing part

`route fit` alone does all of it. The parts are in routing/features; every machine needs data/ and the seed in
store/ (docs/scale.md).";
const FIT_EXAMPLES: &str = "\
Examples:
  dipaco route fit --run runs/tiny
  dipaco route fit --run runs/tiny --set routing.seed=1";
const ASSIGN_EXAMPLES: &str = "\
Examples:
  dipaco route assign --run runs/tiny
  dipaco route assign --run runs/tiny --phase 1        by the router that `dipaco route refit` fitted
  dipaco route assign --run runs/c4 --part 2/8         on the second of eight machines; then without --part, which
                                                       lists their files or names the missing part

A command that was stopped, or found the disk full, continues when it is repeated. The parts write in routing/train
and routing/validation (docs/scale.md).";
const SCORE_EXAMPLES: &str = "\
Examples:
  dipaco route score --run runs/tiny                   every path; `dipaco train` does it where a phase begins
  dipaco route score --run runs/big --part 2/8         an eighth of the paths, on each of eight machines";
const REFIT_EXAMPLES: &str = "\
Examples:
  dipaco train --run runs/big --stop-at-phase          up to where the phase begins
  dipaco route score --run runs/big
  dipaco route refit --run runs/big
  dipaco train --run runs/big --resume                 continues with the new shards";

#[derive(Debug, Args)]
pub(crate) struct FeaturesOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Part I of N of the documents, counted from 1; `auto` is the part of the scheduler's array. The default is all
    /// documents.
    #[arg(long, value_name = "I/N", value_parser = crate::part::parse)]
    part: Option<WorkPart>,
    #[command(flatten)]
    device: DeviceOptions,
}

#[derive(Debug, Args)]
pub(crate) struct FitOptions {
    #[command(flatten)]
    run: RunOptions,
    #[command(flatten)]
    device: DeviceOptions,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AssignOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Phase of routing whose router divides the text.
    #[arg(long, default_value_t = 0, value_name = "N")]
    phase: u32,
    /// Only divide part I of N of the documents, counted from 1, into token files of the shards; `auto` is the part of the
    /// scheduler's array.
    #[arg(long, value_name = "I/N", value_parser = crate::part::parse)]
    part: Option<WorkPart>,
    #[command(flatten)]
    device: DeviceOptions,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ScoreOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Part I of N of the paths, counted from 1; `auto` is the part of the scheduler's array. Each machine needs the run's
    /// directory or a copy.
    #[arg(long, default_value_t, value_name = "I/N", value_parser = crate::part::parse)]
    part: WorkPart,
    #[command(flatten)]
    device: DeviceOptions,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RefitOptions {
    #[command(flatten)]
    run: RunOptions,
    #[command(flatten)]
    device: DeviceOptions,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &RouteCommand, progress: &Progress) -> Result<(), CliError> {
    match command {
        RouteCommand::Features(options) => features(options, progress),
        RouteCommand::Fit(options) => fit(options, progress),
        RouteCommand::Assign(options) => assign(options, progress),
        RouteCommand::Score(options) => score(options, progress),
        RouteCommand::Refit(options) => refit(options, progress),
        RouteCommand::FitTransformer(options) => fit_transformer::run(options, progress),
        RouteCommand::Inspect(options) => inspect::run(options),
    }
}

/// Opens the weights of a run, and takes a step with them on a thread outside the event loop.
fn on_weights<T: Send + 'static>(
    interrupt: &Interrupt,
    (unsaved, config): (UnsavedRun, RunConfig),
    step: impl FnOnce(&UnsavedRun, &Weights) -> Result<T, PipelineError> + Send + 'static,
) -> Result<T, CliError> {
    interrupt.judge(runtime::run(async {
        let weights = Weights::open(&unsaved.run, &config, Version::Current).await?;
        runtime::blocking(move || Ok(step(&unsaved, &weights)?)).await
    }))
}

/// Refuses a phase of routing that the run does not have.
fn check_phase(phase: u32, config: &RunConfig) -> Result<(), CliError> {
    let last = config.routing.phases.len();
    if phase as usize <= last {
        return Ok(());
    }
    Err(CliError::Usage {
        message: format!("there is no phase {phase}: this run has phases 0 to {last}"),
        remedy: "name one of them with --phase".into(),
    })
}

fn features(options: &FeaturesOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (flag, progress, part) = (interrupt.flag(), progress.clone(), options.part.unwrap_or_default());
    let device = options.device.choice();
    let documents = on_weights(&interrupt, options.run.open_unsaved()?, move |unsaved, weights| {
        let documents = features_part(&unsaved.run, weights, device, part, &progress, &flag)?;
        unsaved.save()?;
        Ok(documents)
    })?;
    output::print(&format!("part {part} is done: features of {} documents\n", human::integer(documents)))
}

fn fit(options: &FitOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (flag, progress, device) = (interrupt.flag(), progress.clone(), options.device.choice());
    let (router, new) = on_weights(&interrupt, options.run.open_unsaved()?, move |unsaved, weights| {
        let fitted = dipaco_pipeline::route::fit(&unsaved.run, weights, device, &progress, &flag)?;
        unsaved.save()?;
        Ok(fitted)
    })?;
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
    let opened = options.run.open_unsaved()?;
    check_phase(options.phase, &opened.1)?;
    let (flag, progress, phase) = (interrupt.flag(), progress.clone(), options.phase);
    let device = options.device.choice();
    if let Some(part) = options.part {
        let documents = on_weights(&interrupt, opened, move |unsaved, weights| {
            let documents = assign_part(&unsaved.run, phase, weights, device, part, &progress, &flag)?;
            unsaved.save()?;
            Ok(documents)
        })?;
        let documents: u64 = documents.iter().sum();
        if options.json {
            return output::print_json(&serde_json::json!({ "part": part, "documents": documents }));
        }
        return output::print(&format!("part {part} is done: {} documents\n", human::integer(documents)));
    }
    let division = on_weights(&interrupt, opened, move |unsaved, weights| {
        let run = &unsaved.run;
        let division = dipaco_pipeline::route::assign(run, phase, weights, device, &progress, &flag)?;
        unsaved.save()?;
        Ok(division)
    })?;
    print_division(&division, options.json)
}

fn print_division(division: &Division, json: bool) -> Result<(), CliError> {
    if json {
        return output::print_json(&serde_json::json!({
            "skipped": division.skipped,
            "train": division.train.manifest(),
            "validation": division.validation.as_ref().map(dipaco_routing::ShardSet::manifest),
        }));
    }
    if division.skipped {
        output::print("the shards were there already\n")?;
    }
    output::print(&format!("{}\n", dipaco_routing::inspect(&division.train, 0, 0)?.to_string().trim_end()))
}

fn score(options: &ScoreOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (run, config) = options.run.open_existing()?;
    let config = vocabulary::with_vocabulary(&run, &config)?;
    let (flag, progress, part) = (interrupt.flag(), progress.clone(), options.part);
    let device = options.device.choice();
    let scored = interrupt.judge(runtime::run(async {
        let weights = Weights::open(&run, &config, Version::Current).await?;
        let score = move || Ok(phases::score(&run, &weights, device, part, &progress, &flag)?);
        runtime::blocking(score).await
    }))?;
    if options.json {
        return output::print_json(&scored);
    }
    output::print(&format!(
        "{} paths of phase {} scored {} documents of {} tokens; {} had been scored before\n",
        scored.new,
        scored.phase,
        human::integer(scored.documents),
        human::integer(scored.tokens),
        scored.skipped
    ))
}

fn refit(options: &RefitOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (flag, progress, device) = (interrupt.flag(), progress.clone(), options.device.choice());
    let (router, division) = on_weights(&interrupt, options.run.open_unsaved()?, move |unsaved, weights| {
        let run = &unsaved.run;
        let (router, _) = phases::refit(run, weights, device, &progress, &flag)?;
        // A training that goes on fits this router again, unless it finds these settings.
        unsaved.save()?;
        let phase = weights.manifest().phase() + 1;
        let division = dipaco_pipeline::route::assign(run, phase, weights, device, &progress, &flag)?;
        Ok((router, division))
    })?;
    if !options.json {
        let documents = human::integer(router.fitted_on().documents);
        output::print(&format!("the router is fitted on {documents} reserved documents\n"))?;
    }
    print_division(&division, options.json)
}
