//! Choosing the path of each sequence by the sequence's own first tokens.

use dipaco_routing::TextRouter;
use dipaco_shards::TokenRows;
use dipaco_topology::PathId;
use rayon::prelude::*;

use crate::sequences::{Plan, Sequence};
use crate::{BoxError, EvalError};

/// A router that chooses a path by the first tokens of a text. Several threads use it at the same time.
pub trait WindowRouter: Sync {
    /// P, the number of paths.
    fn paths(&self) -> u32;

    /// Largest number of tokens that the router reads.
    fn prefix_tokens(&self) -> usize;

    /// Returns the path of each row. `tokens` is (B, T), padded on the right; `lengths` (B) is the number of tokens of each
    /// row without padding.
    ///
    /// # Errors
    ///
    /// When a shape or the vocabulary does not fit, or the device fails.
    fn choose(&self, tokens: &TokenRows, lengths: &[usize]) -> Result<Vec<PathId>, BoxError>;
}

impl WindowRouter for TextRouter {
    fn paths(&self) -> u32 {
        self.router().paths()
    }

    fn prefix_tokens(&self) -> usize {
        self.router().prefix_tokens()
    }

    fn choose(&self, tokens: &TokenRows, lengths: &[usize]) -> Result<Vec<PathId>, BoxError> {
        Ok(self.route(tokens, lengths)?.into_iter().map(|route| route.path).collect())
    }
}

impl Plan<'_> {
    /// Gives each sequence to the path that the router chooses by the sequence's first tokens. The first sequence of a
    /// document keeps the path of the document, which the same tokens chose.
    ///
    /// The tokens that the router reads are not counted, and it reads no token behind them.
    pub(crate) fn route_windows(
        &mut self,
        router: &dyn WindowRouter,
        batch: usize,
        report: &mut dyn FnMut(usize) -> Result<(), EvalError>,
    ) -> Result<(), EvalError> {
        let (read, uncounted) = (router.prefix_tokens(), self.prefix);
        if read > uncounted {
            return Err(EvalError::RouterPrefix { read, uncounted });
        }
        let later: Vec<Sequence> =
            self.sequences.iter().filter(|sequence| sequence.start > 0).copied().collect();
        let batches: Vec<&[Sequence]> = later.chunks(batch).collect();
        let mut done = 0;
        report(done)?;
        for group in batches.chunks(rayon::current_num_threads() * 4) {
            let chosen: Vec<Vec<PathId>> =
                group.par_iter().map(|rows| choose(self, router, rows)).collect::<Result<_, _>>()?;
            for (sequence, path) in group.iter().copied().flatten().zip(chosen.into_iter().flatten()) {
                let chunks = sequence.length.div_ceil(self.chunk_tokens);
                self.paths[sequence.chunk..][..chunks].fill(path);
                done += 1;
            }
            report(done)?;
        }
        Ok(())
    }

    /// Number of sequences that do not begin a document.
    pub(crate) fn later_windows(&self) -> usize {
        self.sequences.iter().filter(|sequence| sequence.start > 0).count()
    }
}

/// The first `read` tokens of each of some sequences, padded on the right (B, `read`), and their numbers (B). `first` is the
/// first of the sequences.
pub(crate) fn prefixes(
    plan: &Plan<'_>,
    read: usize,
    first: &Sequence,
    rows: &[Sequence],
) -> Result<(TokenRows, Vec<usize>), EvalError> {
    // All texts have the tokenizer of the run, so the vocabulary of one is that of all.
    let file = plan.text(first).open()?;
    let mut tokens = Vec::with_capacity(read * rows.len());
    let mut lengths = Vec::with_capacity(rows.len());
    for row in rows {
        let length = read.min(row.length);
        tokens.extend(plan.tokens(row, length)?);
        tokens.extend(std::iter::repeat_n(file.end_of_text(), read - length));
        lengths.push(length);
    }
    Ok((file.rows(tokens, rows.len())?, lengths))
}

/// The paths of some sequences.
fn choose(plan: &Plan<'_>, router: &dyn WindowRouter, rows: &[Sequence]) -> Result<Vec<PathId>, EvalError> {
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let (tokens, lengths) = prefixes(plan, router.prefix_tokens(), first, rows)?;
    let file = || plan.text(first).name();
    let failed = |source| EvalError::Router { file: file(), document: first.document, source };
    let chosen = router.choose(&tokens, &lengths).map_err(failed)?;
    let shape = chosen.len() == rows.len() && chosen.iter().all(|path| path.0 < router.paths());
    if shape { Ok(chosen) } else { Err(EvalError::Shape { expected: rows.len(), actual: chosen.len() }) }
}
