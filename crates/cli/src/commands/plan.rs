//! `dipaco plan`: prints what a training will take, and the settings of the literature beside those of the run.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use dipaco_pipeline::dry_run::DryRun;
use dipaco_pipeline::plan::{PlanInputs, plan};
use dipaco_pipeline::vocabulary::of_run;
use dipaco_plan::{LevelPlan, MeasuredPlan, OuterRate, Plan, ShardPlan, TimePlan, WorkerLink};
use dipaco_telemetry::{Align, Table, human};

use crate::error::CliError;
use crate::number::positive;
use crate::output;
use crate::run_options::RunOptions;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco plan --config configs/paper/8x8.toml --corpus-tokens 156000000000
  dipaco plan --run runs/mine --workers 8 --speed 12000 --down 100 --up 20 --price 0.4
  dipaco plan --config my.toml --json
  dipaco plan --config my.toml --measured out/steps-400.json --measured out/steps-1600.json

The scaling laws are those of arXiv:2503.09799. They were fitted to dense models of 35M to 2.4B parameters with up to 8
replicas, and checked up to 10B. A module's paths in an outer step are taken as replicas, which is an extrapolation. With
train.paths_per_round that is about the mean over the rounds. For other sizes and numbers of paths the command has no rate,
batch or loss of these laws. The losses are those after 20 tokens per parameter.
The outer rate and momentum of the run stand beside those of the program's defaults, and beside the rate of that paper if the
momentum is the paper's, 0.9.
The command does not advise an H by quality. With --down and --up it has the smallest H with which a worker trains for 90 %
of the time.
--measured fits a law to runs of your own, on your text: loss by parameters, paths and training tokens of a path. With enough
sizes of runs it has a loss that no training reaches, and a gain of more paths that changes with the tokens. It predicts a run
only if one measured run is at least as large in all three, and one at most as large.";

#[derive(Debug, Args)]
pub(crate) struct PlanOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Training tokens of the corpus; the default is the number in the run's prepared text.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    corpus_tokens: Option<u64>,
    /// Number of workers.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    workers: u32,
    /// Training tokens per second of one worker; `dipaco train --dry-run` and `dipaco bench step` measure it.
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    speed: Option<f64>,
    /// Bandwidth to each worker in Mbit/s.
    #[arg(long, requires = "up", requires = "speed", value_name = "MBIT", value_parser = positive)]
    down: Option<f64>,
    /// Bandwidth from each worker in Mbit/s.
    #[arg(long, requires = "down", value_name = "MBIT", value_parser = positive)]
    up: Option<f64>,
    /// Price of an hour of a worker, in any currency: the plan has the cost of the inner steps.
    #[arg(long, requires = "speed", value_name = "PRICE", value_parser = positive)]
    price: Option<f64>,
    /// Results of an experiment (NAME.json), to whose runs a law of the loss is fitted; may be given several times.
    #[arg(long, value_name = "FILE")]
    measured: Vec<PathBuf>,
    /// Name of a run in these results; may be given several times. The default is all runs.
    #[arg(long, requires = "measured", value_name = "NAME")]
    measured_run: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the plan of a run. Starts nothing and writes nothing.
pub(crate) fn run(options: &PlanOptions) -> Result<(), CliError> {
    // Without --run it plans a run that need not exist.
    let (run, config) =
        if options.run.run.is_some() { options.run.open_existing()? } else { options.run.open()? };
    let sized = of_run(&run, &config)?;
    let sizes = DryRun::new(&sized.config, sized.source, options.workers as usize, 1, None)?;
    let link = options.down.zip(options.up).map(|(down, up)| WorkerLink { down: down * 1e6, up: up * 1e6 });
    let inputs = PlanInputs {
        corpus_tokens: options.corpus_tokens,
        tokens_per_second: options.speed,
        link,
        measured: options.measured.clone(),
        measured_runs: options.measured_run.clone(),
    };
    let plan = plan(&run, &sized.config, &sizes, inputs)?;
    let cost = options.price.zip(plan.time.as_ref()).map(|(price, time)| price * time.worker_hours);
    if options.json {
        return output::print_json(&serde_json::json!({ "sizes": sizes, "plan": plan, "cost": cost }));
    }
    output::print(&describe(&sizes, &plan, cost))
}

fn describe(sizes: &DryRun, plan: &Plan, cost: Option<f64>) -> String {
    let mut text = format!(
        "run {}: {} paths of {} parameters, {} in all modules\n\n",
        sizes.run,
        human::integer(sizes.paths.into()),
        human::count(sizes.parameters.path as f64),
        human::count(sizes.parameters.all_modules as f64),
    );
    let training = &plan.training;
    let _ = writeln!(
        text,
        "a path trains on {}{} tokens in {} rounds, {:.1} per parameter (DiPaCo 224, the scaling laws 20)",
        if training.at_most { "at most " } else { "" },
        human::count(training.text_tokens as f64),
        human::integer(training.rounds),
        training.tokens_per_parameter,
    );
    let _ = writeln!(text, "the seed takes {:.0} % of its steps (DiPaCo 27 %)", 100.0 * training.seed_share);
    text += &describe_shard(plan.shard.as_ref());
    text.push('\n');
    text += &levels(plan);
    if let Some(dense) = &plan.dense {
        let _ = writeln!(
            text,
            "\none dense model of a path's size, data-parallel, after 20 tokens per parameter: loss {:.3} to {:.3}",
            dense.loss, dense.loss_at_most
        );
    }
    let _ = writeln!(
        text,
        "\non the wire per round at most: {} to and {} from the busiest of {}",
        human::bytes(sizes.wire.to_worker),
        human::bytes(sizes.wire.from_worker),
        counted(sizes.workers as u64, "worker"),
    );
    text += &plan.measured.as_ref().map_or_else(String::new, describe_measured);
    text += &plan.time.as_ref().map_or_else(String::new, |time| describe_time(sizes, time, cost));
    for warning in &plan.warnings {
        let _ = write!(text, "\nwarning: {warning}");
    }
    if !plan.warnings.is_empty() {
        text.push('\n');
    }
    text
}

fn describe_shard(shard: Option<&ShardPlan>) -> String {
    let Some(shard) = shard else {
        return "give --corpus-tokens to see how often a path reads its shard\n".to_owned();
    };
    let documents =
        shard.documents.map(|documents| format!(" in {} documents", human::count(documents.round())));
    let mut text = format!(
        "a shard has {} tokens{}, and its path reads it {}\n",
        human::count(shard.tokens),
        documents.unwrap_or_default(),
        shard.times(),
    );
    if shard.at_most && shard.documents.is_none() {
        text += "the number of documents is unknown, and without train.packing each fills a sequence at least; for a \
                 closer bound run `dipaco prepare`, and plan with --run and without --corpus-tokens\n";
    }
    text
}

fn describe_measured(measured: &MeasuredPlan) -> String {
    let MeasuredPlan { law, prediction, refused } = measured;
    let exponents = law.quantities.iter().filter_map(|quantity| Some((quantity.name, quantity.exponent?)));
    let exponents = exponents.map(|(name, exponent)| format!("{name} to the {exponent:.3}"));
    let floor = if law.floor > 0.0 { format!("{:.2}, and above it ", law.floor) } else { String::new() };
    let mut text = format!(
        "\nloss of {} measured runs of {} sizes: {}as {}; off by {:.1} % at most for a size that is left out\n",
        law.runs,
        law.sizes,
        floor,
        exponents.collect::<Vec<_>>().join(", "),
        100.0 * law.error,
    );
    let _ = match prediction {
        Some(predicted) => writeln!(
            text,
            "this run: loss {:.3} ({:.3} to {:.3}), perplexity {:.1} ({:.1} to {:.1})",
            predicted.loss,
            predicted.loss_at_least,
            predicted.loss_at_most,
            predicted.loss.exp(),
            predicted.loss_at_least.exp(),
            predicted.loss_at_most.exp(),
        ),
        None => writeln!(text, "no prediction for this run: {}", refused.as_deref().unwrap_or_default()),
    };
    text
}

fn describe_time(sizes: &DryRun, time: &TimePlan, cost: Option<f64>) -> String {
    // A time beyond the clock's range is shown as the longest one.
    let shown =
        |seconds: f64| human::remaining(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    let mut text = format!(
        "\n{} of inner steps; the busiest of {} trains {}\n",
        shown(time.training_seconds),
        counted(sizes.workers as u64, "worker"),
        counted(time.paths_per_worker, "path"),
    );
    let _ = write!(text, "{:.1} worker-hours of inner steps in all", time.worker_hours);
    text += &cost.map_or_else(String::new, |cost| format!(", at a cost of {cost:.2}"));
    text.push('\n');
    if let (Some(transfers), Some(steps)) = (time.transfer_seconds, time.inner_steps_for_90_percent) {
        let _ = writeln!(text, "{} of transfers if training hides none of them", shown(transfers));
        let _ = writeln!(text, "with H = {steps:.0} a worker would still train for 90 % of the time");
    }
    let _ = writeln!(
        text,
        "{} in all, with {} of the seed on one worker's machine{}",
        shown(time.total_seconds),
        shown(time.seed_seconds),
        if time.transfer_seconds.is_some() { " and the transfers" } else { ", without transfers" },
    );
    text
}

fn counted(number: u64, word: &str) -> String {
    format!("{} {word}{}", human::integer(number), if number == 1 { "" } else { "s" })
}

/// The paths through each module of a level, and those in an outer step if some rest.
fn paths_through(level: &LevelPlan) -> String {
    let all = human::integer(level.paths_per_module.into());
    if level.paths_per_step == level.paths_per_module {
        return all;
    }
    format!("{all}, about {} in a step", human::integer(level.paths_per_step.into()))
}

fn levels(plan: &Plan) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("level", right),
        ("paths through each", right),
        ("outer rate, momentum", right),
        ("program's default", right),
        ("outer rate by the law", right),
        ("inner rate by the law", right),
        ("tokens of a step", right),
        ("loss after 20 tokens per parameter", right),
    ]);
    for level in &plan.levels {
        let law = level.prediction.as_ref();
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        let outer = |outer: Option<OuterRate>| {
            or_dash(outer.map(|OuterRate { rate, momentum }| format!("{rate:.2}, {momentum}")))
        };
        table.row([
            level.level.to_string(),
            paths_through(level),
            outer(level.outer_rate),
            outer(level.default_outer_rate),
            or_dash(level.literature_outer_rate.map(|rate| format!("{rate:.2}"))),
            or_dash(law.map(|law| format!("{:.1e}", law.learning_rate))),
            or_dash(level.advised_step_tokens.map(human::count)),
            or_dash(law.map(|law| format!("{:.3} to {:.3}", law.loss, law.loss_at_most))),
        ]);
    }
    let mut text =
        format!("{table}the law is that of arXiv:2503.09799, with the paths in an outer step as replicas\n");
    if plan.levels.iter().any(|level| level.prediction.is_some()) {
        text += "its losses are those of a token of C4 in the authors' vocabulary of 32,768: other text has others\n";
    }
    let mut told: Vec<&str> = Vec::new();
    for refused in plan.levels.iter().filter_map(|level| level.refused.as_deref()) {
        if !told.contains(&refused) {
            let _ = writeln!(text, "no values of the law: {refused}");
            told.push(refused);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_without_packing_are_a_bound_and_only_unknown_documents_have_an_advice() {
        let shard = ShardPlan { tokens: 1e6, documents: None, epochs: 2.4, at_most: true };
        let unknown = describe_shard(Some(&shard));
        assert!(
            unknown.contains("reads it at most 2.4 times") && unknown.contains("for a closer bound"),
            "{unknown}"
        );
        let known = describe_shard(Some(&ShardPlan { documents: Some(1000.0), ..shard }));
        assert!(known.contains("reads it at most 2.4 times") && !known.contains("closer bound"), "{known}");
    }
}
