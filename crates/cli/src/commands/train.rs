//! `dipaco train` and `dipaco coordinator`: train the paths of a run.

use std::net::SocketAddr;

use clap::Args;
use dipaco_config::RunConfig;
use dipaco_path::DeviceChoice;
use dipaco_telemetry::{Progress, human};
use dipaco_train::CoordinatorSummary;

use crate::commands::dry_run;
use crate::device::DeviceOptions;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::run_options::RunOptions;
use crate::{output, runtime};
use dipaco_pipeline::train::{TrainOptions as Options, train};
use dipaco_pipeline::vocabulary;

pub(crate) const TRAIN_EXAMPLES: &str = "\
Examples:
  dipaco train --run runs/tiny --workers 2             coordinator here, two worker processes on this machine
  dipaco train --run runs/tiny --resume                go on after an interruption
  dipaco train --config configs/small.toml --dry-run   sizes, memory, traffic and speed, before anything is started";
pub(crate) const COORDINATOR_EXAMPLES: &str = "\
Examples:
  dipaco coordinator --run runs/big --listen 0.0.0.0:7440 --advertise host.example:7440
  dipaco worker --join join.token                      on each other machine, with the file runs/big/join.token";

/// Options of `dipaco train`.
#[derive(Debug, Args)]
pub(crate) struct TrainOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Worker processes on this machine; the cores are shared among them.
    #[arg(short, long, env = "DIPACO_WORKERS", default_value_t = 2, value_name = "N")]
    workers: usize,
    /// The UDP address to listen on; workers elsewhere may join too.
    #[arg(long, env = "DIPACO_LISTEN", default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Go on with a run that has begun.
    #[arg(long)]
    resume: bool,
    /// End where a phase of routing is to begin, so that `dipaco route score` can be divided among machines.
    #[arg(long)]
    stop_at_phase: bool,
    /// Print what training would be: modules, memory, traffic, expected speed on the CPU. Starts nothing, writes nothing, and needs
    /// no prepared text.
    #[arg(long, conflicts_with = "resume")]
    dry_run: bool,
    #[command(flatten)]
    device: DeviceOptions,
    /// Print what was done as JSON.
    #[arg(long)]
    json: bool,
}

/// Options of `dipaco coordinator`.
#[derive(Debug, Args)]
pub(crate) struct CoordinatorOptions {
    #[command(flatten)]
    run: RunOptions,
    /// The UDP address to listen on.
    #[arg(long, env = "DIPACO_LISTEN", default_value = "0.0.0.0:7440", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// How workers reach this machine, as host:port; may be repeated. The listening address without it.
    #[arg(long, env = "DIPACO_ADVERTISE", value_name = "HOST:PORT", value_delimiter = ',')]
    advertise: Vec<String>,
    /// Go on with a run that has begun.
    #[arg(long)]
    resume: bool,
    /// End where a phase of routing is to begin, so that `dipaco route score` can be divided among machines.
    #[arg(long)]
    stop_at_phase: bool,
    /// Print what was done as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &TrainOptions, progress: &Progress) -> Result<(), CliError> {
    if options.workers == 0 {
        return Err(CliError::Usage {
            message: "--workers 0 leaves nobody to train".into(),
            remedy: "give at least 1, or start `dipaco coordinator` for workers on other machines".into(),
        });
    }
    if options.dry_run {
        return dry_run::run(&options.run, options.workers, options.json, progress);
    }
    if options.device.choice() == DeviceChoice::Cuda {
        // What the workers would fail at is told before they start; the device is theirs.
        let _ = options.device.open()?;
    }
    let how = Options {
        workers: options.workers,
        program: runtime::program()?,
        listen: options.listen,
        advertise: Vec::new(),
        resume: options.resume,
        stop_at_phase: options.stop_at_phase,
        device: options.device.choice(),
    };
    lead(&options.run, &how, options.json, progress)
}

pub(crate) fn run_coordinator(options: &CoordinatorOptions, progress: &Progress) -> Result<(), CliError> {
    if options.advertise.is_empty() && options.listen.ip().is_unspecified() {
        tracing::warn!(
            "workers on other machines can't join by {}: say with --advertise how they reach this one",
            options.listen
        );
    }
    let how = Options {
        workers: 0,
        program: runtime::program()?,
        listen: options.listen,
        advertise: options.advertise.clone(),
        resume: options.resume,
        stop_at_phase: options.stop_at_phase,
        device: DeviceChoice::default(),
    };
    lead(&options.run, &how, options.json, progress)
}

fn lead(run: &RunOptions, how: &Options, json: bool, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (run, config) = run.open_to_write()?;
    dipaco_pipeline::route::check_tokenizer(&run)?;
    let config = vocabulary::with_vocabulary(&run, &config)?;
    let summary = runtime::run(async { Ok(train(&run, &config, how, progress, interrupt.token()).await?) })?;
    if json {
        output::print_json(&summary)?;
    } else {
        output::print(&describe(&summary, &config))?;
    }
    if summary.finished || summary.at_boundary { Ok(()) } else { Err(CliError::Interrupted) }
}

/// What a training did, in words.
pub(crate) fn describe(summary: &CoordinatorSummary, config: &RunConfig) -> String {
    let duration = human::duration(std::time::Duration::from_secs_f64(summary.seconds));
    let mut text = format!(
        "trained {} of {} rounds of {} inner steps in {duration}",
        summary.rounds, config.train.rounds, config.train.inner_steps
    );
    if summary.new_rounds > 0.0 {
        // Bytes are counted far below 2^53, and shown to three digits.
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let per_round = ((summary.bytes_sent + summary.bytes_received) as f64 / summary.new_rounds) as u64;
        text += &format!(
            "; on the wire {} per round ({} to the workers, {} from them in all)",
            human::bytes(per_round),
            human::bytes(summary.bytes_sent),
            human::bytes(summary.bytes_received)
        );
        let spent = summary.inner_seconds + summary.waited_seconds;
        if spent > 0.0 {
            text += &format!(
                "; workers spent {:.0} % of their time on inner steps",
                100.0 * summary.inner_seconds / spent
            );
        }
    }
    if summary.at_boundary {
        text += "\nthe next phase of routing begins here: run `dipaco route score` and `dipaco route refit`, then go on with \
                 --resume";
    }
    text + "\n"
}
