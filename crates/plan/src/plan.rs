//! A run's settings beside those that the literature advises.

use serde::Serialize;

use crate::law::{self, OutOfRange, Prediction, TOKENS_PER_PARAMETER};
use crate::measured::{MeasuredLaw, MeasuredPrediction, RunSize};
use crate::time::{PlannedRounds, TimePlan, WorkerFleet, over_rounds};

/// Share of the seed in the steps of the paper: 24,000 of 88,000 (arXiv:2403.10616 figure 8).
const SEED_SHARE: f64 = 24.0 / 88.0;
/// Factor between the tokens per parameter of a run and of the law within which its losses are shown without a warning.
const NEAR: f64 = 1.5;
/// Number of outer steps of the papers, about: 128 in arXiv:2311.08105, 427 in arXiv:2403.10616.
const FEW_ROUNDS: u64 = 100;
/// Epochs of a shard above which repeated text counts for less.
const MANY_EPOCHS: f64 = 4.0;
/// Epochs of a shard above which early stopping is worth its cost.
const OVERFITTING_EPOCHS: f64 = 8.0;
/// Ratio of two learning rates that is worth a warning.
const FAR: f64 = 1.5;

/// A level of the topology with its outer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedLevel {
    /// Paths through each of its modules.
    pub paths_per_module: u32,
    /// The outer learning rate times the factor of the merged outer gradient, as it acts on a mean of weight 1; absent where
    /// the modules take no steps of Nesterov momentum.
    pub outer_rate: Option<f64>,
}

/// The settings of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Parameters of a path.
    pub parameters: u64,
    /// Number of paths.
    pub paths: u64,
    /// Number of paths that train. The kept paths of an extended run do not.
    pub trained_paths: u64,
    /// The levels.
    pub levels: Vec<PlannedLevel>,
    /// Inner steps of the seed.
    pub seed_steps: u64,
    /// The rounds, in order, with the number of paths that train in them.
    pub rounds: Vec<PlannedRounds>,
    /// H, the inner steps of a round.
    pub inner_steps: u64,
    /// Tokens of an inner step of a path.
    pub step_tokens: u64,
    /// Peak of the inner learning rate.
    pub learning_rate: f64,
    /// Shards that receive each document.
    pub overlap: usize,
    /// Training tokens of the corpus; absent if they are not known.
    pub corpus_tokens: Option<u64>,
    /// Share of them that paths train on. Documents that are reserved for routers or held out are not in it.
    pub trained_share: f64,
    /// The workers; absent if their speed is not known.
    pub workers: Option<WorkerFleet>,
    /// The law of runs that the user has measured.
    pub measured: Option<MeasuredLaw>,
}

/// The amount of training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrainingPlan {
    /// Training tokens of a path after the seed.
    pub path_tokens: u64,
    /// The same per parameter of the path. DiPaCo has 224, the scaling laws 20.
    pub tokens_per_parameter: f64,
    /// Share of the seed in the steps of a path. DiPaCo has 0.27.
    pub seed_share: f64,
    /// Outer steps of each module in a synchronous run.
    pub rounds: u64,
}

/// A shard of average size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ShardPlan {
    /// Tokens of the shard.
    pub tokens: f64,
    /// How often its path reads it.
    pub epochs: f64,
}

/// A level beside the scaling laws, with the paths through a module as replicas of a dense model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LevelPlan {
    /// Paths through each of its modules.
    pub paths_per_module: u32,
    /// The outer learning rate of the run, as it acts on the mean outer gradient; absent without outer momentum.
    pub outer_rate: Option<f64>,
    /// The outer learning rate of the literature for as many replicas; absent without outer momentum.
    pub advised_outer_rate: Option<f64>,
    /// The law's prediction; absent where the law says nothing.
    pub prediction: Option<Prediction>,
    /// Tokens of a step of one path by the law.
    pub advised_step_tokens: Option<f64>,
    /// The reason why there is no prediction.
    pub refused: Option<String>,
}

/// What measured runs tell of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredPlan {
    /// The law of these runs.
    pub law: MeasuredLaw,
    /// The law's prediction; absent outside of the measured runs.
    pub prediction: Option<MeasuredPrediction>,
    /// The reason why there is no prediction.
    pub refused: Option<String>,
}

/// The cost of a training, and the settings that the literature advises.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The amount of training.
    pub training: TrainingPlan,
    /// A shard; absent if the size of the corpus is not known.
    pub shard: Option<ShardPlan>,
    /// The levels, in order.
    pub levels: Vec<LevelPlan>,
    /// One dense model of a path's size, trained data-parallel; absent where the law says nothing.
    pub dense: Option<Prediction>,
    /// The prediction of measured runs; absent if none are given.
    pub measured: Option<MeasuredPlan>,
    /// The time; absent if the speed of the workers is not known.
    pub time: Option<TimePlan>,
    /// Settings that are far from those of the literature, each with the reason.
    pub warnings: Vec<String>,
}

impl Plan {
    /// The plan of a run.
    #[must_use]
    pub fn new(setting: &Setting) -> Self {
        let rounds = over_rounds(&setting.rounds, |_| 1);
        // Paths may rest in some rounds: the mean of those that train.
        let rounds_of_paths = over_rounds(&setting.rounds, |paths| paths);
        let steps = rounds_of_paths.saturating_mul(setting.inner_steps) / setting.trained_paths.max(1);
        let path_tokens = steps.saturating_mul(setting.step_tokens);
        let parameters = setting.parameters as f64;
        let training = TrainingPlan {
            path_tokens,
            tokens_per_parameter: path_tokens as f64 / parameters.max(1.0),
            seed_share: setting.seed_steps as f64 / (setting.seed_steps.saturating_add(steps)).max(1) as f64,
            rounds,
        };
        let shard = setting.corpus_tokens.map(|tokens| {
            let tokens =
                tokens as f64 * setting.trained_share * setting.overlap as f64 / setting.paths.max(1) as f64;
            ShardPlan { tokens, epochs: path_tokens as f64 / tokens.max(1.0) }
        });
        let levels: Vec<LevelPlan> =
            setting.levels.iter().map(|level| self::level(parameters, level)).collect();
        let time = setting
            .workers
            .as_ref()
            .map(|workers| TimePlan::new(&setting.rounds, setting.inner_steps, setting.step_tokens, workers));
        let measured = setting.measured.clone().map(|law| {
            let size = RunSize { parameters: setting.parameters, paths: setting.paths, tokens: path_tokens };
            let predicted = law.predict(size);
            let refused = predicted.as_ref().err().map(ToString::to_string);
            MeasuredPlan { law, prediction: predicted.ok(), refused }
        });
        let mut plan = Self {
            training,
            shard,
            levels,
            dense: law::data_parallel(parameters).ok(),
            measured,
            time,
            warnings: Vec::new(),
        };
        plan.warnings = plan.find_warnings(setting);
        plan
    }

    fn find_warnings(&self, setting: &Setting) -> Vec<String> {
        let mut warnings = Vec::new();
        let rounds = self.training.rounds;
        let momentum = self.levels.iter().any(|level| level.outer_rate.is_some());
        if rounds < FEW_ROUNDS && setting.paths > 1 && momentum {
            warnings.push(format!(
                "{rounds} outer steps are few: the papers take 128 to 427, and the outer momentum needs about 10 to build up"
            ));
        }
        let share = self.training.seed_share;
        if share > 0.5 {
            warnings.push(format!(
                "the seed takes {:.0} % of a path's steps, and {:.0} % in the paper: the paths have little time to differ",
                100.0 * share,
                100.0 * SEED_SHARE
            ));
        }
        if let Some(ShardPlan { epochs, .. }) = self.shard.filter(|shard| shard.epochs > MANY_EPOCHS) {
            let remedy = if epochs > OVERFITTING_EPOCHS {
                "use --early-stopping when you evaluate and serve, more text, or routing.overlap = 2"
            } else {
                "more text or routing.overlap = 2 would help"
            };
            warnings.push(format!("a path reads its shard {epochs:.1} times: {remedy}"));
        }
        for (number, level) in self.levels.iter().enumerate() {
            if !self.levels[..number].contains(level) {
                warnings.extend(level.warnings(setting.learning_rate));
            }
        }
        let per_parameter = self.training.tokens_per_parameter;
        if self.levels.iter().any(|level| level.prediction.is_some())
            && !(TOKENS_PER_PARAMETER / NEAR..=TOKENS_PER_PARAMETER * NEAR).contains(&per_parameter)
        {
            warnings.push(format!(
                "the losses are those of {TOKENS_PER_PARAMETER} tokens per parameter, and this run has {per_parameter:.1} per path: the law says nothing about its loss"
            ));
        }
        warnings
    }
}

impl LevelPlan {
    /// Settings of a level that are far from those of the literature.
    fn warnings(&self, learning_rate: f64) -> Vec<String> {
        let mut warnings = Vec::new();
        let paths = match self.paths_per_module {
            1 => "a module of one path".to_owned(),
            paths => format!("a module of {paths} paths"),
        };
        let far = |ratio: f64, most: f64| !(1.0 / most..=most).contains(&ratio);
        if let (Some(rate), Some(advised)) = (self.outer_rate, self.advised_outer_rate)
            && far(rate / advised, FAR)
        {
            warnings.push(format!(
                "the mean outer gradient of {paths} acts with the outer rate {rate:.2}, and with about {advised:.2} in the \
                 literature"
            ));
        }
        if let (Some(law), Some(tokens)) = (self.prediction, self.advised_step_tokens)
            && far(learning_rate / law.learning_rate, FAR * law.within)
        {
            warnings.push(format!(
                "train.adamw.learning_rate is {learning_rate:.1e}; the law has {:.1e} for {paths}, with {tokens:.0} tokens of a \
                 path in a step",
                law.learning_rate
            ));
        }
        warnings
    }
}

fn level(parameters: f64, level: &PlannedLevel) -> LevelPlan {
    let replicas = level.paths_per_module;
    let prediction: Result<Prediction, OutOfRange> = law::diloco(parameters, replicas);
    LevelPlan {
        paths_per_module: replicas,
        outer_rate: level.outer_rate,
        advised_outer_rate: level.outer_rate.map(|_| law::outer_learning_rate(replicas)),
        advised_step_tokens: prediction.ok().map(|law| law.batch_tokens / f64::from(replicas)),
        refused: prediction.err().map(|error| error.to_string()),
        prediction: prediction.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::WorkerLink;

    /// DiPaCo 8 × 8 of arXiv:2403.10616 with the rule of the square root.
    fn paper() -> Setting {
        Setting {
            parameters: 151_181_184,
            paths: 64,
            trained_paths: 64,
            levels: vec![PlannedLevel { paths_per_module: 8, outer_rate: Some(0.7 * 8f64.sqrt()) }; 2],
            seed_steps: 24_000,
            rounds: vec![PlannedRounds { rounds: 427, paths: 64 }],
            inner_steps: 150,
            step_tokens: 512 * 1024,
            learning_rate: 4e-4,
            overlap: 1,
            corpus_tokens: Some(156_000_000_000),
            trained_share: 1.0,
            workers: None,
            measured: None,
        }
    }

    #[test]
    fn the_papers_run_reads_its_shards_fourteen_times() {
        let plan = Plan::new(&paper());
        assert!((plan.training.seed_share - 0.27).abs() < 0.01);
        assert!((plan.training.tokens_per_parameter - 222.0).abs() < 1.0);
        assert!((plan.shard.unwrap().epochs - 13.8).abs() < 0.1);
        assert!(plan.warnings.iter().any(|text| text.contains("this run has 222") && text.contains("law")));
        assert!(
            plan.warnings.iter().any(|text| text.contains("13.8 times") && text.contains("--early-stopping"))
        );
        let [level, _] = &plan.levels[..] else { panic!() };
        // 20 times the batch of a replica of the law.
        assert!((paper().step_tokens as f64 / level.advised_step_tokens.unwrap() - 20.7).abs() < 0.2);
    }

    #[test]
    fn modules_without_outer_momentum_have_no_outer_rate() {
        let levels = vec![PlannedLevel { paths_per_module: 8, outer_rate: None }; 2];
        let few = vec![PlannedRounds { rounds: 50, paths: 64 }];
        let plan = Plan::new(&Setting { levels, rounds: few.clone(), ..paper() });
        assert!(plan.levels.iter().all(|level| level.outer_rate.or(level.advised_outer_rate).is_none()));
        let told = |plan: &Plan| plan.warnings.iter().any(|text| text.contains("outer"));
        assert!(!told(&plan), "{:?}", plan.warnings);
        assert!(told(&Plan::new(&Setting { rounds: few, ..paper() })));
    }

    #[test]
    fn a_path_that_rests_in_three_of_four_rounds_reads_a_quarter() {
        let rounds = vec![PlannedRounds { rounds: 427, paths: 16 }];
        let plan = Plan::new(&Setting { rounds, ..paper() });
        assert!((plan.shard.unwrap().epochs - 13.8 / 4.0).abs() < 0.05);
        assert!((plan.training.tokens_per_parameter - 222.0 / 4.0).abs() < 0.3);
    }

    #[test]
    fn documents_that_no_path_trains_on_make_the_shards_smaller() {
        let plan = Plan::new(&Setting { trained_share: 0.125, ..paper() });
        assert!((plan.shard.unwrap().epochs - 13.8 * 8.0).abs() < 0.8);
    }

    #[test]
    fn a_tiny_path_gets_no_prediction() {
        let plan = Plan::new(&Setting { parameters: 1_400_000, ..paper() });
        assert!(plan.levels.iter().all(|level| level.prediction.is_none()));
        assert!(plan.levels[0].refused.as_ref().unwrap().contains("35M to 2.4B"), "{:?}", plan.levels[0]);
        assert_eq!(plan.dense, None);
        assert!(!plan.warnings.iter().any(|text| text.contains("law")), "{:?}", plan.warnings);
    }

    #[test]
    fn the_time_of_a_slow_link_says_how_long_a_round_must_be() {
        let link = Some(WorkerLink { down: 1e9, up: 1e8 });
        let workers = WorkerFleet {
            workers: 16,
            tokens_per_second: 524_288.0,
            bytes_down: 4 * 1_250_000_000,
            bytes_up: 4 * 125_000_000,
            link,
        };
        let plan = Plan::new(&Setting { workers: Some(workers), ..paper() });
        let time = plan.time.unwrap();
        // A step of a path takes a second, and each worker has four paths.
        assert_eq!((time.paths_per_worker, time.training_seconds), (4, 427.0 * 150.0 * 4.0));
        assert!((time.worker_hours - 427.0 * 150.0 * 64.0 / 3600.0).abs() < 1e-6);
        // 40 s down and 40 s up in each round.
        assert!((time.transfer_seconds.unwrap() - 427.0 * 80.0).abs() < 1e-6);
        assert_eq!(time.inner_steps_for_90_percent, Some(180.0));
    }

    #[test]
    fn the_time_follows_a_number_of_paths_that_changes() {
        let workers = WorkerFleet {
            workers: 2,
            tokens_per_second: 1000.0,
            bytes_down: 2_000_000,
            bytes_up: 500_000,
            link: Some(WorkerLink { down: 1e6, up: 1e6 }),
        };
        let part = |rounds, paths| PlannedRounds { rounds, paths };
        let plan = Plan::new(&Setting {
            paths: 18,
            trained_paths: 4,
            rounds: vec![part(5, 1), part(4, 4), part(1, 3)],
            inner_steps: 30,
            step_tokens: 2000,
            workers: Some(workers),
            ..paper()
        });
        // 24 rounds of paths; six for each of them.
        assert_eq!((plan.training.rounds, plan.training.path_tokens), (10, 6 * 30 * 2000));
        let time = plan.time.unwrap();
        // A round of a path takes a minute. The busiest worker has one path in five rounds, and two in the others.
        assert_eq!((time.paths_per_worker, time.training_seconds), (2, 15.0 * 60.0));
        assert!((time.worker_hours - 24.0 / 60.0).abs() < 1e-9);
        // 10 s for each of its paths in each round.
        assert!((time.transfer_seconds.unwrap() - 150.0).abs() < 1e-9);
        assert_eq!(time.inner_steps_for_90_percent, Some(45.0));
    }
}
