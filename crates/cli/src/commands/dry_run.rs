//! `dipaco train --dry-run`: prints the plan of a training.

use std::fmt::Write as _;
use std::time::Duration;

use dipaco_telemetry::{Align, Progress, Table, human};

use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::output;
use crate::run_options::RunOptions;
use dipaco_pipeline::dry_run::{DryRun, Memory, RoundSpan, measured};
use dipaco_pipeline::limits;
use dipaco_pipeline::machine_memory::machine_memory;
use dipaco_pipeline::train::{threads_per_worker, useful_workers};
use dipaco_pipeline::vocabulary::{SizedConfig, of_run};

/// Prints the plan of a training. Starts nothing and writes nothing.
pub(crate) fn run(
    options: &RunOptions,
    workers: usize,
    json: bool,
    progress: &Progress,
) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    // A run that only --run names has its configuration there. Without it the plan would be that of another run.
    let is_named = options.run.is_some() && options.config.is_none();
    let (run, config) = if is_named { options.open_existing()? } else { options.open()? };
    let SizedConfig { config, source: vocabulary_from } = of_run(&run, &config)?;
    let workers = useful_workers(&config, workers)?;
    let threads = threads_per_worker(&config, workers);
    let available = machine_memory().map(|memory| memory.available);
    let plan = DryRun::new(&config, vocabulary_from, workers, threads, available)?;
    limits::threads(threads)?;
    let speed = measured(&config, available, progress, || interrupt.is_set())?;
    let plan = plan.with_speed(&config, speed);
    if json { output::print_json(&plan) } else { output::print(&describe(&plan)) }
}

fn describe(plan: &DryRun) -> String {
    let mut text = format!(
        "run {}: {} paths through {} modules, V {} (from {})\n\n",
        plan.run,
        human::integer(plan.paths.into()),
        human::integer(plan.levels.iter().map(|level| u64::from(level.modules)).sum()),
        human::integer(plan.vocab_size as u64),
        plan.vocab_size_from,
    );
    text += &levels(plan);
    let _ = writeln!(
        text,
        "\na path has {} parameters{}, all modules together {}\n",
        human::count(plan.parameters.path as f64),
        if plan.parameters.trained < plan.parameters.path {
            format!(", of which {} train", human::count(plan.parameters.trained as f64))
        } else {
            String::new()
        },
        human::count(plan.parameters.all_modules as f64)
    );
    text += &memory_table(&plan.memory);
    text += &verdict(plan);
    let per_round = per_round(plan);
    let _ = writeln!(
        text,
        "\non the wire {} to and {} from each worker {per_round}",
        human::bytes(plan.wire.to_worker),
        human::bytes(plan.wire.from_worker)
    );
    if plan.kept_states > 0 {
        let kept = human::bytes(plan.kept_states);
        let _ = writeln!(text, "a worker keeps {kept} of states of its other paths on its disk");
    }
    text += &rounds(plan);
    let _ = writeln!(
        text,
        "tokens: {} per inner step of a path, {} {per_round}, {} in all",
        human::integer(plan.tokens.step),
        human::count(plan.tokens.round as f64),
        human::count(plan.tokens.all as f64)
    );
    let plural = if plan.threads_per_worker == 1 { "" } else { "s" };
    match (plan.speed, plan.seconds) {
        (Some(speed), Some(seconds)) => {
            let _ = writeln!(
                text,
                "speed: {} for a worker of {} thread{plural} ({})",
                human::rate(speed.tokens_per_second, "tokens"),
                plan.threads_per_worker,
                plan.speed_from
            );
            // A time beyond the clock's range is shown as the longest one.
            let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
            let _ = writeln!(
                text,
                "time: {} of inner steps with {} worker{}; {} {per_round}",
                human::remaining(time),
                plan.workers,
                if plan.workers == 1 { "" } else { "s" },
                per_worker(plan.paths_per_worker),
            );
        }
        _ => {
            let _ = writeln!(text, "speed: {}", plan.speed_from);
        }
    }
    text
}

/// The rounds that a number of a round is about: all of them, or those of the most paths.
fn per_round(plan: &DryRun) -> String {
    match plan.rounds.iter().map(|part| part.paths).max() {
        Some(most) if plan.rounds.iter().any(|part| part.paths < most) => {
            format!("in a round of {} paths", human::integer(most))
        }
        _ => "per round".to_owned(),
    }
}

/// The number of paths in each round, of a training in which it changes; empty for any other.
fn rounds(plan: &DryRun) -> String {
    if plan.rounds.len() < 2 {
        return String::new();
    }
    let part = |part: &RoundSpan| {
        let plural = if part.paths == 1 { "" } else { "s" };
        format!("{} of {} path{plural}", human::integer(part.rounds), human::integer(part.paths))
    };
    let parts: Vec<String> = plan.rounds.iter().map(part).collect();
    format!("rounds: {}\n", parts.join(", then "))
}

fn per_worker(paths: u64) -> String {
    match paths {
        1 => "each trains 1 path".to_owned(),
        paths => format!("the busiest trains {} paths", human::integer(paths)),
    }
}

fn levels(plan: &DryRun) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("level", right),
        ("modules", right),
        ("paths through each", right),
        ("parameters of each", right),
        ("holds", Align::Left),
    ]);
    for (number, level) in plan.levels.iter().enumerate() {
        table.row([
            number.to_string(),
            human::integer(level.modules.into()),
            level.paths_in_words(),
            human::integer(level.parameters),
            if level.trains { level.holds.clone() } else { format!("{} (frozen)", level.holds) },
        ]);
    }
    table.to_string()
}

fn memory_table(memory: &Memory) -> String {
    let step = &memory.step;
    let mut table = Table::new(&[("memory of a worker", Align::Left), ("", Align::Right)]);
    for (what, bytes) in [
        ("weights", step.weights),
        ("gradients", step.gradients),
        ("the optimizer's moments", step.moments),
        ("activations", step.activations),
        ("logits of the head", step.head),
        ("workspace", step.workspace),
        ("the round's first weights", memory.round),
    ] {
        table.row([what.to_owned(), human::bytes(bytes)]);
    }
    if step.shared > 0 {
        table
            .row(["gradients in place of activations".to_owned(), format!("-{}", human::bytes(step.shared))]);
    }
    table.row(["all".to_owned(), human::bytes(memory.worker)]);
    table.to_string()
}

/// The comparison of needed and available memory, with remedies.
fn verdict(plan: &DryRun) -> String {
    let memory = &plan.memory;
    let busy = if memory.all_workers == memory.worker { "one worker needs" } else { "all workers here need" };
    let needs = human::bytes(memory.all_workers);
    let Some((available, fits)) = memory.available.map(human::bytes).zip(memory.fits) else {
        return format!("{busy} {needs}; this system does not tell how much is available\n");
    };
    if fits {
        return format!("{busy} {needs} of {available} that are available\n");
    }
    let mut text = format!("this does not fit: {busy} {needs}, and {available} are available\n");
    for remedy in &memory.remedies {
        let verdict = if remedy.fits { "" } else { ", still too much" };
        let _ = writeln!(text, "  try: {} needs {}{verdict}", remedy.set, human::bytes(remedy.all_workers));
    }
    text + "  or: a smaller model, or workers on other machines\n"
}
