//! `dipaco plan`: the settings of a run beside those of the literature.

use dipaco_config::{OuterConfig, RunConfig};
use dipaco_plan::{
    OuterRate, Plan, PlannedLevel, PlannedRounds, PlannedSeed, Setting, WorkerFleet, WorkerLink,
};
use dipaco_topology::Topology;

use crate::dry_run::{DryRun, RoundSpan, paths_through_modules};
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
/// [`PipelineError::Shards`] when the run's token file is damaged, [`PipelineError::MeasuredRuns`] when no law can be fitted to the
/// measured runs, and [`PipelineError::Topology`] when the topology does not fit the model.
pub fn plan(
    run: &RunDirectory,
    config: &RunConfig,
    sizes: &DryRun,
    inputs: PlanInputs,
) -> Result<Plan, PipelineError> {
    let (corpus_tokens, corpus_documents) = match inputs.corpus_tokens {
        None if run.train_tokens().exists() => {
            let text = token_file(run, &run.train_tokens())?;
            (Some(text.tokens()), Some(text.documents()))
        }
        tokens => (tokens, None),
    };
    let workers = inputs.tokens_per_second.map(|tokens_per_second| WorkerFleet {
        workers: sizes.workers as u64,
        tokens_per_second,
        bytes_down: sizes.wire.to_worker,
        bytes_up: sizes.wire.from_worker,
        link: inputs.link,
    });
    let topology = Topology::new(&config.topology, config.model.blocks)?;
    let trained_paths = topology.trained_paths().len() as u64;
    let levels = (0_u16..).zip(&sizes.levels).flat_map(|(number, level)| {
        let outer = config.outer.of_level(number);
        paths_through_modules(&topology, number.into()).into_iter().map(move |paths| {
            let in_step =
                if level.trains { paths_in_step(paths, &sizes.rounds, trained_paths) } else { paths };
            PlannedLevel {
                level: number,
                paths_per_module: paths,
                paths_per_step: in_step,
                trains: level.trains,
                outer_rate: outer_rate(&outer, in_step),
                default_outer_rate: outer_rate(&OuterConfig::default(), in_step),
            }
        })
    });
    let rounds = sizes.rounds.iter().map(|part| PlannedRounds { rounds: part.rounds, paths: part.paths });
    let measured = match inputs.measured.as_slice() {
        [] => None,
        files => Some(measured_law(files, &inputs.measured_runs)?),
    };
    Ok(Plan::new(&Setting {
        parameters: sizes.parameters.path,
        paths: sizes.paths.into(),
        trained_paths,
        levels: levels.collect(),
        seed: PlannedSeed {
            steps: config.seed_model.steps,
            step_tokens: (config.seed_model.batch as u64)
                .saturating_mul(config.seed_model.sequence_tokens as u64),
        },
        rounds: rounds.collect(),
        inner_steps: config.train.inner_steps,
        step_tokens: sizes.tokens.step,
        sequence_tokens: config.train.sequence_tokens as u64,
        packing: config.train.packing,
        learning_rate: config.train.adamw.learning_rate,
        overlap: config.routing.overlap,
        corpus_tokens,
        corpus_documents,
        trained_share: (1.0 - config.routing.router_share) * (1.0 - config.train.holdout_fraction),
        workers,
        measured,
    }))
}

/// The paths in an outer step of a module that `through` of the `trained` paths share: the mean over its steps, rounded.
/// Paths that rest in a round take no part in its steps, and a module whose paths all rest takes none. The mean counts
/// each path as awake by itself, with the share of the paths that are awake in a round.
fn paths_in_step(through: u32, rounds: &[RoundSpan], trained: u64) -> u32 {
    let sum = |of: fn(&RoundSpan) -> u64| rounds.iter().map(|part| of(part) as f64).sum::<f64>();
    let (awake, all) = (sum(|part| part.rounds * part.paths), sum(|part| part.rounds) * trained as f64);
    let share = if all > 0.0 { awake / all } else { 1.0 };
    let steps = 1.0 - (1.0 - share).powf(through.into());
    let mean = if steps > 0.0 { f64::from(through) * share / steps } else { 1.0 };
    (mean.round() as u32).clamp(1, through.max(1))
}

/// The outer steps of a level with so many paths in each step. Those of an outer AdamW have the inner rate.
fn outer_rate(outer: &OuterConfig, paths: u32) -> Option<OuterRate> {
    let rate = outer.nesterov.learning_rate * f64::from(outer.rescale.factor(paths as usize));
    outer.optimizer.is_nesterov().then_some(OuterRate { rate, momentum: outer.nesterov.momentum })
}

#[cfg(test)]
mod tests {
    use dipaco_config::PathsPerRound;
    use dipaco_plan::TimePlan;
    use dipaco_topology::{AddedPaths, PathId};

    use super::*;
    use crate::small_run::{DOCUMENTS, SmallRun};

    fn config() -> RunConfig {
        let mut config = RunConfig::default();
        config.model.vocab_size = 4096;
        config
    }

    /// The time of one worker that takes a second for a step.
    fn time(config: &RunConfig) -> TimePlan {
        let sizes = DryRun::new(config, String::new(), 1, 1, None).unwrap();
        let inputs = PlanInputs {
            corpus_tokens: Some(1_000_000),
            tokens_per_second: Some(sizes.tokens.step as f64),
            ..PlanInputs::default()
        };
        plan(&RunDirectory::new("none"), config, &sizes, inputs).unwrap().time.unwrap()
    }

    #[test]
    fn the_outer_rate_of_a_level_stands_beside_that_of_the_defaults() {
        let mut config = config();
        config.outer.level_learning_rates = vec![0.35, 0.7];
        let sizes = DryRun::new(&config, String::new(), 1, 1, None).unwrap();
        let plan = plan(&RunDirectory::new("none"), &config, &sizes, PlanInputs::default()).unwrap();
        // Two paths go through each module.
        let default = OuterConfig::default().nesterov.learning_rate;
        let is =
            |found: Option<OuterRate>, rate: f64| (found.unwrap().rate / 2f64.sqrt() - rate).abs() < 1e-6;
        for (level, rate) in plan.levels.iter().zip([0.35, 0.7]) {
            assert!(is(level.outer_rate, rate) && is(level.default_outer_rate, default), "{level:?}");
        }
    }

    #[test]
    fn the_outer_rate_is_that_of_the_paths_that_train_in_a_round() {
        let level = |paths_per_round| {
            let mut config = config();
            config.train.paths_per_round = paths_per_round;
            let sizes = DryRun::new(&config, String::new(), 1, 1, None).unwrap();
            let plan = plan(&RunDirectory::new("none"), &config, &sizes, PlanInputs::default()).unwrap();
            plan.levels[0].clone()
        };
        let all = level(PathsPerRound::default());
        assert_eq!((all.paths_per_module, all.paths_per_step), (2, 2));
        let two_of_four = level(PathsPerRound::Always(2));
        assert_eq!((two_of_four.paths_per_module, two_of_four.paths_per_step), (2, 1));
        let ratio = all.outer_rate.unwrap().rate / two_of_four.outer_rate.unwrap().rate;
        assert!((ratio - 2f64.sqrt()).abs() < 1e-6, "{ratio}");
        let one_of_four = level(PathsPerRound::Always(1));
        assert_eq!(
            one_of_four.paths_per_step, 1,
            "0.5 on average, and no step in more than half of the rounds"
        );
        // Four paths in nine of ten rounds.
        let changing = level(PathsPerRound::Changing(vec![(0, 1), (1, 0)]));
        assert_eq!(changing.paths_per_step, 2);
    }

    #[test]
    fn a_level_comes_once_for_each_number_of_paths_through_its_modules() {
        let mut config = config();
        config.topology.paths = vec![vec![0, 0], vec![0, 1], vec![1, 0]];
        let sizes = DryRun::new(&config, String::new(), 1, 1, None).unwrap();
        let plan = plan(&RunDirectory::new("none"), &config, &sizes, PlanInputs::default()).unwrap();
        let found: Vec<_> = plan.levels.iter().map(|level| (level.level, level.paths_per_module)).collect();
        assert_eq!(found, [(0, 1), (0, 2), (1, 1), (1, 2)]);
        let rate = |level: usize| plan.levels[level].outer_rate.unwrap().rate;
        assert!((rate(1) / rate(0) - 2f64.sqrt()).abs() < 1e-6, "{:?}", plan.levels);
    }

    #[test]
    fn a_frozen_level_has_no_outer_rate() {
        let mut config = config();
        config.topology.levels[0].frozen = true;
        let sizes = DryRun::new(&config, String::new(), 1, 1, None).unwrap();
        let plan = plan(&RunDirectory::new("none"), &config, &sizes, PlanInputs::default()).unwrap();
        let rates: Vec<bool> = plan.levels.iter().map(|level| level.outer_rate.is_some()).collect();
        assert_eq!(rates, [false, true]);
        assert!(plan.levels[0].refused.as_ref().unwrap().contains("frozen"), "{:?}", plan.levels[0]);
    }

    #[test]
    fn the_documents_of_the_prepared_text_count_and_those_of_a_number_of_tokens_are_unknown() {
        let SmallRun { folder: _folder, run, mut config, .. } = SmallRun::seeded();
        // Longer than every document.
        config.train.sequence_tokens = 4096;
        let sizes = DryRun::new(&config, String::new(), 1, 1, None).unwrap();
        let shard = |inputs| plan(&run, &config, &sizes, inputs).unwrap().shard.unwrap();
        let found = shard(PlanInputs::default());
        let documents = found.documents.unwrap();
        let trained = (1.0 - config.routing.router_share) * (1.0 - config.train.holdout_fraction);
        assert!((documents - DOCUMENTS as f64 * trained / f64::from(sizes.paths)).abs() < 1e-9, "{found:?}");
        let steps = u64::from(config.train.rounds) * config.train.inner_steps;
        let sequences = steps as f64 * config.train.batch as f64;
        assert!((found.epochs - sequences / documents).abs() < 1e-9 && found.at_most, "{found:?}");
        let bound = shard(PlanInputs { corpus_tokens: Some(10_000), ..PlanInputs::default() });
        assert!(bound.at_most && bound.documents.is_none(), "{bound:?}");
    }

    #[test]
    fn every_round_takes_the_time_of_the_paths_that_train_in_it() {
        let mut config = config();
        config.train.paths_per_round = PathsPerRound::Changing(vec![(0, 1), (5, 2)]);
        // Five rounds of one path and five of two, of 30 steps each.
        assert_eq!(time(&config).training_seconds, 15.0 * 30.0);
        assert!((time(&config).worker_hours - 15.0 * 30.0 / 3600.0).abs() < 1e-9);
        config.train.paths_per_round = PathsPerRound::Changing(vec![(0, 0), (9, 3)]);
        assert_eq!(time(&config).training_seconds, (9.0 * 4.0 + 3.0) * 30.0);
    }

    #[test]
    fn the_kept_paths_of_an_extended_run_take_no_time() {
        let mut config = config();
        let grid = Topology::new(&config.topology, config.model.blocks).unwrap();
        let added = AddedPaths { like: vec![PathId(0), PathId(3)], ..AddedPaths::default() };
        config.topology = grid.with_paths(&config.topology, &added).unwrap().config;
        assert_eq!((config.topology.kept_paths, config.topology.paths.len()), (4, 6));
        let time = time(&config);
        assert_eq!((time.paths_per_worker, time.training_seconds), (2, 10.0 * 2.0 * 30.0));
        assert!((time.worker_hours - 600.0 / 3600.0).abs() < 1e-9);
    }
}
