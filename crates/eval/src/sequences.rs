//! Cutting documents into sequences, and scoring them.

use dipaco_shards::{IGNORE, TokenFile};
use rayon::prelude::*;

use crate::{EvalError, LanguageModel};

/// Batches that are sorted by length together and may be scored at the same time.
pub(crate) const GROUP: usize = 16;

/// A part of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub(crate) document: u64,
    /// Place of its first token in the document.
    pub(crate) start: u64,
    /// Number of tokens, more than the prefix and at least 2.
    pub(crate) length: usize,
}

/// The score of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Score {
    pub(crate) tokens: u64,
    /// Sum of `-ln p` in nats.
    pub(crate) nll: f64,
    /// Bytes of the counted tokens, when their lengths are known.
    pub(crate) bytes: u64,
}

/// The sequences of a document of `tokens` tokens that have something to count.
pub(crate) fn cut(
    document: u64,
    tokens: u64,
    sequence: usize,
    prefix: usize,
) -> impl Iterator<Item = Sequence> + use<> {
    let whole = sequence as u64;
    (0..tokens)
        .step_by(sequence)
        .map(move |start| Sequence { document, start, length: (tokens - start).min(whole) as usize })
        .filter(move |sequence| sequence.length > prefix.max(1))
}

/// Scores sequences with one model.
pub(crate) struct Scorer<'a> {
    pub(crate) model: &'a dyn LanguageModel,
    pub(crate) file: &'a TokenFile,
    pub(crate) prefix: usize,
    pub(crate) batch: usize,
    pub(crate) token_bytes: Option<&'a [u32]>,
}

impl Scorer<'_> {
    /// The scores of sequences, in their order. Which ones share a batch depends on nothing but the sequences and the
    /// batch size.
    pub(crate) fn score(&self, sequences: &[Sequence]) -> Result<Vec<Score>, EvalError> {
        // Rows of similar length need little padding.
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(sequences[index].length));
        let batches: Vec<Vec<Score>> = order
            .par_chunks(self.batch)
            .map(|batch| self.score_batch(sequences, batch))
            .collect::<Result<_, _>>()?;
        let mut scores = vec![Score::default(); sequences.len()];
        for (index, score) in order.into_iter().zip(batches.into_iter().flatten()) {
            scores[index] = score;
        }
        Ok(scores)
    }

    /// Scores the sequences at some places.
    fn score_batch(&self, sequences: &[Sequence], places: &[usize]) -> Result<Vec<Score>, EvalError> {
        let rows: Vec<Sequence> = places.iter().map(|&place| sequences[place]).collect();
        let width = rows.iter().map(|row| row.length - 1).max().unwrap_or(0);
        let mut tokens = Vec::with_capacity(width * rows.len());
        let mut targets = Vec::with_capacity(width * rows.len());
        for row in &rows {
            let text = self.file.document(row.document).slice(row.start..row.start + row.length as u64);
            let padding = width + 1 - row.length;
            tokens.extend(text.iter().take(row.length - 1));
            tokens.extend(std::iter::repeat_n(self.file.end_of_text(), padding));
            let counted = |(place, token)| if place < self.prefix { IGNORE } else { token };
            targets.extend(text.iter().enumerate().skip(1).map(counted));
            targets.extend(std::iter::repeat_n(IGNORE, padding));
        }
        let file = || self.file.path().display().to_string();
        let log_probs =
            self.model.token_log_probs(&tokens, &targets, rows.len()).map_err(|source| EvalError::Model {
                file: file(),
                document: rows.iter().map(|row| row.document).min().unwrap_or(0),
                source,
            })?;
        if log_probs.len() != targets.len() {
            return Err(EvalError::Shape { expected: targets.len(), actual: log_probs.len() });
        }
        let scored = targets.chunks_exact(width).zip(log_probs.chunks_exact(width)).zip(&rows);
        scored
            .map(|((targets, log_probs), row)| {
                let mut score = Score::default();
                for (&target, &log_prob) in
                    targets.iter().zip(log_probs).filter(|(target, _)| **target != IGNORE)
                {
                    if !log_prob.is_finite() {
                        return Err(EvalError::NotFinite {
                            file: file(),
                            document: row.document,
                            value: log_prob,
                        });
                    }
                    score.tokens += 1;
                    score.nll -= f64::from(log_prob);
                    score.bytes += self.bytes_of(target)?;
                }
                Ok(score)
            })
            .collect()
    }

    fn bytes_of(&self, token: u32) -> Result<u64, EvalError> {
        let Some(lengths) = self.token_bytes else { return Ok(0) };
        let length =
            lengths.get(token as usize).ok_or(EvalError::TokenBytes { token, tokens: lengths.len() })?;
        Ok(u64::from(*length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_cut_and_what_counts_nothing_is_left_out() {
        let lengths = |tokens, sequence, prefix| -> Vec<(u64, usize)> {
            cut(3, tokens, sequence, prefix).map(|s| (s.start, s.length)).collect()
        };
        assert_eq!(lengths(100, 40, 32), [(0, 40), (40, 40)]);
        assert_eq!(lengths(113, 40, 32), [(0, 40), (40, 40), (80, 33)]);
        assert_eq!(lengths(32, 40, 32), []);
        assert_eq!(lengths(33, 40, 32), [(0, 33)]);
        assert_eq!(lengths(3, 2, 0), [(0, 2)]);
        assert_eq!(lengths(0, 40, 32), []);
    }
}
