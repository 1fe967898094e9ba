//! `dipaco bench workers`: a load test of a coordinator on this machine.

use std::time::Duration;

use clap::Args;
use dipaco_bench::{LoadTestOptions, LoadTestReport, Percentiles, load_test, percentile};
use dipaco_config::{RunConfig, Sources};
use dipaco_telemetry::{Align, Progress, ProgressUnit, Table};
use serde::Serialize;

use super::trial_coordinator::{TrialCoordinator, lead};
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::number::up_to_a_day;
use crate::{output, runtime};

/// Interval of memory measurements.
const LOOK: Duration = Duration::from_secs(5);

/// Settings of the load test beside the defaults: a tiny model of two levels. Moments stay with the workers for four leases.
const SETTINGS: [&str; 19] = [
    "model.hidden_size=16",
    "model.blocks=2",
    "model.heads=2",
    "model.head_dim=8",
    "model.ffn_size=24",
    "model.context=16",
    "seed_model.steps=1",
    "seed_model.batch=2",
    "seed_model.sequence_tokens=16",
    "train.rounds=100000",
    "train.inner_steps=4",
    "train.batch=2",
    "train.sequence_tokens=16",
    "train.state_every=4",
    "train.held_paths=4",
    "train.lease_seconds=60",
    "train.max_workers=10000",
    "routing.prefix_tokens=8",
    "evaluation.prefix_tokens=8",
];
const VOCABULARY: usize = 40;
/// Modules of the two levels without `--grid`: 2,048 paths.
const MODULES: [u32; 2] = [64, 32];

/// Options of `dipaco bench workers`.
#[derive(Debug, Args)]
pub(crate) struct WorkersOptions {
    /// Number of workers, each with a connection of its own.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    workers: u32,
    /// Length of the load test in seconds.
    #[arg(long, default_value_t = 60, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Mean time that a worker waits instead of training a lease, in seconds.
    #[arg(long, default_value_t = 10.0, value_name = "S", value_parser = up_to_a_day)]
    training: f64,
    /// Modules of each of the two levels: a run of N x N paths. Without it the levels have 64 and 32 modules.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    grid: Option<u32>,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    /// Act as the coordinator.
    #[arg(long, hide = true)]
    as_coordinator: bool,
}

/// The measurement, as JSON.
#[derive(Debug, Serialize)]
struct CoordinatorLoad {
    what: String,
    workers: u32,
    seconds: u32,
    /// Mean time that a worker waits instead of training a lease.
    training_seconds: f64,
    cores: usize,
    connecting_seconds: f64,
    leases: usize,
    leases_per_second: f64,
    lease_ms: Percentiles,
    /// The 99th percentile of each minute.
    p99_ms_by_minute: Vec<f64>,
    waits: u64,
    completed: u64,
    lost: u64,
    /// Resident memory of the coordinator process: seconds since its start, bytes.
    memory: Vec<(f64, u64)>,
}

pub(super) fn run(options: &WorkersOptions, progress: &Progress) -> Result<(), CliError> {
    if options.as_coordinator {
        return runtime::run(lead(with_vocabulary(options)?));
    }
    let (seen, memory) = runtime::run(measure(options, progress))?;
    let milliseconds = |leases: &mut dyn Iterator<Item = &(f64, f64)>| {
        let mut found: Vec<f64> = leases.map(|(_, took)| took * 1e3).collect();
        found.sort_by(f64::total_cmp);
        found
    };
    let all = milliseconds(&mut seen.leases.iter());
    let minutes = options.seconds.div_ceil(60);
    let of_minute = |minute: u32| {
        let within = f64::from(minute) * 60.0..f64::from(minute + 1) * 60.0;
        percentile(&milliseconds(&mut seen.leases.iter().filter(|(at, _)| within.contains(at))), 0.99)
    };
    let found = CoordinatorLoad {
        what: format!("dipaco {}", env!("CARGO_PKG_VERSION")),
        workers: options.workers,
        seconds: options.seconds,
        training_seconds: options.training,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        connecting_seconds: seen.connecting,
        leases: all.len(),
        leases_per_second: seen.leases_per_second(options.workers),
        lease_ms: Percentiles::of(all),
        p99_ms_by_minute: (0..minutes).map(of_minute).collect(),
        waits: seen.waits,
        completed: seen.completed,
        lost: seen.lost,
        memory,
    };
    if options.json { output::print_json(&found) } else { output::print(&describe(&found)) }
}

fn describe(found: &CoordinatorLoad) -> String {
    let mut table = Table::new(&[
        ("minute", Align::Right),
        ("p99 of a lease, ms", Align::Right),
        ("coordinator MiB", Align::Right),
    ]);
    for (minute, p99) in (0u32..).zip(&found.p99_ms_by_minute) {
        let until = f64::from(minute + 1) * 60.0;
        let held = found.memory.iter().take_while(|(at, _)| *at <= until).last();
        let held = held.map_or("-".to_owned(), |(_, bytes)| format!("{}", bytes >> 20));
        // No worker got a lease without a wait.
        let p99 = if p99.is_nan() { "-".to_owned() } else { format!("{p99:.1}") };
        table.row([(minute + 1).to_string(), p99, held]);
    }
    let Percentiles { p50, p90, p99, most } = found.lease_ms;
    format!(
        "{} workers on {} cores, {} s of training a lease, all connected after {:.1} s, {:.0} leases a second\n\n\
         {table}\n\
         a lease that is there takes {p50:.1} ms (p50), {p90:.1} (p90), {p99:.1} (p99), {most:.1} at most; {} leases lost\n",
        found.workers,
        found.cores,
        found.training_seconds,
        found.connecting_seconds,
        found.leases_per_second,
        found.lost,
    )
}

/// The load test: starts a coordinator in a process of its own and watches its memory.
async fn measure(
    options: &WorkersOptions,
    progress: &Progress,
) -> Result<(LoadTestReport, Vec<(f64, u64)>), CliError> {
    let interrupt = Interrupt::listen()?;
    let cancel = interrupt.token();
    let mut arguments = vec!["workers".to_owned(), "--as-coordinator".to_owned()];
    arguments.extend(options.grid.map(|grid| format!("--grid={grid}")));
    let mut coordinator = interrupt.judge(TrialCoordinator::start(&arguments).await)?;
    let token = coordinator.token.clone();
    let running = load_test(
        LoadTestOptions {
            token,
            workers: options.workers,
            training: Duration::try_from_secs_f64(options.training).unwrap_or_default(),
            duration: Duration::from_secs(options.seconds.into()),
        },
        cancel.clone(),
    );
    tokio::pin!(running);
    let (begun, mut looks) = (tokio::time::Instant::now(), tokio::time::interval(LOOK));
    let mut held = Vec::new();
    let task = progress.task("bench", Some(options.seconds.into()), ProgressUnit::Count("seconds"));
    let seen = loop {
        tokio::select! {
            seen = &mut running => break interrupt.judge(seen),
            () = cancel.cancelled() => break Err(CliError::Interrupted),
            _ = looks.tick() => {
                let bytes = coordinator.memory();
                held.extend(bytes.map(|bytes| (begun.elapsed().as_secs_f64(), bytes)));
                task.set(begun.elapsed().as_secs().min(options.seconds.into()));
            }
        }
    };
    task.finish();
    // Before its files are deleted, also if the load test failed.
    let ended = coordinator.end().await;
    let seen = seen?;
    ended?;
    Ok((seen, held))
}

/// The configuration of the load test with its vocabulary, which no key sets without a tokenizer.
fn with_vocabulary(options: &WorkersOptions) -> Result<RunConfig, CliError> {
    let mut config = config(options)?;
    config.model.vocab_size = VOCABULARY;
    Ok(config)
}

/// The configuration of the load test. The environment does not change it, so that measurements can be compared.
fn config(options: &WorkersOptions) -> Result<RunConfig, CliError> {
    let [first, second] = options.grid.map_or(MODULES, |grid| [grid; 2]);
    let mut overrides = SETTINGS.map(ToOwned::to_owned).to_vec();
    overrides.push(format!(
        r#"topology.levels=[{{ modules = {first}, blocks = "0", embedding = true }}, {{ modules = {second}, blocks = "1", head = true }}]"#
    ));
    Ok(RunConfig::load(&Sources { overrides, ..Sources::default() })?.config)
}

#[cfg(test)]
mod tests {
    use dipaco_topology::Topology;

    use super::*;

    #[test]
    fn the_load_test_has_2048_paths_or_those_of_a_grid() {
        for (grid, paths) in [(None, 2048), (Some(128), 16_384)] {
            let options = WorkersOptions {
                workers: 1,
                seconds: 1,
                training: 1.0,
                grid,
                json: false,
                as_coordinator: false,
            };
            let config = config(&options).unwrap();
            let topology = Topology::new(&config.topology, config.model.blocks).unwrap();
            assert_eq!(topology.paths(), paths);
            assert_eq!((config.train.rounds, config.train.state_every), (100_000, 4));
        }
    }
}
