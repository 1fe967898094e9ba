//! `dipaco bench lease`: what a lease costs a worker beside its inner steps.

use clap::Args;
use dipaco_bench::{LeaseCost, LeaseTrialOptions, ProcessMeter, ProcessUse, StageCost, lease_trial};
use dipaco_config::{RunConfig, Sources};
use dipaco_model::{Dtype, parameters, path_specs};
use dipaco_telemetry::{Align, Progress, ProgressUnit, Table, human};
use serde::Serialize;

use self::shape::{LeaseSize, levels};
use super::trial_coordinator::{TrialCoordinator, lead};
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::{memory, output, process_use, runtime};
use dipaco_pipeline::limits;
use dipaco_pipeline::median::Median;

mod shape;

pub(super) const EXAMPLES: &str = "\
Examples:
  dipaco bench lease --size s                                     21 MB of weights, one step of 64 tokens a lease
  dipaco bench lease --size 135m --leases 4 --json                the shape of SmolLM2-135M
  dipaco bench lease --size s --set train.state_every=1           the moments travel with every lease
  dipaco bench lease --size 135m --grid 4 --leases 80             the bytes of five rounds of 4 x 4 paths

Sizes:
  s     4 blocks, D 256, V  4096:   5.3M parameters
  l    12 blocks, D 896, V 32000:   180M parameters
  135m 30 blocks, D 576, V 49152:   135M parameters";

/// Settings of the measured run beside those of its size: a lease for each round of a path.
const SETTINGS: [&str; 15] = [
    "seed_model.steps=1",
    "seed_model.batch=1",
    "seed_model.sequence_tokens=16",
    "train.rounds=100000",
    "train.inner_steps=1",
    "train.batch=1",
    "train.sequence_tokens=64",
    "train.holdout_fraction=0",
    "train.holdout_sequences=0",
    "train.checkpoints=0",
    "train.lease_seconds=60",
    "model.head_dim=64",
    "model.context=64",
    "routing.prefix_tokens=8",
    "evaluation.prefix_tokens=8",
];

/// Number of leases after the first of each path, without --leases.
const LATER: u32 = 4;

/// Options of `dipaco bench lease`.
#[derive(Debug, Args)]
pub(crate) struct LeaseOptions {
    /// Size of the path.
    #[arg(long, value_enum, default_value_t)]
    size: LeaseSize,
    /// Measure N x N paths in two levels that share embedding and head. One worker takes their leases in turn.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    grid: u32,
    /// Number of leases; the default is four more than the number of paths. The first of each path fetches everything and
    /// is reported apart.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    leases: Option<u32>,
    /// Override a key of the measured run, as in --set train.inner_steps=10; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Number of threads to compute with; the default is one per core.
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    threads: usize,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    /// Act as the coordinator.
    #[arg(long, hide = true)]
    as_coordinator: bool,
}

/// The measurement, as JSON.
#[derive(Debug, Serialize)]
struct LeaseReport {
    what: String,
    size: &'static str,
    params: usize,
    /// Bytes of the path's weights in f32.
    weights_bytes: u64,
    dtype: Dtype,
    threads: usize,
    steps: u64,
    batch: usize,
    sequence_tokens: usize,
    state_every: u32,
    state_dtype: Dtype,
    /// Number of paths. The worker takes their leases in turn.
    paths: usize,
    /// The leases in order. The first one of each path fetches the shard and all weights.
    leases: Vec<LeaseCost>,
}

impl LeaseOptions {
    /// Number of paths.
    fn paths(&self) -> u32 {
        self.grid * self.grid
    }

    /// Number of leases, of which some come after the first of each path.
    fn leases(&self) -> Result<u32, CliError> {
        let paths = self.paths();
        let leases = self.leases.unwrap_or(paths + LATER);
        if leases > paths {
            return Ok(leases);
        }
        Err(CliError::Usage {
            message: format!("--leases {leases} leaves no lease after the first of each of {paths} paths"),
            remedy: format!("give at least {}", paths + 1),
        })
    }

    /// The configuration of the measured run. The environment does not change it, so that measurements can be compared.
    fn config(&self) -> Result<RunConfig, CliError> {
        let (model, vocabulary) = self.size.model();
        let mut overrides: Vec<String> = model.split_whitespace().map(ToOwned::to_owned).collect();
        overrides.extend(SETTINGS.map(ToOwned::to_owned));
        overrides.extend(self.overrides.iter().cloned());
        let blocks = overrides.iter().rev().find_map(|setting| setting.strip_prefix("model.blocks="));
        // A number of another form is an error of the other settings.
        overrides.push(levels(blocks.and_then(|blocks| blocks.parse().ok()).unwrap_or(1), self.grid));
        let mut config = RunConfig::load(&Sources { overrides, ..Sources::default() })?.config;
        if config.model.vocab_size == 0 {
            config.model.vocab_size = vocabulary;
        }
        Ok(config)
    }

    /// The arguments with which the coordinator's process gets the same configuration.
    fn for_coordinator(&self) -> Vec<String> {
        let mut arguments: Vec<String> =
            ["lease", "--as-coordinator", "--size", self.size.name()].map(ToOwned::to_owned).into();
        arguments.extend(["--grid".to_owned(), self.grid.to_string()]);
        for setting in &self.overrides {
            arguments.extend(["--set".to_owned(), setting.clone()]);
        }
        arguments
    }
}

pub(super) fn run(options: &LeaseOptions, progress: &Progress) -> Result<(), CliError> {
    let config = options.config()?;
    memory::keep_freed();
    if options.as_coordinator {
        return runtime::run(lead(config));
    }
    let leases = options.leases()?;
    limits::threads(options.threads)?;
    let leases = runtime::run(measure(options, leases, progress))?;
    let params = parameters(&path_specs(&config.model));
    let report = LeaseReport {
        what: format!("dipaco {}", env!("CARGO_PKG_VERSION")),
        size: options.size.name(),
        params,
        weights_bytes: params as u64 * 4,
        dtype: config.model.dtype,
        threads: rayon::current_num_threads(),
        steps: config.train.inner_steps,
        batch: config.train.batch,
        sequence_tokens: config.train.sequence_tokens,
        state_every: config.train.state_every,
        state_dtype: config.train.state_dtype,
        paths: options.paths() as usize,
        leases,
    };
    if options.json { output::print_json(&report) } else { output::print(&describe(&report)) }
}

async fn measure(
    options: &LeaseOptions,
    leases: u32,
    progress: &Progress,
) -> Result<Vec<LeaseCost>, CliError> {
    let interrupt = Interrupt::listen()?;
    let cache = tempfile::tempdir().map_err(|source| CliError::Io {
        action: "create",
        path: "a temporary folder".into(),
        source,
    })?;
    let mut coordinator = TrialCoordinator::start(&options.for_coordinator()).await?;
    let trial = LeaseTrialOptions {
        token: coordinator.token.clone(),
        cache: cache.path().to_owned(),
        leases,
        meter: ProcessMeter {
            used,
            peak: memory::peak,
            begin_peak: memory::begin_peak,
            coordinator: std::sync::Arc::new(coordinator.used()),
        },
    };
    let task =
        std::sync::Arc::new(progress.task("leases", Some(leases.into()), ProgressUnit::Count("leases")));
    let shown = task.clone();
    let costs = lease_trial(trial, move |done| shown.set(done.into()), interrupt.token()).await;
    if interrupt.is_set() {
        return Err(CliError::Interrupted);
    }
    let costs = costs?;
    if let Some(task) = std::sync::Arc::into_inner(task) {
        task.finish();
    }
    coordinator.end().await?;
    Ok(costs)
}

fn used() -> Option<ProcessUse> {
    process_use::of_this_process().map(ProcessUse::from)
}

fn describe(report: &LeaseReport) -> String {
    let (first, later) = report.leases.split_at(report.paths.min(report.leases.len()));
    let weights = report.weights_bytes as f64;
    let times = |of: &dyn Fn(&StageCost) -> u64| {
        later.iter().map(|lease| of(&lease.whole) as f64 / weights).collect::<Vec<f64>>().median()
    };
    let peak = later.iter().filter_map(|lease| lease.peak_bytes).max();
    let peak = peak.map_or_else(String::new, |peak| {
        format!("peak memory {}: {:.1} copies of the weights\n", human::bytes(peak), peak as f64 / weights)
    });
    format!(
        "{}\n{}\nmedians of {} leases after the first of each path; the bytes are {:.2} times the weights down and {:.2} \
         times up\n{}{peak}",
        head(report),
        stages(first, later),
        later.len(),
        times(&|cost| cost.down),
        times(&|cost| cost.up),
        bytes_of_a_round(report, first, later),
    )
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The sizes of the path and of its leases.
fn head(report: &LeaseReport) -> String {
    format!(
        "{}: {} parameters, {} of weights\na lease has {} step{} of {} x {} tokens, {}, {} thread{}; the state, in {}, travels \
         with every {} lease{}\n",
        report.size,
        human::count(report.params as f64),
        human::bytes(report.weights_bytes),
        report.steps,
        plural(report.steps),
        report.batch,
        report.sequence_tokens,
        report.dtype,
        report.threads,
        plural(report.threads as u64),
        report.state_dtype,
        report.state_every,
        plural(report.state_every.into()),
    )
}

/// The medians of each part of a lease, and of the first leases as a whole.
fn stages(first: &[LeaseCost], later: &[LeaseCost]) -> Table {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("part of a lease", Align::Left),
        ("seconds", right),
        ("user s", right),
        ("system s", right),
        ("page faults", right),
        ("MB down", right),
        ("MB up", right),
    ]);
    let uses = |all: Vec<Option<ProcessUse>>| {
        let all: Option<Vec<ProcessUse>> = all.into_iter().collect();
        let median = |of: fn(&ProcessUse) -> f64, digits: usize| {
            all.as_ref().map_or_else(
                || "-".to_owned(),
                |all| format!("{:.digits$}", all.iter().map(of).collect::<Vec<f64>>().median()),
            )
        };
        [
            median(|used| used.user, 2),
            median(|used| used.system, 2),
            median(|used| used.minor_faults as f64, 0),
        ]
    };
    let mut row = |name: &str, leases: &[LeaseCost], part: fn(&LeaseCost) -> StageCost| {
        let costs: Vec<StageCost> = leases.iter().map(part).collect();
        let median = |of: &dyn Fn(&StageCost) -> f64| costs.iter().map(of).collect::<Vec<f64>>().median();
        let [user, system, faults] = uses(costs.iter().map(|cost| cost.used).collect());
        table.row([
            name.to_owned(),
            format!("{:.3}", median(&|cost| cost.seconds)),
            user,
            system,
            faults,
            format!("{:.1}", median(&|cost| cost.down as f64 / 1e6)),
            format!("{:.1}", median(&|cost| cost.up as f64 / 1e6)),
        ]);
    };
    row("wait", later, |lease| lease.wait);
    row("fetch", later, |lease| lease.fetch);
    row("load", later, |lease| lease.load);
    row("inner steps", later, |lease| lease.steps);
    row("encode", later, |lease| lease.encode);
    row("upload", later, |lease| lease.upload);
    row("whole", later, |lease| lease.whole);
    row("first leases", first, |lease| lease.whole);
    let [user, system, faults] = uses(later.iter().map(|lease| lease.coordinator).collect());
    table.row(["coordinator".to_owned(), String::new(), user, system, faults, String::new(), String::new()]);
    table
}

/// The bytes that a round of all paths moves.
fn bytes_of_a_round(report: &LeaseReport, first: &[LeaseCost], later: &[LeaseCost]) -> String {
    let (weights, paths) = (report.weights_bytes as f64, report.paths);
    let rounds = later.len() as f64 / paths as f64;
    let moved = |leases: &[LeaseCost]| leases.last().map(|lease| lease.moved).unwrap_or_default();
    let (before, after) = (moved(first), moved(later));
    let of_round = |bytes: u64| {
        let bytes = bytes as f64 / rounds;
        (human::bytes(bytes as u64), bytes / weights)
    };
    let ((down, downs), (up, ups)) =
        (of_round(after.down.saturating_sub(before.down)), of_round(after.up.saturating_sub(before.up)));
    format!(
        "a round of {paths} path{} takes {down} down and {up} up, {downs:.1} and {ups:.1} times the weights of a path\n",
        plural(paths as u64),
    )
}

#[cfg(test)]
mod tests {
    use dipaco_topology::Topology;

    use super::*;

    fn options(size: LeaseSize, grid: u32, leases: Option<u32>, overrides: &[&str]) -> LeaseOptions {
        LeaseOptions {
            size,
            grid,
            leases,
            overrides: overrides.iter().map(|&setting| setting.to_owned()).collect(),
            threads: 0,
            json: false,
            as_coordinator: false,
        }
    }

    fn config(size: LeaseSize, grid: u32, overrides: &[&str]) -> RunConfig {
        options(size, grid, None, overrides).config().unwrap()
    }

    #[test]
    fn some_lease_comes_after_the_first_of_each_path() {
        let leases = |grid, given| options(LeaseSize::S, grid, given, &[]).leases();
        assert_eq!([leases(1, None).unwrap(), leases(4, None).unwrap()], [5, 20]);
        assert_eq!(leases(4, Some(17)).unwrap(), 17);
        let error = leases(4, Some(16)).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("each of 16 paths"), "{error}");
    }

    #[test]
    fn the_sizes_are_those_that_the_help_names() {
        let params = [LeaseSize::S, LeaseSize::L, LeaseSize::Million135].map(|size| {
            let config = config(size, 1, &[]);
            assert_eq!((config.train.inner_steps, config.train.sequence_tokens), (1, 64));
            parameters(&path_specs(&config.model))
        });
        assert_eq!(params, [5_310_720, 179_853_184, 134_515_008]);
    }

    #[test]
    fn a_grid_shares_embedding_and_head() {
        let config = config(LeaseSize::Million135, 4, &["model.blocks=3"]);
        let topology = Topology::new(&config.topology, config.model.blocks).unwrap();
        assert_eq!(
            (topology.paths(), (0..3).map(|level| topology.modules_in(level)).collect()),
            (16, vec![1, 4, 4])
        );
    }
}
