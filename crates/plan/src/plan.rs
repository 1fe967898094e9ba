//! A run's settings beside those that the literature advises.

use serde::Serialize;

use crate::law::{self, Prediction, TOKENS_PER_PARAMETER};
use crate::measured::{MeasuredLaw, MeasuredPrediction, RunSize};
use crate::time::{PlannedRounds, PlannedSeed, TimePlan, WorkerFleet, over_rounds};

/// Share of the seed in the steps of the paper: 24,000 of 88,000 (arXiv:2403.10616 figure 8).
const SEED_SHARE: f64 = 24.0 / 88.0;
/// Factor between the tokens per parameter of a run and of the law within which its losses are shown without a warning.
const NEAR: f64 = 1.5;
/// Outer steps for each outer gradient that the momentum sums, below which a run has few. With a momentum of 0.9 that is 100,
/// about the number of the papers: 128 in arXiv:2311.08105, 427 in arXiv:2403.10616.
const FEW_ROUNDS: f64 = 10.0;
/// The outer momentum of the papers.
const MOMENTUM_OF_THE_PAPERS: f64 = 0.9;
/// Epochs of a shard above which repeated text counts for less.
const MANY_EPOCHS: f64 = 4.0;
/// Epochs of a shard above which early stopping is worth its cost.
const OVERFITTING_EPOCHS: f64 = 8.0;
/// Ratio of two learning rates that is worth a warning.
const FAR: f64 = 1.5;

/// The outer steps of a level's modules.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OuterRate {
    /// The outer learning rate times the factor of the merged outer gradient, as it acts on a mean of weight 1.
    pub rate: f64,
    /// The outer momentum.
    pub momentum: f64,
}

/// The modules of a level through which equally many paths go, with their outer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedLevel {
    /// The level.
    pub level: u16,
    /// Paths through each of these modules.
    pub paths_per_module: u32,
    /// Those of them that take part in an outer step: about the mean where paths rest.
    pub paths_per_step: u32,
    /// False for a frozen level, whose weights stay those of the seed.
    pub trains: bool,
    /// Their outer steps; absent where the modules take no steps of Nesterov momentum.
    pub outer_rate: Option<OuterRate>,
    /// The same by the defaults of the program.
    pub default_outer_rate: Option<OuterRate>,
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
    /// The inner steps of the seed.
    pub seed: PlannedSeed,
    /// The rounds, in order, with the number of paths that train in them.
    pub rounds: Vec<PlannedRounds>,
    /// H, the inner steps of a round.
    pub inner_steps: u64,
    /// Tokens of an inner step of a path.
    pub step_tokens: u64,
    /// Tokens of a sequence of such a step.
    pub sequence_tokens: u64,
    /// True lets sequences run across document borders. Otherwise each document fills at least one sequence.
    pub packing: bool,
    /// Peak of the inner learning rate.
    pub learning_rate: f64,
    /// Shards that receive each document.
    pub overlap: usize,
    /// Training tokens of the corpus; absent if they are not known.
    pub corpus_tokens: Option<u64>,
    /// Training documents of the corpus; absent if they are not known.
    pub corpus_documents: Option<u64>,
    /// Share of both that paths train on. Documents that are reserved for routers or held out are not in it.
    pub trained_share: f64,
    /// The workers; absent if their speed is not known.
    pub workers: Option<WorkerFleet>,
    /// The law of runs that the user has measured.
    pub measured: Option<MeasuredLaw>,
}

/// The amount of training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrainingPlan {
    /// Training tokens of a path after the seed, padding included, as in the results of experiments.
    pub path_tokens: u64,
    /// The same without padding.
    pub text_tokens: u64,
    /// True if `text_tokens` is an upper bound: without packing, the padding depends on the lengths of the documents.
    pub at_most: bool,
    /// `text_tokens` per parameter of the path. DiPaCo has 224, the scaling laws 20.
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
    /// Documents of the shard; absent if they are not known.
    pub documents: Option<f64>,
    /// How often its path reads it.
    pub epochs: f64,
    /// True if `epochs` is an upper bound: without packing, a document's last sequence is padded, so there are more
    /// sequences than follow from the numbers of tokens and documents.
    pub at_most: bool,
}

/// The modules of a level through which equally many paths go, beside the scaling laws. The paths of an outer step are
/// replicas of a dense model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LevelPlan {
    /// The level. It comes once for each number of paths through its modules.
    pub level: u16,
    /// Paths through each of these modules.
    pub paths_per_module: u32,
    /// Those of them that take part in an outer step: about the mean where paths rest.
    pub paths_per_step: u32,
    /// The outer steps of the run; absent for a frozen level, and where the modules take no steps of Nesterov momentum.
    pub outer_rate: Option<OuterRate>,
    /// The outer steps by the defaults of the program; absent as above.
    pub default_outer_rate: Option<OuterRate>,
    /// The outer learning rate of arXiv:2503.09799 for as many replicas; absent with another momentum than that paper's 0.9, and
    /// where it has no data.
    pub literature_outer_rate: Option<f64>,
    /// The law's prediction; absent where the law says nothing.
    pub prediction: Option<Prediction>,
    /// Tokens of a step of one path by the law.
    pub advised_step_tokens: Option<f64>,
    /// The reason why the law says nothing of this level.
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
        let shard = ShardPlan::new(setting, path_tokens);
        // The shard's epochs count its fewest sequences, so this is the least padding.
        let text_of = |shard: ShardPlan| path_tokens.min((shard.epochs * shard.tokens).round() as u64);
        let text_tokens = shard.filter(|shard| shard.at_most).map_or(path_tokens, text_of);
        let parameters = setting.parameters as f64;
        let training = TrainingPlan {
            path_tokens,
            text_tokens,
            at_most: !setting.packing,
            tokens_per_parameter: text_tokens as f64 / parameters.max(1.0),
            seed_share: setting.seed.steps as f64 / (setting.seed.steps.saturating_add(steps)).max(1) as f64,
            rounds,
        };
        let levels: Vec<LevelPlan> =
            setting.levels.iter().map(|level| self::level(parameters, level)).collect();
        let time = setting.workers.as_ref().map(|workers| {
            TimePlan::new(setting.seed, &setting.rounds, setting.inner_steps, setting.step_tokens, workers)
        });
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
        let momenta = self.levels.iter().filter_map(|level| level.outer_rate).map(|outer| outer.momentum);
        let momentum = momenta.fold(0.0, f64::max);
        // A momentum below 1 sums the last outer gradients, about as many as this.
        let builds_up = 1.0 / (1.0 - momentum);
        let enough = (FEW_ROUNDS * builds_up).round();
        if setting.paths > 1 && momentum > 0.0 && (rounds as f64) < enough {
            warnings.push(format!(
                "{rounds} outer steps are few for an outer momentum of {momentum}, which sums about the last {builds_up:.0} outer \
                 gradients: give it at least {enough:.0}, {FEW_ROUNDS:.0} times as many; the papers take 128 to 427 with 0.9"
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
        if let Some(shard) = self.shard.filter(|shard| shard.epochs > MANY_EPOCHS) {
            let remedy = if shard.epochs > OVERFITTING_EPOCHS {
                "use --early-stopping when you evaluate and serve, more text, or routing.overlap = 2"
            } else {
                "more text or routing.overlap = 2 would help"
            };
            warnings.push(format!("a path reads its shard {}: {remedy}", shard.times()));
        }
        for warning in self.levels.iter().flat_map(|level| level.warnings(setting.learning_rate)) {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        if setting.inner_steps != law::INNER_STEPS
            && self.levels.iter().any(|level| level.literature_outer_rate.is_some())
        {
            warnings.push(format!(
                "the outer rates by the law are those of H = {}, and this run has {}: the best rate grows with H (arXiv:2503.09799 \
                 figure 8)",
                law::INNER_STEPS,
                setting.inner_steps
            ));
        }
        let per_parameter = self.training.tokens_per_parameter;
        if self.levels.iter().any(|level| level.prediction.is_some())
            && !(TOKENS_PER_PARAMETER / NEAR..=TOKENS_PER_PARAMETER * NEAR).contains(&per_parameter)
        {
            let at_most = if self.training.at_most { "at most " } else { "" };
            warnings.push(format!(
                "the losses are those of {TOKENS_PER_PARAMETER} tokens per parameter, and this run has {at_most}{per_parameter:.1} \
                 per path: the law says nothing about its loss"
            ));
        }
        warnings
    }
}

impl ShardPlan {
    /// The shard of a path that trains on so many tokens, padding included; `None` if the corpus is not known.
    fn new(setting: &Setting, path_tokens: u64) -> Option<Self> {
        let share = setting.trained_share * setting.overlap as f64 / setting.paths.max(1) as f64;
        let tokens = setting.corpus_tokens? as f64 * share;
        let documents = setting.corpus_documents.map(|documents| documents as f64 * share);
        let length = setting.sequence_tokens.max(1) as f64;
        let packed = tokens / length;
        // Without packing a document is a sequence of its own, or several. The lengths of documents are not known.
        let sequences = if setting.packing { packed } else { packed.max(documents.unwrap_or(0.0)) };
        let epochs = path_tokens as f64 / (sequences.max(1.0) * length);
        Some(Self { tokens, documents, epochs, at_most: !setting.packing })
    }

    /// How often its path reads it, in words: "2.4 times", or "at most 2.4 times".
    #[must_use]
    pub fn times(&self) -> String {
        format!("{}{:.1} times", if self.at_most { "at most " } else { "" }, self.epochs)
    }
}

impl LevelPlan {
    /// Settings of a level that are far from those of the literature.
    fn warnings(&self, learning_rate: f64) -> Vec<String> {
        let mut warnings = Vec::new();
        let paths = match (self.paths_per_module, self.paths_per_step) {
            (1, _) => "a module of one path".to_owned(),
            (all, some) if some < all => format!("a module of {all} paths (about {some} in an outer step)"),
            (all, _) => format!("a module of {all} paths"),
        };
        let far = |ratio: f64, most: f64| !(1.0 / most..=most).contains(&ratio);
        if let (Some(outer), Some(default), Some(literature)) =
            (self.outer_rate, self.default_outer_rate, self.literature_outer_rate)
            && far(outer.rate / literature, FAR)
        {
            warnings.push(format!(
                "the mean outer gradient of {paths} acts with the outer rate {:.2}; arXiv:2503.09799 has about \
                 {literature:.2} with the same momentum, and the program's default is {:.2} with a momentum of {}",
                outer.rate, default.rate, default.momentum
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
    let replicas = level.paths_per_step;
    let prediction: Result<Prediction, String> = if level.trains {
        law::diloco(parameters, replicas).map_err(|error| error.to_string())
    } else {
        Err("a frozen level does not train".to_owned())
    };
    let outer_rate = level.outer_rate.filter(|_| level.trains);
    let of_the_papers = outer_rate.filter(|outer| outer.momentum == MOMENTUM_OF_THE_PAPERS);
    LevelPlan {
        level: level.level,
        paths_per_module: level.paths_per_module,
        paths_per_step: replicas,
        outer_rate,
        default_outer_rate: outer_rate.and(level.default_outer_rate),
        literature_outer_rate: of_the_papers.and(law::outer_learning_rate(parameters, replicas).ok()),
        advised_step_tokens: prediction.as_ref().ok().map(|law| law.batch_tokens / f64::from(replicas)),
        prediction: prediction.as_ref().ok().copied(),
        refused: prediction.err(),
    }
}

#[cfg(test)]
mod tests;
