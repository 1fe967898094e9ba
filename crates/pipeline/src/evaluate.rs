//! Perplexity of the models of a run on its validation text.

mod check;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_config::RunConfig;
use dipaco_eval::{
    CONTINUATION, Choice, ChunkRouting, Domains, EvalError, Evaluation, EvaluationConfig, EvaluationProgress,
    EvaluationProgressFn, Mixture, Protocol, Ranking, RerouteBy, RouteUnit, Stage, Tempered, TokenRouter,
    evaluate_dense, evaluate_mixture, evaluate_path, evaluate_routed, rank_dense, rank_routed,
};
use dipaco_path::TrainDevice;
use dipaco_routing::{RecentRouter, Router, ShardSet, TextRouter, TransformerRouter};
use dipaco_telemetry::{Progress, ProgressUnit, Task};
use dipaco_topology::PathId;

use crate::error::PipelineError;
use crate::matching_shards::check_validation_shards;
use crate::path_source::PathsInTurn;
use crate::prepared::{token_file, tokenizer};
use crate::run_directory::RunDirectory;
use crate::scored_path::ScoringDevice;
use crate::transformer_router;
use crate::weights::Weights;

pub use check::check_validation_text;

/// Temperature of the router's squared distances in an ensemble, where nobody gives another.
pub const ENSEMBLE_TEMPERATURE: f64 = 0.1;

/// The model that is evaluated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Subject {
    /// The routed model: every validation document by the path that the router chooses, or each sequence by its own path.
    Routed(RouteUnit),
    /// The routed model, where a router chooses a path again within a sequence. The document's path begins.
    Rerouted {
        /// W, tokens between two choices, at least 1.
        tokens: usize,
        /// The router that chooses.
        by: RerouteBy,
    },
    /// For each sequence the weighted mean of the probabilities of its best paths (c-BTM, arXiv:2303.14177).
    Ensemble {
        /// Number of paths for each sequence, at least 1.
        paths: usize,
        /// Temperature of the router's distances, above 0.
        temperature: f64,
    },
    /// The path with the lowest loss on each document, chosen after reading it: a bound for every router.
    Oracle,
    /// A random path for each document.
    RandomPath,
    /// The mean of the weights of all paths, on all validation documents.
    Soup,
    /// One path, on all validation documents.
    Path(PathId),
    /// The seed, on all validation documents.
    Seed,
    /// The imported model that the seed began with, on all validation documents.
    Imported,
}

/// A run whose models are evaluated.
#[derive(Clone, Copy)]
pub struct EvaluatedRun<'a> {
    /// The run's folder.
    pub run: &'a RunDirectory,
    /// Its configuration, with the vocabulary. Its section of the evaluation may differ from that of the weights: two
    /// models that are compared read sequences of one length.
    pub config: &'a RunConfig,
    /// The weights.
    pub weights: &'a Weights,
    /// The device that scores the text. Routers choose on the CPU.
    pub device: &'a TrainDevice,
}

impl<'a> EvaluatedRun<'a> {
    fn scoring(self) -> ScoringDevice<'a> {
        ScoringDevice::new(self.device, self.config)
    }
}

/// The settings of an evaluation that compares models with these contexts. Where no length of sequences is set, it becomes the
/// smaller context: short sequences raise the perplexity of every model, so each must read sequences of the same length.
///
/// # Errors
/// [`PipelineError::Eval`] when the smaller context is too small for the settings.
pub fn comparable(
    evaluation: &EvaluationConfig,
    contexts: [usize; 2],
) -> Result<EvaluationConfig, PipelineError> {
    let [one, other] = contexts;
    let sequence_tokens = evaluation.sequence_for(one.min(other)).map_err(EvalError::from)?;
    Ok(EvaluationConfig { sequence_tokens, ..evaluation.clone() })
}

/// Evaluates models of a run, one after the other.
pub struct Evaluator<'a> {
    evaluated: EvaluatedRun<'a>,
    /// Number of validation shards, when a check has opened them.
    shards: Option<u32>,
    /// The transformer router, when a check has opened it.
    transformer: Option<Arc<TransformerRouter>>,
}

impl<'a> Evaluator<'a> {
    /// An evaluator that has not read anything.
    #[must_use]
    pub fn new(evaluated: EvaluatedRun<'a>) -> Self {
        Self { evaluated, shards: None, transformer: None }
    }

    /// Evaluates a model by the paper's protocol, and with `domains` for each domain too. With `evaluation.rank_candidates` it
    /// also ranks continuations. Blocks on the store.
    ///
    /// # Errors
    /// When the run is not prepared, trained or routed, when a file can't be read, when the device fails, or when `cancel` was
    /// set.
    pub fn evaluate(
        &self,
        subject: Subject,
        domains: Option<&Domains>,
        progress: &Progress,
        cancel: &AtomicBool,
    ) -> Result<Evaluation, PipelineError> {
        let evaluated = self.evaluated;
        let EvaluatedRun { run, config, weights, .. } = evaluated;
        let device = evaluated.scoring();
        let bytes = token_bytes(run)?;
        let protocol = Protocol { config: &config.evaluation, token_bytes: Some(&bytes), domains };
        let mut task: Option<(Stage, Task)> = None;
        let mut show = |step: EvaluationProgress| {
            let (name, unit) = match step.stage {
                Stage::Routing => ("choose paths", "sequences"),
                Stage::Scoring => ("evaluate", "sequences"),
                Stage::Ranking => ("rank", "prompts"),
            };
            if task.as_ref().is_some_and(|(stage, _)| *stage != step.stage)
                && let Some((_, done)) = task.take()
            {
                done.finish();
            }
            let (_, task) = task.get_or_insert_with(|| {
                (step.stage, progress.task(name, Some(step.total), ProgressUnit::Count(unit)))
            });
            task.set(step.done);
            if cancel.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let file = || token_file(run, &run.validation_tokens());
        let mut result = match subject {
            Subject::Seed => {
                evaluate_dense(&device.place(weights.seed()?)?, &*file()?, &protocol, &mut show)?
            }
            Subject::Imported => {
                let imported = weights.imported()?.ok_or(PipelineError::NotImported)?;
                evaluate_dense(&device.place(imported)?, &*file()?, &protocol, &mut show)?
            }
            Subject::Soup => {
                evaluate_dense(&device.place(weights.soup()?)?, &*file()?, &protocol, &mut show)?
            }
            Subject::Path(path) => {
                let model = device.place(weights.path(path)?)?;
                evaluate_path(path, &model, &*file()?, &protocol, &mut show)?
            }
            Subject::Routed(unit) => {
                let (shards, router) = validation_shards(run, weights)?;
                let windows = match unit {
                    RouteUnit::Document => None,
                    RouteUnit::Window => Some(text_router(run, weights, router)?),
                };
                let choice = windows.as_ref().map_or(Choice::Document, |router| Choice::Window(router));
                let mut paths = PathsInTurn::new(weights, device);
                evaluate_routed(&shards, &mut paths, choice, &protocol, &mut show)?
            }
            Subject::Rerouted { tokens, by } => {
                let (shards, router) = validation_shards(run, weights)?;
                let router = self.token_router(by, router)?;
                let choice = Choice::Chunks(ChunkRouting { router: &*router, tokens });
                let mut paths = PathsInTurn::new(weights, device);
                evaluate_routed(&shards, &mut paths, choice, &protocol, &mut show)?
            }
            Subject::Ensemble { paths, temperature } => {
                ensemble(evaluated, paths, temperature, &protocol, &mut show)?
            }
            Subject::Oracle => mixture(evaluated, Mixture::Oracle, &protocol, &mut show)?,
            Subject::RandomPath => {
                mixture(evaluated, Mixture::Random { seed: config.run.seed }, &protocol, &mut show)?
            }
        };
        result.ranking = rank(evaluated, subject, &protocol, &mut show)?;
        if let Some((_, task)) = task {
            task.finish();
        }
        Ok(result)
    }

    /// A router that chooses paths within a text. `router` is that of the validation shards.
    fn token_router(
        &self,
        by: RerouteBy,
        router: Option<Router>,
    ) -> Result<Arc<dyn TokenRouter>, PipelineError> {
        let EvaluatedRun { run, weights, .. } = self.evaluated;
        let router: Arc<dyn TokenRouter> = match (by, &self.transformer) {
            (RerouteBy::Transformer, Some(open)) => open.clone(),
            (RerouteBy::Transformer, None) => Arc::new(transformer_router::open(run, weights)?),
            (RerouteBy::Features, _) => {
                Arc::new(RecentRouter::new(Arc::new(text_router(run, weights, router)?)))
            }
        };
        Ok(router)
    }
}

/// Evaluates one model. Blocks on the store.
///
/// # Errors
/// As [`Evaluator::evaluate`].
pub fn evaluate(
    evaluated: EvaluatedRun<'_>,
    subject: Subject,
    domains: Option<&Domains>,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<Evaluation, PipelineError> {
    Evaluator::new(evaluated).evaluate(subject, domains, progress, cancel)
}

/// Ranks continuations if `evaluation.rank_candidates` asks for it. Returns `None` for a model that has no path for a
/// prompt: it chooses paths within a text or after reading it, or mixes them.
fn rank(
    evaluated: EvaluatedRun<'_>,
    subject: Subject,
    protocol: &Protocol<'_>,
    progress: &mut EvaluationProgressFn<'_>,
) -> Result<Option<Ranking>, PipelineError> {
    let EvaluatedRun { run, weights, .. } = evaluated;
    let device = evaluated.scoring();
    let candidates = protocol.config.rank_candidates;
    if candidates == 0 {
        return Ok(None);
    }
    let model = match subject {
        Subject::Seed => Some(weights.seed()?),
        Subject::Imported => Some(weights.imported()?.ok_or(PipelineError::NotImported)?),
        Subject::Soup => Some(weights.soup()?),
        Subject::Path(path) => Some(weights.path(path)?),
        Subject::Routed(_) => None,
        Subject::Rerouted { .. } | Subject::Ensemble { .. } | Subject::Oracle | Subject::RandomPath => {
            return Ok(None);
        }
    };
    let ranking = if let Some(model) = model {
        let file = token_file(run, &run.validation_tokens())?;
        rank_dense(&device.place(model)?, &file, candidates, protocol, progress)?
    } else {
        let (shards, _) = validation_shards(run, weights)?;
        let mut paths = PathsInTurn::new(weights, device);
        rank_routed(&shards, &mut paths, candidates, protocol, progress)?
    };
    if ranking.prompts == 0 {
        tracing::warn!(
            "no continuation is ranked: a prompt needs a document of {} tokens or more (evaluation.prefix_tokens), and \
             {candidates} documents, with labels of one domain, that continue differently (--rank, \
             evaluation.rank_candidates)",
            ranking.prompt_tokens + CONTINUATION + 1
        );
    }
    Ok(Some(ranking))
}

fn mixture(
    evaluated: EvaluatedRun<'_>,
    mixture: Mixture<'_>,
    protocol: &Protocol<'_>,
    progress: &mut EvaluationProgressFn<'_>,
) -> Result<Evaluation, PipelineError> {
    let EvaluatedRun { run, weights, .. } = evaluated;
    let device = evaluated.scoring();
    let mut paths = PathsInTurn::new(weights, device);
    Ok(evaluate_mixture(&validation_shards(run, weights)?.0, &mut paths, mixture, protocol, progress)?)
}

fn ensemble(
    evaluated: EvaluatedRun<'_>,
    paths: usize,
    temperature: f64,
    protocol: &Protocol<'_>,
    progress: &mut EvaluationProgressFn<'_>,
) -> Result<Evaluation, PipelineError> {
    let EvaluatedRun { run, weights, .. } = evaluated;
    let (shards, router) = validation_shards(run, weights)?;
    let router = text_router(run, weights, router)?;
    let router = Tempered { router: &router, temperature };
    let mixture = Mixture::Ensemble { router: &router, paths };
    let mut models = PathsInTurn::new(weights, evaluated.scoring());
    Ok(evaluate_mixture(&shards, &mut models, mixture, protocol, progress)?)
}

/// The router of [`validation_shards`], with the seed.
fn text_router(
    run: &RunDirectory,
    weights: &Weights,
    router: Option<Router>,
) -> Result<TextRouter, PipelineError> {
    let folder = || run.routing(weights.manifest().phase()).root().to_owned();
    let router = router.ok_or_else(|| PipelineError::NotRouted { folder: folder() })?;
    TextRouter::new(router, weights.model(), weights.seed_hash()?, || weights.seed())
}

/// The validation shards of the current phase, which belong to its router and to the validation text, with that router unless
/// the run has lost it.
pub(crate) fn validation_shards(
    run: &RunDirectory,
    weights: &Weights,
) -> Result<(ShardSet, Option<Router>), PipelineError> {
    let folder = run.routing(weights.manifest().phase()).validation();
    if !folder.exists() {
        // A run without validation text can be routed again and again.
        token_file(run, &run.validation_tokens()).map(drop)?;
        return Err(PipelineError::NotRouted { folder });
    }
    let shards = ShardSet::open(&folder)?;
    let router = check_validation_shards(run, weights, &shards)?;
    Ok((shards, router))
}

/// Bytes of text of each token of the vocabulary.
fn token_bytes(run: &RunDirectory) -> Result<Vec<u32>, PipelineError> {
    let tokenizer = tokenizer(run)?;
    let length = |id| Ok(u32::try_from(tokenizer.token_bytes(id)?.len()).unwrap_or(u32::MAX));
    (0..tokenizer.vocab_size()).map(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_of_different_contexts_are_compared_on_sequences_that_both_can_read() {
        let length = |sequence_tokens, contexts| {
            let evaluation = EvaluationConfig { sequence_tokens, ..EvaluationConfig::default() };
            comparable(&evaluation, contexts).map(|evaluation| evaluation.sequence_tokens)
        };
        assert_eq!(length(0, [256, 128]).unwrap(), 128);
        assert_eq!(length(0, [128, 256]).unwrap(), 128);
        assert_eq!(length(64, [256, 128]).unwrap(), 64, "what the user sets counts");
        let refused = |sequence_tokens, contexts| length(sequence_tokens, contexts).unwrap_err().to_string();
        assert!(refused(200, [256, 128]).contains("evaluation.sequence_tokens is 200"));
        assert!(refused(0, [256, 32]).contains("evaluation.prefix_tokens is 32"));
    }
}
