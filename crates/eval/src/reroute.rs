//! Choosing paths within a text (arXiv:2403.10616 §2.4.3).

use dipaco_shards::TokenRows;
use dipaco_topology::PathId;
use rayon::prelude::*;

use crate::sequences::{Plan, Sequence, longest_first};
use crate::{BoxError, EvalError};

/// A router that scores paths at any token of a text. Several threads use it at the same time.
pub trait TokenRouter: Sync {
    /// P, the number of paths.
    fn paths(&self) -> u32;

    /// Largest number of tokens of a row (T).
    fn context(&self) -> usize;

    /// Returns the score of each path for continuing each row after each position: (B, positions, P), row-major, higher is
    /// better. `tokens` is (B, T). The scores after a position may depend only on tokens of the row up to that position.
    ///
    /// # Errors
    ///
    /// When the shape or the vocabulary does not fit, or the device fails.
    fn scores(&self, tokens: &TokenRows, positions: &[usize]) -> Result<Vec<f32>, BoxError>;
}

/// Rerouting: how paths are chosen within a text.
#[derive(Clone, Copy)]
pub struct ChunkRouting<'a> {
    /// The router that chooses.
    pub router: &'a dyn TokenRouter,
    /// W, tokens between two choices; at least 1.
    pub tokens: usize,
}

impl Plan<'_> {
    /// Gives each chunk but the first of a sequence to the path with the best score after the last token of the chunk
    /// before. The first chunk keeps the path of its document.
    ///
    /// The router receives no token of the chunk that it decides on, nor of a later one.
    pub(crate) fn reroute(
        &mut self,
        router: &dyn TokenRouter,
        batch: usize,
        report: &mut dyn FnMut(usize) -> Result<(), EvalError>,
    ) -> Result<(), EvalError> {
        let several: Vec<Sequence> =
            self.sequences.iter().filter(|sequence| sequence.length > self.chunk_tokens).copied().collect();
        let order = longest_first(&several, |sequence| sequence.length);
        let batches: Vec<Vec<Sequence>> =
            order.chunks(batch).map(|places| places.iter().map(|&place| several[place]).collect()).collect();
        let mut done = 0;
        report(done)?;
        // A few batches per thread: enough to keep all threads busy, and few enough to show progress and to stop soon.
        for group in batches.chunks(rayon::current_num_threads() * 4) {
            let chosen: Vec<Vec<PathId>> =
                group.par_iter().map(|rows| choose(self, router, rows)).collect::<Result<_, _>>()?;
            for (rows, chosen) in group.iter().zip(chosen) {
                let mut chosen = chosen.into_iter();
                for row in rows {
                    let own = self.chunks(row).len() - 1;
                    let chunks = &mut self.paths[row.chunk + 1..][..own];
                    chunks.iter_mut().zip(chosen.by_ref()).for_each(|(chunk, path)| *chunk = path);
                }
                done += rows.len();
            }
            report(done)?;
        }
        Ok(())
    }

    /// Number of sequences with more than one chunk.
    pub(crate) fn several_chunks(&self) -> usize {
        self.sequences.iter().filter(|sequence| sequence.length > self.chunk_tokens).count()
    }
}

/// Chooses the paths of all chunks but the first of these sequences, one sequence after the other.
fn choose(plan: &Plan<'_>, router: &dyn TokenRouter, rows: &[Sequence]) -> Result<Vec<PathId>, EvalError> {
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let read = |row: &Sequence| (plan.chunks(row).len() - 1) * plan.chunk_tokens;
    let width = rows.iter().map(read).max().unwrap_or(0);
    // All texts have the tokenizer of the run, so the vocabulary of one is that of all.
    let file = plan.text(first).open()?;
    let mut tokens = Vec::with_capacity(width * rows.len());
    for row in rows {
        tokens.extend(plan.tokens(row, read(row))?);
        tokens.extend(std::iter::repeat_n(file.end_of_text(), width - read(row)));
    }
    let positions: Vec<usize> =
        (1..=width / plan.chunk_tokens).map(|chunk| chunk * plan.chunk_tokens - 1).collect();
    let failed =
        |source| EvalError::Router { file: plan.text(first).name(), document: first.document, source };
    let tokens = file.rows(tokens, rows.len())?;
    let scores = router.scores(&tokens, &positions).map_err(failed)?;
    let paths = router.paths() as usize;
    let expected = rows.len() * positions.len() * paths;
    if scores.len() != expected || paths == 0 {
        return Err(EvalError::Shape { expected, actual: scores.len() });
    }
    let mut chosen = Vec::new();
    for (row, scores) in rows.iter().zip(scores.chunks_exact(positions.len() * paths)) {
        for scores in scores.chunks_exact(paths).take(plan.chunks(row).len() - 1) {
            chosen.push(best(scores).ok_or_else(|| EvalError::RouterNotFinite {
                file: plan.text(row).name(),
                document: row.document,
            })?);
        }
    }
    Ok(chosen)
}

/// The path with the highest score, the lowest id of equal scores; `None` when a score is not a number.
fn best(scores: &[f32]) -> Option<PathId> {
    let mut best = (PathId(0), f32::NEG_INFINITY);
    for (&score, path) in scores.iter().zip(0u32..) {
        if score.is_nan() {
            return None;
        }
        if score > best.1 {
            best = (PathId(path), score);
        }
    }
    Some(best.0)
}

impl TokenRouter for dipaco_routing::TransformerRouter {
    fn paths(&self) -> u32 {
        self.paths()
    }

    fn context(&self) -> usize {
        self.context()
    }

    fn scores(&self, tokens: &TokenRows, positions: &[usize]) -> Result<Vec<f32>, BoxError> {
        self.scores(tokens, positions)
    }
}

impl TokenRouter for dipaco_routing::RecentRouter {
    fn paths(&self) -> u32 {
        self.paths()
    }

    /// It reads the last tokens of a row only, so a row may have any length.
    fn context(&self) -> usize {
        usize::MAX
    }

    fn scores(&self, tokens: &TokenRows, positions: &[usize]) -> Result<Vec<f32>, BoxError> {
        self.scores(tokens, positions)
    }
}
