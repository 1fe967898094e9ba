//! `dipaco plan`: the settings of a run beside those of the literature.

use dipaco_config::RunConfig;
use dipaco_plan::{Plan, PlannedLevel, Setting, WorkerFleet, WorkerLink};

use crate::dry_run::DryRun;
use crate::error::PipelineError;
use crate::measured_runs::measured_law;
use crate::prepared::token_file;
use crate::run_directory::RunDirectory;

/// What the user knows about the run besides its configuration.
#[derive(Clone, Debug, Default)]
pub struct PlanInputs {
    /// Training tokens of the corpus. Without it those of the run's token file count, if there is one.
    pub corpus_tokens: Option<u64>,
    /// Training tokens per second of one worker.
    pub tokens_per_second: Option<f64>,
    /// The link of each worker.
    pub link: Option<WorkerLink>,
    /// Files with results of experiments, to whose runs a law is fitted; empty for no law.
    pub measured: Vec<std::path::PathBuf>,
    /// Names of these runs; empty for all.
    pub measured_runs: Vec<String>,
}

/// The plan of a run, whose sizes and traffic `sizes` holds.
///
/// # Errors
/// [`PipelineError::Shards`] when the run's token file is damaged, and [`PipelineError::MeasuredRuns`] when no law can be fitted to
/// the measured runs.
pub fn plan(
    run: &RunDirectory,
    config: &RunConfig,
    sizes: &DryRun,
    inputs: PlanInputs,
) -> Result<Plan, PipelineError> {
    let corpus_tokens = match inputs.corpus_tokens {
        None if run.train_tokens().exists() => Some(token_file(run, &run.train_tokens())?.tokens()),
        tokens => tokens,
    };
    let workers = inputs.tokens_per_second.map(|tokens_per_second| WorkerFleet {
        workers: sizes.workers as u64,
        tokens_per_second,
        bytes_down: sizes.wire.to_worker,
        bytes_up: sizes.wire.from_worker,
        link: inputs.link,
    });
    let levels = (0_u16..).zip(&sizes.levels).map(|(number, level)| PlannedLevel {
        paths_per_module: level.paths_per_module,
        outer_rate: outer_rate(config, number, level.paths_per_module),
    });
    let measured = match inputs.measured.as_slice() {
        [] => None,
        files => Some(measured_law(files, &inputs.measured_runs)?),
    };
    // The mean where the number changes.
    let rounds_of_paths =
        config.train.paths_per_round.rounds_of_paths(sizes.paths.into(), config.train.rounds);
    Ok(Plan::new(&Setting {
        parameters: sizes.parameters.path,
        paths: sizes.paths.into(),
        paths_per_round: rounds_of_paths / u64::from(config.train.rounds).max(1),
        levels: levels.collect(),
        seed_steps: config.seed_model.steps,
        rounds: config.train.rounds.into(),
        inner_steps: config.train.inner_steps,
        step_tokens: sizes.tokens.step,
        learning_rate: config.train.adamw.learning_rate,
        overlap: config.routing.overlap,
        corpus_tokens,
        trained_share: (1.0 - config.routing.router_share) * (1.0 - config.train.holdout_fraction),
        workers,
        measured,
    }))
}

/// The outer learning rate of a level as it acts on the mean of its outer gradients.
fn outer_rate(config: &RunConfig, level: u16, paths: u32) -> f64 {
    let outer = config.outer.of_level(level);
    outer.nesterov.learning_rate * f64::from(outer.rescale.factor(paths as usize))
}
