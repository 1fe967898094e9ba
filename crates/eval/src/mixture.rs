//! Other uses of the same paths, to compare the router with: an ensemble, the best path in hindsight, a random path.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use dipaco_routing::{ShardSet, TextRouter};
use dipaco_shards::{TokenRows, document_number};
use dipaco_topology::PathId;
use rayon::prelude::*;

use crate::evaluate::{Reporter, by_domain, losses};
use crate::evaluation::Totals;
use crate::score::{Counted, Scorer};
use crate::sequences::{Piece, Plan, Sequence, longest_first};
use crate::texts::{OpenShards, Text};
use crate::windows::prefixes;
use crate::{BoxError, EvalError, Evaluation, EvaluationProgressFn, PathSource, Protocol, Stage};

/// Key context that separates this use of BLAKE3 from all others.
const CONTEXT: &str = "dipaco 2026 random path of a document";

/// A router that gives probabilities to paths by the first tokens of a text. Several threads use it at the same time.
pub trait MixtureRouter: Sync {
    /// P, the number of paths.
    fn paths(&self) -> u32;

    /// Largest number of tokens that the router reads.
    fn prefix_tokens(&self) -> usize;

    /// Returns for each row the `most` best paths with `ln` of their weights, which sum to 1. `tokens` is (B, T), padded on
    /// the right; `lengths` (B) is the number of tokens of each row without padding.
    ///
    /// # Errors
    ///
    /// When a shape or the vocabulary does not fit, or the device fails.
    fn weights(
        &self,
        tokens: &TokenRows,
        lengths: &[usize],
        most: usize,
    ) -> Result<Vec<Vec<(PathId, f64)>>, BoxError>;
}

/// A [`TextRouter`] with the temperature of [`dipaco_routing::Router::posterior`].
#[derive(Clone, Copy, Debug)]
pub struct Tempered<'a> {
    /// The router.
    pub router: &'a TextRouter,
    /// Temperature of the distances, above 0.
    pub temperature: f64,
}

impl MixtureRouter for Tempered<'_> {
    fn paths(&self) -> u32 {
        self.router.router().paths()
    }

    fn prefix_tokens(&self) -> usize {
        self.router.router().prefix_tokens()
    }

    fn weights(
        &self,
        tokens: &TokenRows,
        lengths: &[usize],
        most: usize,
    ) -> Result<Vec<Vec<(PathId, f64)>>, BoxError> {
        self.router.posteriors(tokens, lengths, most, self.temperature)
    }
}

/// How the paths of a run are combined.
#[derive(Clone, Copy)]
pub enum Mixture<'a> {
    /// The weighted mean of the probabilities of the best paths of each sequence (c-BTM, arXiv:2303.14177 §3.3). A token
    /// costs as much as that number of paths.
    Ensemble {
        /// The router that gives the weights.
        router: &'a dyn MixtureRouter,
        /// Number of paths for each sequence, at least 1.
        paths: usize,
    },
    /// The path with the lowest loss on each document. It is chosen after reading the document, so no router can do it: a
    /// bound on what a better router could gain.
    Oracle,
    /// A random path for each document.
    Random {
        /// Seed of the choice.
        seed: u64,
    },
}

/// Computes the perplexity of a combination of paths. Keeps 8 bytes for each counted token, about 90 for each sequence, 16 for each
/// path of a sequence, and 80 for each sequence of the path that is read. An oracle keeps nothing for a token, and one list of the
/// sequences for all paths.
///
/// # Errors
///
/// As [`crate::evaluate_routed`].
pub fn evaluate_mixture<S: PathSource>(
    shards: &ShardSet,
    source: &mut S,
    mixture: Mixture<'_>,
    protocol: &Protocol<'_>,
    progress: &mut EvaluationProgressFn<'_>,
) -> Result<Evaluation, EvalError> {
    let config = protocol.config;
    config.check()?;
    let open = OpenShards::new(shards);
    let texts = open.texts(config);
    let sequence_tokens = config.sequence_for(source.context())?;
    let plan = Plan::new(&texts, sequence_tokens, config.prefix_tokens, usize::MAX)?;
    let mut report = Reporter(progress);
    let members = members(&plan, shards.paths(), mixture, protocol, &mut report)?;
    let mut combined = Combined::new(&plan, matches!(mixture, Mixture::Oracle));
    let total = members.values().map(|members| members.len()).sum();
    let mut done = 0;
    report.say(Stage::Scoring, done, total)?;
    source.expect(&members.keys().copied().collect::<Vec<_>>());
    for (path, members) in members {
        let model = source.load(path).map_err(|source| EvalError::Load { path, source })?;
        // All sequences of this path, and nothing else, under its name.
        let sequences: Vec<Sequence> = members
            .iter()
            .zip(0..)
            .map(|(one, chunk)| Sequence { chunk, ..plan.sequences[one.sequence] })
            .collect();
        let own = Plan { sequences, paths: vec![path; members.len()], ..plan };
        let scorer = Scorer { plan: &own, path, model: &model, token_bytes: protocol.token_bytes };
        let pieces: Vec<Piece> = (own.sequences.iter().zip(0..))
            .map(|(one, sequence)| Piece { sequence, length: one.length })
            .collect();
        let order = longest_first(&pieces, |piece| piece.length);
        let batches: Vec<&[usize]> = order.chunks(config.batch_sequences).collect();
        for group in batches.chunks(rayon::current_num_threads() * 4) {
            let counted: Vec<Vec<Counted>> = group
                .par_iter()
                .map(|places| scorer.counted(&places.iter().map(|&place| pieces[place]).collect::<Vec<_>>()))
                .collect::<Result<_, _>>()?;
            for (places, counted) in group.iter().zip(counted) {
                done += places.len();
                for (&place, counted) in places.iter().zip(counted) {
                    combined.add(members[place], &counted);
                }
            }
            report.say(Stage::Scoring, done, total)?;
        }
        combined.end_path(path);
    }
    finish(&combined, mixture, &plan, shards.paths(), protocol, sequence_tokens)
}

/// A path's part in a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Member {
    /// Index in [`Plan::sequences`].
    sequence: usize,
    /// `ln` of the path's weight.
    ln_weight: f64,
}

/// The sequences that each path reads, in the order of the sequences. With an oracle all paths have the same list.
fn members(
    plan: &Plan<'_>,
    paths: u32,
    mixture: Mixture<'_>,
    protocol: &Protocol<'_>,
    report: &mut Reporter<'_, '_>,
) -> Result<BTreeMap<PathId, Arc<Vec<Member>>>, EvalError> {
    let mut members: BTreeMap<PathId, Vec<Member>> = BTreeMap::new();
    let mut add = |path, sequence, ln_weight| {
        members.entry(path).or_default().push(Member { sequence, ln_weight });
    };
    match mixture {
        Mixture::Oracle => {
            let all = (0..plan.sequences.len()).map(|sequence| Member { sequence, ln_weight: 0.0 });
            let all = Arc::new(all.collect::<Vec<_>>());
            // No path is loaded for nothing.
            let paths = if all.is_empty() { 0 } else { paths };
            return Ok((0..paths).map(|path| (PathId(path), Arc::clone(&all))).collect());
        }
        Mixture::Random { seed } => {
            let mut place = 0;
            for document in plan.sequences.chunk_by(of_one_document) {
                let path = random_path(plan, &document[0], seed, paths)?;
                for _ in document {
                    add(path, place, 0.0);
                    place += 1;
                }
            }
        }
        Mixture::Ensemble { router, paths: most } => {
            if router.paths() != paths {
                return Err(EvalError::RouterPaths { router: router.paths(), shards: paths });
            }
            let (read, uncounted) = (router.prefix_tokens(), plan.prefix);
            if read > uncounted {
                return Err(EvalError::RouterPrefix { read, uncounted });
            }
            let total = plan.sequences.len();
            let mut place = 0;
            report.say(Stage::Routing, place, total)?;
            let batches: Vec<&[Sequence]> = plan.sequences.chunks(protocol.config.batch_sequences).collect();
            for group in batches.chunks(rayon::current_num_threads() * 4) {
                let weighted: Vec<Vec<Vec<(PathId, f64)>>> =
                    group.par_iter().map(|rows| weigh(plan, router, rows, most)).collect::<Result<_, _>>()?;
                for weights in weighted.into_iter().flatten() {
                    weights.into_iter().for_each(|(path, ln_weight)| add(path, place, ln_weight));
                    place += 1;
                }
                report.say(Stage::Routing, place, total)?;
            }
        }
    }
    Ok(members.into_iter().map(|(path, members)| (path, Arc::new(members))).collect())
}

/// The weights of the paths of some sequences.
fn weigh(
    plan: &Plan<'_>,
    router: &dyn MixtureRouter,
    rows: &[Sequence],
    most: usize,
) -> Result<Vec<Vec<(PathId, f64)>>, EvalError> {
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let (tokens, lengths) = prefixes(plan, router.prefix_tokens(), first, rows)?;
    let file = || plan.text(first).name();
    let failed = |source| EvalError::Router { file: file(), document: first.document, source };
    let weights = router.weights(&tokens, &lengths, most).map_err(failed)?;
    let known = |row: &Vec<(PathId, f64)>| {
        !row.is_empty() && row.iter().all(|(path, weight)| path.0 < router.paths() && !weight.is_nan())
    };
    let shape = weights.len() == rows.len() && weights.iter().all(known);
    if shape { Ok(weights) } else { Err(EvalError::Shape { expected: rows.len(), actual: weights.len() }) }
}

/// A path that depends on the document's tokens and the seed alone: the same in every division of the text.
fn random_path(plan: &Plan<'_>, sequence: &Sequence, seed: u64, paths: u32) -> Result<PathId, EvalError> {
    let document = plan.text(sequence).open()?.document(sequence.document).to_vec();
    Ok(PathId((document_number(CONTEXT, seed, &document) * f64::from(paths)) as u32))
}

/// Whether two sequences are of the same document.
fn of_one_document(a: &Sequence, b: &Sequence) -> bool {
    (a.text, a.document) == (b.text, b.document)
}

/// Scores of all sequences, combined over the paths so far.
struct Combined {
    sequences: Vec<CombinedSequence>,
    /// The lowest loss of each document so far and its path, in the order of [`Self::documents`]; `None` for a weighted mean.
    best: Option<Vec<(f64, PathId)>>,
    /// The sequences of each document that has some.
    documents: Vec<Range<usize>>,
}

/// The score of a sequence.
#[derive(Clone, Debug, Default)]
struct CombinedSequence {
    /// `ln` of the weighted sum of the probabilities of each counted token; empty with an oracle.
    tokens: Vec<f64>,
    /// The loss by the current path in nats, with an oracle.
    nll: f64,
    counted: u64,
    bytes: u64,
}

impl Combined {
    fn new(plan: &Plan<'_>, oracle: bool) -> Self {
        let mut documents: Vec<Range<usize>> = Vec::new();
        for document in plan.sequences.chunk_by(of_one_document) {
            let start = documents.last().map_or(0, |last| last.end);
            documents.push(start..start + document.len());
        }
        Self {
            sequences: vec![CombinedSequence::default(); plan.sequences.len()],
            best: oracle.then(|| vec![(f64::INFINITY, PathId(0)); documents.len()]),
            documents,
        }
    }

    /// Adds what a path says of a sequence.
    fn add(&mut self, member: Member, counted: &Counted) {
        let sequence = &mut self.sequences[member.sequence];
        (sequence.counted, sequence.bytes) = (counted.log_probs.len() as u64, counted.bytes);
        if self.best.is_some() {
            sequence.nll = counted.score().nll;
            return;
        }
        sequence.tokens.resize(counted.log_probs.len(), f64::NEG_INFINITY);
        for (sum, &log_prob) in sequence.tokens.iter_mut().zip(&counted.log_probs) {
            *sum = ln_of_sum(*sum, member.ln_weight + f64::from(log_prob));
        }
    }

    /// Ends the part of a path: an oracle keeps it where it is better than all paths before it.
    fn end_path(&mut self, path: PathId) {
        let Some(best) = &mut self.best else { return };
        for (best, document) in best.iter_mut().zip(&self.documents) {
            let nll = self.sequences[document.clone()].iter().map(|sequence| sequence.nll).sum();
            if nll < best.0 {
                *best = (nll, path);
            }
        }
    }

    /// The sums of all documents that have sequences.
    fn totals(&self) -> Vec<Totals> {
        let of_document = |(place, document): (usize, &Range<usize>)| {
            let mut totals = Totals { documents: 1, ..Totals::default() };
            for sequence in &self.sequences[document.clone()] {
                totals.sequences += 1;
                totals.tokens += sequence.counted;
                totals.bytes += sequence.bytes;
                sequence.tokens.iter().for_each(|log_prob| totals.nll -= log_prob);
            }
            if let Some(best) = &self.best {
                totals.nll = best[place].0;
            }
            totals
        };
        self.documents.iter().enumerate().map(of_document).collect()
    }
}

/// `ln(exp(a) + exp(b))`.
fn ln_of_sum(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
}

/// The result of the combined scores.
fn finish(
    combined: &Combined,
    mixture: Mixture<'_>,
    plan: &Plan<'_>,
    paths: u32,
    protocol: &Protocol<'_>,
    sequence_tokens: usize,
) -> Result<Evaluation, EvalError> {
    let config = protocol.config;
    let totals = combined.totals();
    let documents: u64 = plan.texts.iter().map(|text| text.documents).sum();
    let mut all = Totals::default();
    totals.iter().for_each(|document| all.merge(document));
    let mut evaluation = Totals { documents, ..all }.finish(config.prefix_tokens, sequence_tokens)?;
    let first = |document: &Range<usize>| &plan.sequences[document.start];
    let chosen: Vec<PathId> = match (mixture, &combined.best) {
        (Mixture::Random { seed }, _) => {
            let random = |one: &Range<usize>| random_path(plan, first(one), seed, paths);
            combined.documents.iter().map(random).collect::<Result<_, _>>()?
        }
        (_, Some(best)) => best.iter().map(|&(_, path)| path).collect(),
        (_, None) => Vec::new(),
    };
    let mut by_path: BTreeMap<PathId, Totals> = BTreeMap::new();
    for (path, document) in chosen.into_iter().zip(&totals) {
        by_path.entry(path).or_default().merge(document);
    }
    evaluation.per_path = by_path.into_iter().map(|(path, totals)| totals.of_path(path)).collect();
    let empty = |text: &Text<'_>| vec![Totals::default(); text.documents as usize];
    let mut of_texts: Vec<Vec<Totals>> = plan.texts.iter().map(empty).collect();
    for (document, totals) in combined.documents.iter().zip(totals) {
        let sequence = first(document);
        of_texts[sequence.text as usize][sequence.document as usize] = totals;
    }
    evaluation.document_losses = losses(plan.texts, &of_texts)?;
    if let Some(domains) = protocol.domains {
        // Without columns of paths: they would show the router's.
        evaluation.per_domain = by_domain(plan.texts, &of_texts, domains, 0)?;
    }
    Ok(evaluation)
}

#[cfg(test)]
mod tests;
