//! Checks that the values of a configuration are in range and fit together.

mod eager;
mod early_stopping;
mod fragments;
mod paths_per_round;
mod phases;
mod state_dtype;
mod synchronous;
#[cfg(test)]
mod tests;

use dipaco_routing::{FeatureKind, RouterKind};
use dipaco_sync::{EmbeddingMean, Rescale, ScheduleError, Weighting};
use dipaco_topology::Topology;

use crate::{ConfigError, OuterConfig, Problem, RunConfig, RunSection, TrainConfig};

impl RunConfig {
    /// Checks every section, and that the sections fit together.
    ///
    /// # Errors
    /// [`ConfigError::Problems`] with all errors at once.
    pub fn check(&self) -> Result<(), ConfigError> {
        let problems = self.problems();
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Problems(problems)) }
    }

    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = Problems::default();
        self.check_run(&mut problems);
        problems.result(self.model.check());
        problems.result(self.prepare.check());
        problems.result(self.serve.check());
        self.check_seed(&mut problems);
        self.check_transformer_router(&mut problems);
        self.check_train(&mut problems);
        problems.result(self.routing.check());
        problems.result(self.routing.check_start());
        problems.result(self.evaluation.check());
        self.check_together(&mut problems);
        problems.0
    }

    fn check_run(&self, problems: &mut Problems) {
        let name = &self.run.name;
        let most = RunSection::NAME_LETTERS;
        if name.is_empty()
            || name.len() > most
            || !name.chars().all(RunSection::is_name_letter)
            || name.starts_with('.')
        {
            problems.add(format!(
                "run.name is {name:?}: it names a directory and a model, so use 1 to {most} letters, digits, -, _ and ., not \
                 beginning with a dot"
            ));
        }
        if self.run.store.as_deref().is_some_and(may_hold_secret) {
            problems.add(
                "run.store has a password, a query or a fragment: leave it out, and give credentials in the environment, \
                 because this configuration is saved with the run"
                    .to_owned(),
            );
        }
        if i64::try_from(self.run.seed).is_err() {
            problems.add(
                "run.seed is above 9223372036854775807, the largest number that TOML can hold".to_owned(),
            );
        }
    }

    fn check_seed(&self, problems: &mut Problems) {
        let seed = &self.seed_model;
        problems.at_least_one("seed_model.batch", seed.batch as u64);
        problems.at_least_one("seed_model.sequence_tokens", seed.sequence_tokens as u64);
        problems.divides("seed_model.micro_batch", seed.micro_batch, "seed_model.batch", seed.batch);
        problems.at_least_one("seed_model.checkpoint_every", seed.checkpoint_every);
        problems.of_section("seed_model.adamw", seed.adamw.check());
        problems.of_section("seed_model.schedule", seed.schedule.check());
        problems.at_most_context("seed_model.sequence_tokens", seed.sequence_tokens, self.model.context);
    }

    fn check_transformer_router(&self, problems: &mut Problems) {
        let router = &self.transformer_router;
        problems.at_least_one("transformer_router.steps", router.steps);
        problems.at_least_one("transformer_router.batch", router.batch as u64);
        problems.divides(
            "transformer_router.micro_batch",
            router.micro_batch,
            "transformer_router.batch",
            router.batch,
        );
        problems.at_least_one("transformer_router.validate_every", router.validate_every);
        problems.of_section("transformer_router.adamw", router.adamw.check());
        problems.of_section("transformer_router.schedule", router.schedule.check());
        if !(0.0..1.0).contains(&router.holdout_fraction) {
            problems.add(format!(
                "transformer_router.holdout_fraction is {}: use at least 0 and below 1",
                router.holdout_fraction
            ));
        }
    }

    fn check_sync(&self, problems: &mut Problems) {
        for (key, problem) in self.sync.check() {
            problems.add(format!("sync.{key} {problem}"));
        }
        self.check_eager(problems);
        let ends = self.routing.phases.iter().map(|phase| phase.round).chain([self.train.rounds]);
        // Other errors of the schedule come from rounds and phases, which have their own checks.
        let problem = match self.sync.schedule(self.run.seed, self.train.inner_steps, ends) {
            Err(error @ ScheduleError::Fragments { .. }) => format!("sync.fragments: {error}"),
            Err(error @ ScheduleError::Overlap { .. }) => format!("sync.overlap_steps: {error}"),
            Err(error @ ScheduleError::Drops { .. }) => format!("sync.drop_rate: {error}"),
            Err(ScheduleError::Empty) if self.sync.fragments == 0 => {
                "sync.fragments is 0: use at least 1".to_owned()
            }
            _ => return,
        };
        problems.add(problem);
    }

    fn check_outer(&self, problems: &mut Problems) {
        let outer = &self.outer;
        problems.of_section("outer.nesterov", outer.nesterov.check());
        if !outer.rescale.in_range() {
            let exponent = self.value("outer.rescale").unwrap_or_default();
            problems.add(format!("outer.rescale is {exponent}: use an exponent from -1 to 1"));
        }
        self.check_synchronous(problems);
        self.check_level_learning_rates(problems);
        self.check_embedding_mean(problems);
        self.check_merge(problems);
        if !(outer.guard.is_finite() && outer.guard >= 0.0) {
            problems.add(format!("outer.guard is {}: use a number from 0", outer.guard));
        }
        if !(0.0..=1.0).contains(&outer.error_feedback) {
            problems.add(format!("outer.error_feedback is {}: use 0 to 1", outer.error_feedback));
        }
        if let Some(delayed) = outer.delayed() {
            if outer.weighting == Weighting::Tokens {
                problems.add(
                    "outer.delay can't be combined with outer.weighting = \"tokens\": contributions are applied one by one"
                        .to_owned(),
                );
            }
            problems.of_section("outer", delayed.check());
            if outer.rescale == Rescale::Rda {
                problems.add(
                    "outer.rescale is \"rda\", which needs the contributions of an outer step together, but outer.delay \
                     applies them one by one: take an exponent, or outer.delay = 0"
                        .to_owned(),
                );
            }
        }
    }

    fn check_level_learning_rates(&self, problems: &mut Problems) {
        let (rates, levels) = (&self.outer.level_learning_rates, self.topology.levels.len());
        if !rates.is_empty() && rates.len() != levels {
            problems.add(format!(
                "outer.level_learning_rates has {} numbers but the topology has {levels} levels: give one number per level, or \
                 none",
                rates.len()
            ));
        }
        if let Some(rate) = rates.iter().find(|rate| !(rate.is_finite() && **rate > 0.0)) {
            problems.add(format!("outer.level_learning_rates has {rate}: use numbers above 0"));
        }
    }

    fn check_merge(&self, problems: &mut Problems) {
        let OuterConfig { merge, clip_radius, trim_share, delay, .. } = &self.outer;
        if !(clip_radius.is_finite() && *clip_radius > 0.0) {
            problems.add(format!("outer.clip_radius is {clip_radius}: use a number above 0"));
        }
        if !(0.0..0.5).contains(trim_share) {
            problems.add(format!("outer.trim_share is {trim_share}: use at least 0 and below 0.5"));
        }
        if !merge.compares() {
            return;
        }
        let merge = self.value("outer.merge").unwrap_or_default();
        if *delay > 0 {
            problems.add(format!(
                "outer.merge is {merge}, which compares the contributions of an outer step, but outer.delay applies them \
                 one by one: use \"mean\", or outer.delay = 0"
            ));
        }
        if self.sync.eager {
            problems.add(format!(
                "outer.merge is {merge}, but with sync.eager a path must know its part of the result beforehand: use \
                 \"mean\""
            ));
        }
    }

    fn check_embedding_mean(&self, problems: &mut Problems) {
        if self.outer.embedding_mean == EmbeddingMean::Paths {
            return;
        }
        let mut against = |problem: &str| {
            problems.add(format!("outer.embedding_mean is \"touched\", but {problem}"));
        };
        if self.model.tie_embeddings {
            against("with model.tie_embeddings every step of every path touches every row: use \"paths\"");
        }
        if self.model.embedding_decay {
            against(
                "weight decay changes every row in every step, so every path touches every row: set \
                 model.embedding_decay = false",
            );
        }
        if self.outer.delay > 0 {
            against("outer.delay applies contributions one by one: use \"paths\", or outer.delay = 0");
        }
        if self.sync.eager {
            against("with sync.eager a path must know its weight in each row beforehand: use \"paths\"");
        }
    }

    fn check_train(&self, problems: &mut Problems) {
        let train = &self.train;
        problems.at_least_one("train.rounds", u64::from(train.rounds));
        problems.at_least_one("train.inner_steps", train.inner_steps);
        problems.at_least_one("train.batch", train.batch as u64);
        problems.at_least_one("train.sequence_tokens", train.sequence_tokens as u64);
        problems.divides("train.micro_batch", train.micro_batch, "train.batch", train.batch);
        problems.of_section("train.adamw", train.adamw.check());
        problems.of_section("train.schedule", train.schedule.check());
        self.check_outer(problems);
        self.check_sync(problems);
        self.check_paths_per_round(problems);
        self.check_state_dtype(problems);
        problems.at_least_one("train.state_every", u64::from(train.state_every));
        problems.at_least_one("train.held_paths", train.held_paths as u64);
        if !(1..=86_400).contains(&train.lease_seconds) {
            problems.add(format!("train.lease_seconds is {}: use 1 to 86400", train.lease_seconds));
        }
        if !(1..=100_000).contains(&train.max_workers) {
            problems.add(format!("train.max_workers is {}: use 1 to 100000", train.max_workers));
        }
        let (threads, most) = (train.threads_per_worker, TrainConfig::MOST_THREADS);
        if threads > most {
            problems.add(format!(
                "train.threads_per_worker is {threads}: use 1 to {most}, or 0 to share the cores"
            ));
        }
        if !(train.lease_seconds..=86_400).contains(&train.standstill_seconds) {
            problems.add(format!(
                "train.standstill_seconds is {}: use train.lease_seconds ({}) to 86400",
                train.standstill_seconds, train.lease_seconds
            ));
        }
        problems.at_most_context("train.sequence_tokens", train.sequence_tokens, self.model.context);
        if !(0.0..1.0).contains(&train.holdout_fraction) {
            problems.add(format!(
                "train.holdout_fraction is {}: use at least 0 and below 1",
                train.holdout_fraction
            ));
        }
        if train.holdout_sequences > 0 && train.holdout_fraction == 0.0 {
            problems.add(format!(
                "train.holdout_sequences is {} but train.holdout_fraction is 0, so no document is held out: raise the \
                 fraction, or set train.holdout_sequences = 0 to turn early stopping off",
                train.holdout_sequences
            ));
        }
    }

    fn check_together(&self, problems: &mut Problems) {
        if !self.routing.phases.is_empty() && self.routing.router_share == 0.0 {
            problems.add(
                "routing.phases are set but routing.router_share is 0: reserve documents for fitting the routers of the phases, \
                 0.005 of a large corpus or 0.02 of a small corpus"
                    .to_owned(),
            );
        }
        if let Some(phase) = self.routing.phases.iter().find(|phase| phase.round >= self.train.rounds) {
            problems.add(format!(
                "routing.phases[].round is {} but train.rounds is {}: no round is left for the phase, so begin it earlier or \
                 train longer",
                phase.round, self.train.rounds
            ));
        }
        let context = self.model.context;
        problems.at_most_context("routing.prefix_tokens", self.routing.prefix_tokens, context);
        if self.routing.kind == RouterKind::Labels && self.routing.labels.is_none() {
            problems.add("routing.kind is \"labels\" but routing.labels names no label file".to_owned());
        }
        if let Some(blocks) = self.routing.feature_blocks.filter(|&blocks| blocks > self.model.blocks) {
            problems
                .add(format!("routing.feature_blocks is {blocks} but model.blocks is {}", self.model.blocks));
        }
        if self.routing.feature_blocks.is_some() && self.routing.features != FeatureKind::Seed {
            problems.add(
                "routing.feature_blocks counts blocks of the seed: set routing.features = \"seed\", or leave it out"
                    .to_owned(),
            );
        }
        if self.evaluation.prefix_tokens < self.routing.prefix_tokens {
            problems.add(format!(
                "evaluation.prefix_tokens is {} but the router reads routing.prefix_tokens = {}: tokens that the router \
                 reads must not be counted, so raise evaluation.prefix_tokens",
                self.evaluation.prefix_tokens, self.routing.prefix_tokens
            ));
        }
        // A given tokenizer has its own vocabulary, which is checked when the tokenizer is read.
        let (model, trained) = (self.model.vocab_size, self.prepare.vocab_size as usize);
        if self.prepare.tokenizer.is_none() && model != 0 && model < trained {
            problems.add(format!(
                "model.vocab_size is {model} but the tokenizer is trained with prepare.vocab_size = {trained}: leave \
                 model.vocab_size at 0, or give at least as many rows as the tokenizer has entries"
            ));
        }
        if self.evaluation.prefix_tokens >= context {
            problems.add(format!(
                "evaluation.prefix_tokens is {} but model.context is {context}: no token is left to count",
                self.evaluation.prefix_tokens
            ));
        }
        let (sequence, longest) = (self.evaluation.sequence_tokens, context.saturating_add(1));
        if sequence > longest {
            problems.add(format!(
                "evaluation.sequence_tokens is {sequence} but model.context is {context}: use at most {longest}, or 0 for the \
                 context"
            ));
        }
        match Topology::new(&self.topology, self.model.blocks) {
            Err(error) => problems.add(error.to_string()),
            Ok(topology) => {
                // Errors of the model's own values are already in the list.
                if self.model.check().is_ok() {
                    let fits = self.model.check_topology(&topology);
                    if fits.is_ok() {
                        self.check_fragments(&topology, problems);
                    }
                    problems.result(fits);
                }
                self.check_phases(&topology, problems);
                let (overlap, paths) = (self.routing.overlap, topology.paths());
                if overlap > paths as usize {
                    problems.add(format!(
                        "routing.overlap is {overlap} but the topology has {paths} paths: there are not more shards than \
                         paths"
                    ));
                }
            }
        }
    }
}

/// True if an address of a store has room for a secret. The package `store` refuses such an address too; here it is found
/// before the configuration is saved.
fn may_hold_secret(address: &str) -> bool {
    let Some((_, rest)) = address.split_once("://") else { return false };
    let host = rest.split('/').next().unwrap_or(rest);
    rest.contains(['?', '#']) || host.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

/// The errors found so far.
#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, message: String) {
        self.0.push(Problem::of(message));
    }

    fn result<E: std::fmt::Display>(&mut self, result: Result<(), E>) {
        if let Err(error) = result {
            self.add(error.to_string());
        }
    }

    /// Like [`Problems::result`], for errors that name their key relative to its section.
    fn of_section<E: std::fmt::Display>(&mut self, section: &str, result: Result<(), E>) {
        if let Err(error) = result {
            self.add(format!("{section}.{error}"));
        }
    }

    fn at_least_one(&mut self, key: &str, value: u64) {
        if value == 0 {
            self.add(format!("{key} is 0: use at least 1"));
        }
    }

    /// Checks that `part` divides `whole`; 0 stands for the whole.
    fn divides(&mut self, key: &str, part: usize, whole_key: &str, whole: usize) {
        if part != 0 && !whole.is_multiple_of(part) {
            self.add(format!(
                "{key} is {part} but {whole_key} is {whole}: use a number that divides it, or 0 for all at once"
            ));
        }
    }

    fn at_most_context(&mut self, key: &str, value: usize, context: usize) {
        if value > context {
            self.add(format!(
                "{key} is {value} but model.context is {context}: lower {key} or raise model.context"
            ));
        }
    }
}
