//! Zero-shot ranking: does a model give the true continuation of a text the highest probability among several?
//!
//! The first tokens of a document are the prompt, and the next [`CONTINUATION`] tokens its true continuation. The other
//! candidates are the continuations of other documents of the same domain, or of all documents without labels. No two
//! candidates are equal: texts repeat themselves, and no model can tell the true continuation from its twin. The path of a
//! prompt is the path of its document, which the router chose by tokens of the prompt. So no candidate influences it.

use std::collections::{BTreeMap, HashMap};

use dipaco_routing::ShardSet;
use dipaco_settings::SettingError;
use dipaco_shards::{IGNORE, TokenBatch, TokenSet, document_number};
use dipaco_topology::PathId;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::domains::key;
use crate::evaluate::{One, Reporter};
use crate::texts::{OpenShards, Text};
use crate::{
    Domains, EvalError, EvaluationConfig, EvaluationProgressFn, LanguageModel, PathSource, Protocol, Stage,
};

/// Tokens of a continuation.
pub const CONTINUATION: usize = 32;

/// Key context that separates this use of BLAKE3 from all others.
const CONTEXT: &str = "dipaco 2026 order of continuations";

/// Result of a zero-shot ranking.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranking {
    /// K, candidates of each prompt, the true continuation included. Chance is right with probability 1 / K.
    pub candidates: usize,
    /// Tokens of a prompt.
    pub prompt_tokens: usize,
    /// Number of prompts. Documents shorter than prompt and continuation are left out, and domains of fewer than K different
    /// continuations.
    pub prompts: u64,
    /// Number of prompts whose true continuation is more probable than every other candidate.
    pub right: u64,
}

impl Ranking {
    /// Share of the prompts whose true continuation is the most probable, 0 to 1; `None` without prompts.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        (self.prompts > 0).then(|| self.right as f64 / self.prompts as f64)
    }
}

/// Checks that a sequence has room for a prompt and a continuation, for a model with `context` positions. Returns the number of
/// tokens of a prompt.
///
/// # Errors
///
/// [`EvalError::Config`] when the settings do not fit the model.
pub fn check_ranking(config: &EvaluationConfig, context: usize) -> Result<usize, EvalError> {
    let sequence_tokens = config.sequence_for(context)?;
    let prompt_tokens = config.prefix_tokens.max(1);
    if prompt_tokens + CONTINUATION > sequence_tokens {
        let problem = format!("prompt and continuation have {} tokens", prompt_tokens + CONTINUATION);
        return Err(SettingError::new("evaluation", "sequence_tokens", &sequence_tokens, problem).into());
    }
    Ok(prompt_tokens)
}

/// Ranks the continuations of the documents of a token file with one model. `candidates` is K, at least 2.
///
/// # Errors
///
/// When the settings do not fit the model, the model fails or returns numbers that are not finite, or the caller cancels
/// ([`EvalError::Cancelled`]).
pub fn rank_dense(
    model: &dyn LanguageModel,
    file: &TokenSet,
    candidates: usize,
    protocol: &Protocol<'_>,
    progress: &mut EvaluationProgressFn<'_>,
) -> Result<Ranking, EvalError> {
    let texts = [Text::of(file, PathId(0), protocol.config)];
    rank(&texts, &mut One(model), candidates, protocol, progress)
}

/// Ranks the continuations of the documents of all shards, each with the path of its shard. `candidates` is K, at least 2.
/// The candidates are those of [`rank_dense`] on the undivided text if `evaluation.max_documents` is 0.
///
/// # Errors
///
/// As [`rank_dense`], and [`EvalError::Load`] and [`EvalError::Shard`].
pub fn rank_routed<S: PathSource>(
    shards: &ShardSet,
    source: &mut S,
    candidates: usize,
    protocol: &Protocol<'_>,
    progress: &mut EvaluationProgressFn<'_>,
) -> Result<Ranking, EvalError> {
    let open = OpenShards::new(shards);
    let texts = open.texts(protocol.config);
    rank(&texts, source, candidates, protocol, progress)
}

/// A document that is long enough.
#[derive(Clone, Copy, Debug)]
struct Document {
    text: usize,
    document: u64,
    /// Its place in [`Documents::continuations`].
    continuation: usize,
}

/// All documents that are long enough.
struct Documents<'a> {
    /// The documents of each domain in a random order that follows from their tokens, so that it is the same in every
    /// division of the text. The candidates of a document are itself and those that follow it.
    orders: BTreeMap<Option<&'a str>, Vec<Document>>,
    /// The true continuation of each document. They are kept because the candidates of a prompt lie in the files of all paths.
    continuations: Vec<[u32; CONTINUATION]>,
}

/// A document whose continuation is ranked among others.
#[derive(Clone, Copy, Debug)]
struct Prompt {
    text: usize,
    document: u64,
    /// Index of its order in [`Ranker::orders`].
    order: usize,
    /// The place of its continuation in that order.
    place: usize,
}

fn rank<S: PathSource>(
    texts: &[Text<'_>],
    source: &mut S,
    candidates: usize,
    protocol: &Protocol<'_>,
    progress: &mut EvaluationProgressFn<'_>,
) -> Result<Ranking, EvalError> {
    let config = protocol.config;
    let prompt_tokens = check_ranking(config, source.context())?;
    let mut of_paths: BTreeMap<PathId, Vec<Prompt>> = BTreeMap::new();
    let Documents { orders: documents, continuations } = documents(texts, prompt_tokens, protocol.domains)?;
    let mut orders = Vec::new();
    for documents in documents.into_values() {
        let (different, places) = different(&continuations, &documents);
        if different.len() < candidates {
            continue;
        }
        for (Document { text, document, .. }, place) in documents.into_iter().zip(places) {
            let prompt = Prompt { text, document, order: orders.len(), place };
            of_paths.entry(texts[text].path).or_default().push(prompt);
        }
        orders.push(different);
    }
    let batch_rows = config.batch_sequences;
    let ranker = Ranker { texts, continuations, orders, candidates, prompt_tokens, batch_rows };
    let mut report = Reporter(progress);
    let total = of_paths.values().map(Vec::len).sum();
    let mut ranking = Ranking { candidates, prompt_tokens, prompts: total as u64, right: 0 };
    let mut done = 0;
    report.say(Stage::Ranking, done, total)?;
    source.expect(&of_paths.keys().copied().collect::<Vec<_>>());
    let at_once = (batch_rows / candidates).max(1);
    for (path, prompts) in of_paths {
        let model = source.load(path).map_err(|source| EvalError::Load { path, source })?;
        let batches: Vec<&[Prompt]> = prompts.chunks(at_once).collect();
        for group in batches.chunks(rayon::current_num_threads() * 4) {
            let right: Vec<u64> =
                group.par_iter().map(|prompts| ranker.right(&model, prompts)).collect::<Result<_, _>>()?;
            ranking.right += right.iter().sum::<u64>();
            done += group.iter().map(|prompts| prompts.len()).sum::<usize>();
            report.say(Stage::Ranking, done, total)?;
        }
    }
    Ok(ranking)
}

/// Reads the documents that are long enough.
fn documents<'a>(
    texts: &[Text<'_>],
    prompt_tokens: usize,
    domains: Option<&'a Domains>,
) -> Result<Documents<'a>, EvalError> {
    let mut numbered: BTreeMap<Option<&str>, Vec<(f64, Document)>> = BTreeMap::new();
    let mut continuations = Vec::new();
    for (text, opened) in texts.iter().enumerate() {
        let file = opened.open()?;
        for document in 0..opened.documents {
            let tokens = file.document(document);
            // The end-of-text token is no part of a continuation.
            if tokens.len() > prompt_tokens + CONTINUATION {
                let all = tokens.to_vec();
                let mut own = [0; CONTINUATION];
                own.copy_from_slice(&all[prompt_tokens..prompt_tokens + CONTINUATION]);
                let number = document_number(CONTEXT, 0, &all);
                let domain = domains.and_then(|domains| domains.of(tokens));
                let found = Document { text, document, continuation: continuations.len() };
                numbered.entry(domain).or_default().push((number, found));
                continuations.push(own);
            }
        }
    }
    let sorted = |mut documents: Vec<(f64, Document)>| {
        documents.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        documents.into_iter().map(|(_, document)| document).collect()
    };
    let orders = numbered.into_iter().map(|(domain, documents)| (domain, sorted(documents))).collect();
    Ok(Documents { orders, continuations })
}

/// The first documents of an order with different continuations, as places in `continuations`; and for each document the place
/// of its own continuation among them.
fn different(continuations: &[[u32; CONTINUATION]], order: &[Document]) -> (Vec<usize>, Vec<usize>) {
    let mut known: HashMap<[u8; 16], usize> = HashMap::new();
    let mut different = Vec::new();
    let place = |one: &Document| {
        *known.entry(key(continuations[one.continuation].iter().copied())).or_insert_with(|| {
            different.push(one.continuation);
            different.len() - 1
        })
    };
    let places = order.iter().map(place).collect();
    (different, places)
}

/// What the prompts of a ranking share.
struct Ranker<'a> {
    texts: &'a [Text<'a>],
    continuations: Vec<[u32; CONTINUATION]>,
    /// The different continuations of each order, as places in [`Self::continuations`].
    orders: Vec<Vec<usize>>,
    /// K, at most the length of each order.
    candidates: usize,
    prompt_tokens: usize,
    /// Most rows of a batch.
    batch_rows: usize,
}

impl Ranker<'_> {
    /// The candidates of a prompt, the true continuation first.
    fn candidates_of(&self, prompt: &Prompt) -> impl Iterator<Item = &[u32; CONTINUATION]> {
        let (before, from) = self.orders[prompt.order].split_at(prompt.place);
        let places = from.iter().chain(before).take(self.candidates);
        places.map(move |&place| &self.continuations[place])
    }

    /// The number of prompts whose first candidate is the most probable. The candidates of all `prompts` fit into a batch, or
    /// there is one prompt.
    fn right(&self, model: &dyn LanguageModel, prompts: &[Prompt]) -> Result<u64, EvalError> {
        let Some(first) = prompts.first() else { return Ok(0) };
        let read = |prompt: &Prompt| -> Result<Vec<u32>, EvalError> {
            let file = self.texts[prompt.text].open()?;
            Ok(file.document(prompt.document).slice(0..self.prompt_tokens as u64).to_vec())
        };
        let beginnings = prompts.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let mut rows: Vec<(&[u32], &[u32; CONTINUATION])> = Vec::new();
        for (prompt, beginning) in prompts.iter().zip(&beginnings) {
            rows.extend(self.candidates_of(prompt).map(move |candidate| (beginning.as_slice(), candidate)));
        }
        let mut scores = Vec::new();
        for rows in rows.chunks(self.batch_rows) {
            scores.extend(self.scores(model, first, rows)?);
        }
        let won = |scores: &&[f64]| scores[1..].iter().all(|&other| other < scores[0]);
        Ok(scores.chunks_exact(self.candidates).filter(won).count() as u64)
    }

    /// `ln p` of the continuation of each row, in one batch. Errors name the document of `first`.
    fn scores(
        &self,
        model: &dyn LanguageModel,
        first: &Prompt,
        rows: &[(&[u32], &[u32; CONTINUATION])],
    ) -> Result<Vec<f64>, EvalError> {
        let width = self.prompt_tokens + CONTINUATION - 1;
        let (mut tokens, mut targets): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        for &(prompt, continuation) in rows {
            tokens.extend(prompt);
            tokens.extend(&continuation[..CONTINUATION - 1]);
            targets.extend(std::iter::repeat_n(IGNORE, self.prompt_tokens - 1));
            targets.extend(continuation);
        }
        let (text, document) = (&self.texts[first.text], first.document);
        // All texts have the tokenizer of the run, so the vocabulary of one is that of all.
        let file = text.open()?;
        let batch: TokenBatch = file.batch_of(tokens, targets, rows.len(), rows.len() * CONTINUATION)?;
        let failed = |source| EvalError::Model { file: text.name(), document, source };
        let log_probs = model.token_log_probs(&batch).map_err(failed)?;
        let expected = rows.len() * width;
        if log_probs.len() != expected {
            return Err(EvalError::Shape { expected, actual: log_probs.len() });
        }
        if let Some(&value) = log_probs.iter().find(|value| !value.is_finite()) {
            return Err(EvalError::NotFinite { file: text.name(), document, value });
        }
        let sum = |row: &[f32]| row.iter().copied().map(f64::from).sum::<f64>();
        Ok(log_probs.chunks_exact(width).map(sum).collect())
    }
}

#[cfg(test)]
mod tests;
