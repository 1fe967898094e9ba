//! Scoring token files.

use std::ops::ControlFlow;

use dipaco_routing::ShardSet;
use dipaco_shards::TokenFile;
use dipaco_topology::PathId;

use crate::evaluation::{Evaluation, Totals};
use crate::sequences::{GROUP, Scorer, Sequence, cut};
use crate::{EvalError, EvaluationConfig, LanguageModel, Source};

/// How far an evaluation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationProgress {
    /// The path that is being scored; absent for a dense model.
    pub path: Option<PathId>,
    /// Documents that are done, in all shards.
    pub done: u64,
    /// Documents in all.
    pub total: u64,
}

/// Told each step; `Break` stops the evaluation with [`EvalError::Cancelled`].
pub type ProgressFn<'a> = dyn FnMut(EvaluationProgress) -> ControlFlow<()> + 'a;

/// The perplexity of one model on a token file. `token_bytes` has the length in bytes of each token of the vocabulary,
/// for [`Evaluation::bits_per_byte`].
///
/// # Errors
///
/// Settings that do not fit the model, a model that fails or gives numbers that are not finite, no document that is
/// longer than the prefix, or [`EvalError::Cancelled`].
pub fn evaluate_dense(
    model: &dyn LanguageModel,
    file: &TokenFile,
    config: &EvaluationConfig,
    token_bytes: Option<&[u32]>,
    progress: &mut ProgressFn<'_>,
) -> Result<Evaluation, EvalError> {
    evaluate_file(None, model, file, config, token_bytes, progress)
}

/// The perplexity of one path on a token file, whatever a router says: its own shard, another one's, or all text.
///
/// # Errors
///
/// As [`evaluate_dense`].
pub fn evaluate_path(
    path: PathId,
    model: &dyn LanguageModel,
    file: &TokenFile,
    config: &EvaluationConfig,
    token_bytes: Option<&[u32]>,
    progress: &mut ProgressFn<'_>,
) -> Result<Evaluation, EvalError> {
    evaluate_file(Some(path), model, file, config, token_bytes, progress)
}

/// The perplexity of a routed model: each path is scored on its own validation shard, and all tokens count alike.
///
/// `load` is called once for each path that has documents, in their order, and its model is dropped before the next is
/// loaded; whoever gives it shares the modules that several paths have.
///
/// # Errors
///
/// As [`evaluate_dense`]; further [`EvalError::Load`] and [`EvalError::Shard`].
pub fn evaluate_routed<M: LanguageModel>(
    shards: &ShardSet,
    mut load: impl FnMut(PathId) -> Result<M, Source>,
    config: &EvaluationConfig,
    token_bytes: Option<&[u32]>,
    progress: &mut ProgressFn<'_>,
) -> Result<Evaluation, EvalError> {
    config.check()?;
    let total = shards.shards().iter().map(|shard| limited(shard.documents, config)).sum();
    let mut all = Totals::default();
    let mut per_path = Vec::with_capacity(shards.shards().len());
    let mut sequence_tokens = config.sequence_tokens;
    for shard in shards.shards() {
        let path = shard.path;
        let mut own = Totals::default();
        if shard.documents > 0 {
            let file = shards.open_shard(path).map_err(|source| EvalError::Shard { path, source })?;
            let model = load(path).map_err(|source| EvalError::Load { path, source })?;
            sequence_tokens = config.resolve_sequence(model.context())?;
            let done_before = all.documents;
            let report = |done| EvaluationProgress { path: Some(path), done: done_before + done, total };
            own = score_file(&model, &file, config, token_bytes, &mut |done, _| progress(report(done)))?;
        }
        all.merge(&own);
        per_path.push(own.of_path(path));
    }
    all.finish(config.prefix_tokens, sequence_tokens, per_path)
}

fn evaluate_file(
    path: Option<PathId>,
    model: &dyn LanguageModel,
    file: &TokenFile,
    config: &EvaluationConfig,
    token_bytes: Option<&[u32]>,
    progress: &mut ProgressFn<'_>,
) -> Result<Evaluation, EvalError> {
    let sequence_tokens = config.resolve_sequence(model.context())?;
    let mut report = |done, total| progress(EvaluationProgress { path, done, total });
    let totals = score_file(model, file, config, token_bytes, &mut report)?;
    let per_path = path.map(|path| totals.of_path(path)).into_iter().collect();
    totals.finish(config.prefix_tokens, sequence_tokens, per_path)
}

/// Scores the documents of a file, a group of batches at a time.
fn score_file(
    model: &dyn LanguageModel,
    file: &TokenFile,
    config: &EvaluationConfig,
    token_bytes: Option<&[u32]>,
    report: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Totals, EvalError> {
    let sequence_tokens = config.resolve_sequence(model.context())?;
    let prefix = config.prefix_tokens;
    let documents = limited(file.documents(), config);
    let scorer = Scorer { model, file, prefix, batch: config.batch_sequences, token_bytes };
    let mut totals = Totals { documents, ..Totals::default() };
    let mut sequences = (0..documents).flat_map(|document| {
        let range = file.document_range(document);
        cut(document, range.end - range.start, sequence_tokens, prefix)
    });
    let mut alive = |done| match report(done, documents) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(EvalError::Cancelled),
    };
    alive(0)?;
    loop {
        let group: Vec<Sequence> = sequences.by_ref().take(GROUP * config.batch_sequences).collect();
        let Some(last) = group.last() else { break };
        scorer.score(&group)?.iter().for_each(|score| totals.add(score));
        alive(last.document)?;
    }
    alive(documents)?;
    Ok(totals)
}

fn limited(documents: u64, config: &EvaluationConfig) -> u64 {
    if config.max_documents == 0 { documents } else { documents.min(config.max_documents) }
}

#[cfg(test)]
mod tests;
