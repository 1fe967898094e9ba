//! Perplexity of a run's models on its validation text.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_config::RunConfig;
use dipaco_eval::{Evaluation, EvaluationConfig, evaluate_dense, evaluate_path, evaluate_routed};
use dipaco_routing::{ShardSet, Source};
use dipaco_telemetry::{Progress, Unit};
use dipaco_topology::PathId;

use crate::run_directory::RunDirectory;
use crate::steps::error::StepError;
use crate::steps::seed::{token_file, tokenizer};
use crate::steps::weights::Weights;

/// What is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Every validation document by the path that the router gives it to.
    Routed,
    /// Every validation document by one path.
    Path(PathId),
    /// Every validation document by the seed.
    Seed,
}

/// Evaluates by the paper's protocol. Blocks: call it from a thread that may.
pub(crate) fn evaluate(
    run: &RunDirectory,
    config: &RunConfig,
    weights: &Weights,
    subject: Subject,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<Evaluation, StepError> {
    let setting: &EvaluationConfig = &config.evaluation;
    let bytes = token_bytes(run)?;
    let task = progress.task("evaluate", None, Unit::Count("documents"));
    let mut show = |step: dipaco_eval::EvaluationProgress| {
        task.set_total(step.total);
        task.set(step.done);
        if cancel.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let file = || token_file(run, &run.validation_tokens());
    let result = match subject {
        Subject::Seed => evaluate_dense(&weights.seed()?, &*file()?, setting, Some(&bytes), &mut show)?,
        Subject::Path(path) => {
            evaluate_path(path, &weights.path(path)?, &*file()?, setting, Some(&bytes), &mut show)?
        }
        Subject::Routed => {
            let folder = run.routing(weights.manifest().phase()).validation();
            if !folder.exists() {
                return Err(StepError::NotRouted { folder });
            }
            let shards = ShardSet::open(&folder)?;
            let load = |path| weights.path(path).map_err(|error| Source::from(error.to_string()));
            evaluate_routed(&shards, load, setting, Some(&bytes), &mut show)?
        }
    };
    task.finish();
    Ok(result)
}

/// How many bytes of text each token stands for.
fn token_bytes(run: &RunDirectory) -> Result<Vec<u32>, StepError> {
    let tokenizer = tokenizer(run)?;
    let length = |id| Ok(u32::try_from(tokenizer.token_bytes(id)?.len()).unwrap_or(u32::MAX));
    (0..tokenizer.vocab_size()).map(length).collect()
}
