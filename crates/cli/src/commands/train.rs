//! `dipaco train` and `dipaco coordinator`: train the paths of a run.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use dipaco_config::RunConfig;
use dipaco_path::DeviceChoice;
use dipaco_telemetry::{Progress, human};
use dipaco_train::CoordinatorSummary;

use crate::commands::dry_run;
use crate::device::DeviceOptions;
use crate::error::CliError;
use crate::http_address::{host_port, http_address};
use crate::interrupt::Interrupt;
use crate::run_options::RunOptions;
use crate::{memory, output, runtime};
use dipaco_pipeline::memory_nodes::default_workers;
use dipaco_pipeline::train::{TrainOptions, train};

pub(crate) const TRAIN_EXAMPLES: &str = "\
Examples:
  dipaco train --run runs/tiny --workers 2             coordinator here, two worker processes on this machine
  dipaco train --run runs/tiny --resume                continue after an interruption
  dipaco train --run runs/tiny --http 9440             watch it at http://127.0.0.1:9440/
  dipaco train --run runs/tiny --listen 0.0.0.0:7440 --advertise host.example:7440
                                                       the same with more workers on other machines
  dipaco train --config my.toml --dry-run              sizes, memory, traffic and speed, before anything is started";
pub(crate) const COORDINATOR_EXAMPLES: &str = "\
Examples:
  dipaco coordinator --run runs/big --listen 0.0.0.0:7440 --advertise host.example:7440
  dipaco worker --join join.token                      on each other machine, with the file runs/big/secrets/join.token";

/// The addresses in the tokens of workers.
#[derive(Clone, Debug, Args)]
struct AdvertiseOptions {
    /// Address by which workers on other machines reach this one, host:port; may be repeated. Port 0 stands for the port that
    /// it listens on. The default is the listening address, or the loopback in the place of `0.0.0.0` and `[::]`.
    #[arg(long, env = "DIPACO_ADVERTISE", value_name = "HOST:PORT", value_delimiter = ',', value_parser = host_port)]
    advertise: Vec<String>,
}

impl AdvertiseOptions {
    /// The addresses for a coordinator that listens on `listen`. Warns if the tokens have none for workers elsewhere.
    fn addresses(&self, listen: SocketAddr) -> Vec<String> {
        if self.advertise.is_empty() && listen.ip().is_unspecified() {
            tracing::warn!(
                "only workers on this machine can join, because {listen} names no machine: give the address of this machine \
                 with --advertise"
            );
        }
        self.advertise.clone()
    }
}

/// The options to watch a training.
#[derive(Clone, Debug, Args)]
struct WatchOptions {
    /// Address of a page about the training, with /health, /ready, /metrics and /status.json. A port alone is a port of
    /// this machine's loopback. Everybody who reaches the address can read, and nobody can change anything.
    #[arg(long, env = "DIPACO_HTTP", value_name = "[ADDRESS:]PORT", value_parser = http_address)]
    http: Option<SocketAddr>,
    /// Folder of files for TensorBoard, which grow during the training. `dipaco tensorboard` writes the same files later.
    #[arg(long, env = "DIPACO_TENSORBOARD", value_name = "DIR")]
    tensorboard: Option<PathBuf>,
}

/// Options of `dipaco train`.
#[derive(Debug, Args)]
pub(crate) struct TrainArguments {
    #[command(flatten)]
    run: RunOptions,
    /// Number of worker processes on this machine, which share its cores and take its GPUs in turn. The default is 2, or the
    /// number of memory nodes (NUMA) of a machine with more. No more start than paths train in a round. Where each node gets as
    /// many workers, each worker keeps to the processors of its node.
    #[arg(short, long, env = "DIPACO_WORKERS", value_name = "N")]
    workers: Option<usize>,
    /// UDP address to listen on. Workers on other machines may join too, if they reach it: see --advertise.
    #[arg(long, env = "DIPACO_LISTEN", default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
    #[command(flatten)]
    advertise: AdvertiseOptions,
    #[command(flatten)]
    watch: WatchOptions,
    /// Continue a run that has begun.
    #[arg(long)]
    resume: bool,
    /// Stop before the next phase of routing, so that several machines can share `dipaco route score`. A phase whose router
    /// `dipaco route refit` has fitted begins, and the training stops at the boundary after it.
    #[arg(long)]
    stop_at_phase: bool,
    /// Print modules, memory, traffic and expected CPU speed of the training. Starts nothing, writes nothing and needs no
    /// prepared text.
    #[arg(long, conflicts_with = "resume")]
    dry_run: bool,
    #[command(flatten)]
    device: DeviceOptions,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Options of `dipaco coordinator`.
#[derive(Debug, Args)]
pub(crate) struct CoordinatorArguments {
    #[command(flatten)]
    run: RunOptions,
    /// UDP address to listen on.
    #[arg(long, env = "DIPACO_LISTEN", default_value = "0.0.0.0:7440", value_name = "ADDRESS")]
    listen: SocketAddr,
    #[command(flatten)]
    advertise: AdvertiseOptions,
    #[command(flatten)]
    watch: WatchOptions,
    /// Continue a run that has begun.
    #[arg(long)]
    resume: bool,
    /// Stop before the next phase of routing, so that several machines can share `dipaco route score`. A phase whose router
    /// `dipaco route refit` has fitted begins, and the training stops at the boundary after it.
    #[arg(long)]
    stop_at_phase: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &TrainArguments, progress: &Progress) -> Result<(), CliError> {
    memory::keep_freed();
    let workers = options.workers.unwrap_or_else(default_workers);
    if workers == 0 {
        return Err(CliError::Usage {
            message: "--workers 0 starts no worker".into(),
            remedy: "give at least 1, or start `dipaco coordinator` for workers on other machines".into(),
        });
    }
    if options.dry_run {
        return dry_run::run(&options.run, workers, options.json, progress);
    }
    if matches!(options.device.choice(), DeviceChoice::Cuda(_)) {
        // A missing device is reported here instead of by each worker. The workers open it themselves.
        let _ = options.device.open()?;
    }
    let how = TrainOptions {
        workers,
        program: runtime::program()?,
        listen: options.listen,
        advertise: options.advertise.addresses(options.listen),
        resume: options.resume,
        stop_at_phase: options.stop_at_phase,
        device: options.device.choice(),
        http: options.watch.http,
        tensorboard: options.watch.tensorboard.clone(),
    };
    lead(&options.run, &how, options.json, progress)
}

pub(crate) fn run_coordinator(options: &CoordinatorArguments, progress: &Progress) -> Result<(), CliError> {
    memory::keep_freed();
    let how = TrainOptions {
        workers: 0,
        program: runtime::program()?,
        listen: options.listen,
        advertise: options.advertise.addresses(options.listen),
        resume: options.resume,
        stop_at_phase: options.stop_at_phase,
        device: DeviceChoice::default(),
        http: options.watch.http,
        tensorboard: options.watch.tensorboard.clone(),
    };
    lead(&options.run, &how, options.json, progress)
}

fn lead(run: &RunOptions, how: &TrainOptions, json: bool, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (unsaved, config) = run.open_unsaved()?;
    unsaved.check_finished_steps()?;
    let run = &unsaved.run;
    dipaco_pipeline::route::check_tokenizer(run)?;
    unsaved.check_worker_memory(&config, how.workers, how.device)?;
    let accept = || unsaved.save();
    let summary =
        runtime::run(async { Ok(train(run, &config, how, progress, interrupt.token(), accept).await?) })?;
    if json {
        output::print_json(&summary)?;
    } else {
        output::print(&describe(&summary, &config, how.stop_at_phase))?;
    }
    if summary.finished || summary.at_boundary { Ok(()) } else { Err(CliError::Interrupted) }
}

/// The result of a training, in words. `stop_at_phase` is the user's wish.
pub(crate) fn describe(summary: &CoordinatorSummary, config: &RunConfig, stop_at_phase: bool) -> String {
    if summary.finished && summary.new_rounds == 0.0 {
        return format!(
            "the run is complete: all {} rounds of {} inner steps have been trained\n",
            summary.rounds, config.train.inner_steps
        );
    }
    let duration = human::duration(std::time::Duration::from_secs_f64(summary.seconds));
    let mut text = format!(
        "trained {} of {} rounds of {} inner steps in {duration}",
        summary.rounds, config.train.rounds, config.train.inner_steps
    );
    if summary.new_rounds > 0.0 {
        let per_round = ((summary.bytes_sent + summary.bytes_received) as f64 / summary.new_rounds) as u64;
        text += &format!(
            "; on the wire {} per round (in all {} to the workers and {} from them)",
            human::bytes(per_round),
            human::bytes(summary.bytes_sent),
            human::bytes(summary.bytes_received)
        );
        if summary.bytes_linked > 0 {
            text +=
                &format!("; the workers read {} straight from the store", human::bytes(summary.bytes_linked));
        }
        let spent = summary.inner_seconds + summary.waited_seconds;
        if spent > 0.0 {
            text += &format!(
                "; workers spent {:.0} % of their time on inner steps",
                100.0 * summary.inner_seconds / spent
            );
        }
    }
    let phases = &config.routing.phases;
    if summary.at_boundary {
        // Phase 0 begins with the training, so this phase has the number of the boundaries up to here.
        let phase = phases.iter().filter(|phase| phase.round <= summary.rounds).count();
        text += &format!(
            "\nstopped after round {}, where phase {phase} of routing begins: run `dipaco route score` and `dipaco route refit`, \
             then continue with --resume",
            summary.rounds
        );
    } else if summary.finished && stop_at_phase {
        let why = if phases.is_empty() {
            "routing.phases has no phase"
        } else {
            "the routers of all phases are fitted"
        };
        text += &format!("\nthe run is complete: --stop-at-phase found no boundary to stop at: {why}");
    }
    text + "\n"
}
