//! Scoring token files.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use dipaco_routing::{Contingency, ShardSet};
use dipaco_settings::SettingError;
use dipaco_shards::TokenSet;
use dipaco_topology::PathId;
use rayon::prelude::*;

use crate::domains::{UNLABELLED, key};
use crate::evaluation::{Agreement, DocumentLoss, DomainEvaluation, Evaluation, Rerouted, Totals};
use crate::score::{Score, Scorer};
use crate::sequences::{Piece, Plan, longest_first};
use crate::texts::{OpenShards, Text};
use crate::{
    BoxError, ChunkRouting, Domains, EvalError, EvaluationConfig, LanguageModel, PathSource, WindowRouter,
};

/// Protocol of scoring. Must be the same for all models of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Protocol<'a> {
    /// The settings.
    pub config: &'a EvaluationConfig,
    /// Length in bytes of each token of the vocabulary (V), for [`Evaluation::bits_per_byte`].
    pub token_bytes: Option<&'a [u32]>,
    /// Domains of the documents, for [`Evaluation::per_domain`].
    pub domains: Option<&'a Domains>,
}

/// How a routed model chooses the path of a text.
#[derive(Clone, Copy)]
pub enum Choice<'a> {
    /// Each document keeps the path of its shard.
    Document,
    /// This router chooses the path of each sequence by the sequence's first tokens.
    Window(&'a dyn WindowRouter),
    /// The document's path begins, and a router chooses again within the sequence.
    Chunks(ChunkRouting<'a>),
}

/// Stage of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The router chooses paths within sequences.
    Routing,
    /// Paths score sequences. A sequence that several paths score counts once for each of them.
    Scoring,
    /// Paths rank continuations. Counts prompts.
    Ranking,
}

/// Progress of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationProgress {
    /// Current stage.
    pub stage: Stage,
    /// Number of sequences or prompts done in this stage.
    pub done: u64,
    /// Number of sequences or prompts of this stage.
    pub total: u64,
}

/// Called with the progress after each step. `Break` stops the evaluation with [`EvalError::Cancelled`].
pub type EvaluationProgressFn<'a> = dyn FnMut(EvaluationProgress) -> ControlFlow<()> + 'a;

/// Computes the perplexity of one model on a token file.
///
/// # Errors
///
/// When the settings do not fit the model, the model fails or returns numbers that are not finite, no document is longer
/// than the prefix, or the caller cancels ([`EvalError::Cancelled`]).
pub fn evaluate_dense(
    model: &dyn LanguageModel,
    file: &TokenSet,
    protocol: &Protocol<'_>,
    progress: &mut EvaluationProgressFn<'_>,
) -> Result<Evaluation, EvalError> {
    let evaluation = evaluate_path(PathId(0), model, file, protocol, progress)?;
    Ok(Evaluation { per_path: Vec::new(), ..evaluation })
}

/// Computes the perplexity of one path on a token file without a router. The file may be the path's shard, another
/// path's shard, or all text.
///
/// # Errors
///
/// As [`evaluate_dense`].
pub fn evaluate_path(
    path: PathId,
    model: &dyn LanguageModel,
    file: &TokenSet,
    protocol: &Protocol<'_>,
    progress: &mut EvaluationProgressFn<'_>,
) -> Result<Evaluation, EvalError> {
    let texts = [Text::of(file, path, protocol.config)];
    evaluate(&texts, 0, &mut One(model), Choice::Document, protocol, progress)
}

/// Computes the perplexity of a routed model. Each path scores its own validation shard, or the sequences or chunks that the
/// router of a [`Choice`] gives it. All tokens count alike.
///
/// Each path is loaded once, and at most `evaluation.parallel_paths` paths are in memory at the same time.
///
/// # Errors
///
/// As [`evaluate_dense`], and [`EvalError::Load`], [`EvalError::Shard`] and the errors of the router.
pub fn evaluate_routed<S: PathSource>(
    shards: &ShardSet,
    source: &mut S,
    choice: Choice<'_>,
    protocol: &Protocol<'_>,
    progress: &mut EvaluationProgressFn<'_>,
) -> Result<Evaluation, EvalError> {
    protocol.config.check()?;
    let open = OpenShards::new(shards);
    let texts = open.texts(protocol.config);
    let router = match choice {
        Choice::Document => shards.paths(),
        Choice::Window(router) => router.paths(),
        Choice::Chunks(ChunkRouting { router, .. }) => router.paths(),
    };
    if router != shards.paths() {
        return Err(EvalError::RouterPaths { router, shards: shards.paths() });
    }
    evaluate(&texts, texts.len(), source, choice, protocol, progress)
}

/// Tells the caller of the progress.
pub(crate) struct Reporter<'a, 'b>(pub(crate) &'a mut EvaluationProgressFn<'b>);

impl Reporter<'_, '_> {
    /// Reports, and ends the evaluation if the caller asks for it.
    pub(crate) fn say(&mut self, stage: Stage, done: usize, total: usize) -> Result<(), EvalError> {
        match (self.0)(EvaluationProgress { stage, done: done as u64, total: total as u64 }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(EvalError::Cancelled),
        }
    }
}

/// A single model as a source of paths.
pub(crate) struct One<'a>(pub(crate) &'a dyn LanguageModel);

impl<'a> PathSource for One<'a> {
    type Model = &'a dyn LanguageModel;

    fn context(&self) -> usize {
        self.0.context()
    }

    fn expect(&mut self, _: &[PathId]) {}

    fn load(&mut self, _: PathId) -> Result<Self::Model, BoxError> {
        Ok(self.0)
    }
}

/// Evaluates on texts that a router divided among `paths` paths; 0 without a router.
fn evaluate<S: PathSource>(
    texts: &[Text<'_>],
    paths: usize,
    source: &mut S,
    choice: Choice<'_>,
    protocol: &Protocol<'_>,
    progress: &mut EvaluationProgressFn<'_>,
) -> Result<Evaluation, EvalError> {
    let Protocol { config, domains, .. } = *protocol;
    let sequence_tokens = config.sequence_for(source.context())?;
    // Without rerouting, one chunk holds any sequence, so the rest of the code needs no second case.
    let chunk_tokens = if let Choice::Chunks(reroute) = choice { reroute.tokens } else { usize::MAX };
    if chunk_tokens == 0 {
        let problem = "it must be at least 1 to choose paths within a text";
        return Err(SettingError::new("evaluation", "reroute_tokens", &chunk_tokens, problem).into());
    }
    let mut plan = Plan::new(texts, sequence_tokens, config.prefix_tokens, chunk_tokens)?;
    let mut reporter = Reporter(progress);
    match choice {
        Choice::Document => {}
        Choice::Window(router) => {
            let total = plan.later_windows();
            let mut report = |done| reporter.say(Stage::Routing, done, total);
            plan.route_windows(router, config.batch_sequences, &mut report)?;
        }
        Choice::Chunks(reroute) => {
            check_router(&reroute, sequence_tokens)?;
            let total = plan.several_chunks();
            let mut report = |done| reporter.say(Stage::Routing, done, total);
            plan.reroute(reroute.router, config.batch_sequences, &mut report)?;
        }
    }
    let pieces = plan.pieces();
    let total = pieces.values().map(Vec::len).sum();
    let mut report = |done| reporter.say(Stage::Scoring, done, total);
    let sums = score(&plan, &pieces, source, protocol, &mut report)?;

    let mut all = Totals::default();
    let mut per_path = Vec::new();
    let mut routed: BTreeMap<PathId, u64> = BTreeMap::new();
    texts.iter().for_each(|text| *routed.entry(text.path).or_default() += text.documents);
    for (&path, &documents) in &routed {
        let own = Totals { documents, ..sums.paths.get(&path).copied().unwrap_or_default() };
        all.merge(&own);
        per_path.push(own.of_path(path));
    }
    // The paths' totals count a sequence once for each path that scores a part of it.
    all.sequences = plan.sequences.len() as u64;
    let mut evaluation = all.finish(config.prefix_tokens, sequence_tokens)?;
    evaluation.per_path = per_path;
    if let Choice::Chunks(reroute) = choice {
        evaluation.reroute = Some(summarise(&plan, reroute.tokens));
    }
    evaluation.document_losses = losses(texts, &sums.documents)?;
    if let Some(domains) = domains {
        evaluation.per_domain = by_domain(texts, &sums.documents, domains, paths)?;
        evaluation.agreement = agreement(&evaluation.per_domain, paths);
    }
    Ok(evaluation)
}

/// Checks that the router's context reaches to the last choice of a sequence.
fn check_router(reroute: &ChunkRouting<'_>, sequence_tokens: usize) -> Result<(), EvalError> {
    let read = (sequence_tokens - 1) / reroute.tokens * reroute.tokens;
    let context = reroute.router.context();
    if read > context {
        let problem = format!("the router reads at most {context} tokens: make it smaller");
        return Err(SettingError::new("evaluation", "sequence_tokens", &sequence_tokens, problem).into());
    }
    Ok(())
}

fn summarise(plan: &Plan<'_>, tokens: usize) -> Rerouted {
    let mut summary = Rerouted { tokens, choices: 0, switches: 0 };
    for sequence in &plan.sequences {
        let chunks = plan.chunks(sequence);
        summary.choices += chunks.len() as u64 - 1;
        summary.switches += chunks.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64;
    }
    summary
}

/// Sums of the scores.
struct Sums {
    paths: BTreeMap<PathId, Totals>,
    /// Sums of each document of each text.
    documents: Vec<Vec<Totals>>,
}

/// Scores all pieces, `evaluation.parallel_paths` paths at a time.
fn score<S: PathSource>(
    plan: &Plan<'_>,
    pieces: &BTreeMap<PathId, Vec<Piece>>,
    source: &mut S,
    protocol: &Protocol<'_>,
    report: &mut dyn FnMut(usize) -> Result<(), EvalError>,
) -> Result<Sums, EvalError> {
    let Protocol { config, token_bytes, .. } = *protocol;
    let threads = rayon::current_num_threads();
    let at_once = if config.parallel_paths == 0 { threads } else { config.parallel_paths };
    let documents = |text: &Text<'_>| vec![Totals::default(); text.documents as usize];
    let mut sums = Sums { paths: BTreeMap::new(), documents: plan.texts.iter().map(documents).collect() };
    let paths: Vec<(PathId, &Vec<Piece>)> = pieces.iter().map(|(&path, pieces)| (path, pieces)).collect();
    source.expect(&pieces.keys().copied().collect::<Vec<_>>());
    let mut done = 0;
    report(done)?;
    for wave in paths.chunks(at_once) {
        let load =
            |&(path, _): &(PathId, _)| source.load(path).map_err(|source| EvalError::Load { path, source });
        let models: Vec<S::Model> = wave.iter().map(load).collect::<Result<_, _>>()?;
        let scorers: Vec<Scorer<'_>> = wave
            .iter()
            .zip(&models)
            .map(|(&(path, _), model)| Scorer { plan, path, model, token_bytes })
            .collect();
        let orders: Vec<Vec<usize>> =
            wave.iter().map(|(_, pieces)| longest_first(pieces, |piece| piece.length)).collect();
        let batches: Vec<(usize, &[usize])> = orders
            .iter()
            .enumerate()
            .flat_map(|(index, order)| {
                order.chunks(config.batch_sequences).map(move |places| (index, places))
            })
            .collect();
        let mut scores: Vec<Vec<Score>> =
            wave.iter().map(|(_, pieces)| vec![Score::default(); pieces.len()]).collect();
        // Batches run in groups, so that the caller sees progress and can cancel. Four batches per thread keep all threads
        // busy although batches differ in length.
        for group in batches.chunks(threads * 4) {
            let scored: Vec<Vec<Score>> = group
                .par_iter()
                .map(|&(index, places)| {
                    let own: Vec<Piece> = places.iter().map(|&place| wave[index].1[place]).collect();
                    scorers[index].score(&own)
                })
                .collect::<Result<_, _>>()?;
            for (&(index, places), scored) in group.iter().zip(scored) {
                done += places.len();
                places.iter().zip(scored).for_each(|(&place, score)| scores[index][place] = score);
            }
            report(done)?;
        }
        // Summed in the order of the documents, not of the batches, so that the number of threads changes no bit.
        for (&(path, pieces), scores) in wave.iter().zip(&scores) {
            let totals = sums.paths.entry(path).or_default();
            for (piece, score) in pieces.iter().zip(scores) {
                totals.add(score);
                let sequence = &plan.sequences[piece.sequence];
                if let Some(text) = sums.documents.get_mut(sequence.text as usize) {
                    text[sequence.document as usize].add(score);
                }
            }
        }
    }
    Ok(sums)
}

/// The losses on all documents with counted tokens, sorted by document.
pub(crate) fn losses(texts: &[Text<'_>], documents: &[Vec<Totals>]) -> Result<Vec<DocumentLoss>, EvalError> {
    let mut losses = Vec::new();
    for (text, documents) in texts.iter().zip(documents) {
        let file = text.open()?;
        for (sums, document) in documents.iter().zip(0..).filter(|(sums, _)| sums.tokens > 0) {
            let [a, b, c, d, e, f, g, h, ..] = key(file.document(document).iter());
            let document = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            losses.push(DocumentLoss { document, nll_sum: sums.nll, bytes: sums.bytes });
        }
    }
    // Equal documents may have different paths, and then different losses.
    losses.sort_by(|a, b| a.document.cmp(&b.document).then(a.nll_sum.total_cmp(&b.nll_sum)));
    Ok(losses)
}

/// Sums up the rows of all domains, sorted by name.
pub(crate) fn by_domain(
    texts: &[Text<'_>],
    documents: &[Vec<Totals>],
    domains: &Domains,
    paths: usize,
) -> Result<Vec<DomainEvaluation>, EvalError> {
    let mut rows: BTreeMap<&str, (Totals, Vec<u64>)> = BTreeMap::new();
    for (text, documents) in texts.iter().zip(documents) {
        let file = text.open()?;
        for (sums, document) in documents.iter().zip(0..) {
            let domain = domains.of(file.document(document)).unwrap_or(UNLABELLED);
            let (totals, routed) = rows.entry(domain).or_insert_with(|| (Totals::default(), vec![0; paths]));
            totals.merge(&Totals { documents: 1, ..*sums });
            if let Some(routed) = routed.get_mut(text.path.index()) {
                *routed += 1;
            }
        }
    }
    let row =
        |(name, (totals, routed)): (&str, (Totals, Vec<u64>))| totals.of_domain(name.to_owned(), routed);
    Ok(rows.into_iter().map(row).collect())
}

/// Agreement of paths and domains over the documents with a label.
fn agreement(rows: &[DomainEvaluation], paths: usize) -> Option<Agreement> {
    let labelled: Vec<_> = rows.iter().filter(|row| row.domain != UNLABELLED).collect();
    let mut table = Contingency::new(paths, labelled.len());
    for (label, row) in labelled.iter().enumerate() {
        for (path, &documents) in row.documents_of_path.iter().enumerate() {
            // `add` fails only outside of the table, which has a row for every path and a column for every label.
            (0..documents).try_for_each(|_| table.add(path, label)).ok()?;
        }
    }
    (table.documents() > 0).then(|| Agreement { purity: table.purity(), nmi: table.nmi() })
}

#[cfg(test)]
pub(crate) mod tests;
