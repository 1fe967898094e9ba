//! Scoring pieces of sequences with a path.

use dipaco_shards::IGNORE;
use dipaco_topology::PathId;

use crate::sequences::{Piece, Plan};
use crate::{EvalError, LanguageModel};

/// The score of a piece.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Score {
    pub(crate) tokens: u64,
    /// Sum of `-ln p` in nats.
    pub(crate) nll: f64,
    /// Bytes of the counted tokens; 0 without token lengths.
    pub(crate) bytes: u64,
}

/// What a path says of the counted tokens of a piece.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    /// `ln p` in nats of each counted token, in their order.
    pub(crate) log_probs: Vec<f32>,
    /// Bytes of the counted tokens; 0 without token lengths.
    pub(crate) bytes: u64,
}

impl Counted {
    pub(crate) fn score(&self) -> Score {
        let mut score = Score { tokens: self.log_probs.len() as u64, nll: 0.0, bytes: self.bytes };
        self.log_probs.iter().for_each(|&log_prob| score.nll -= f64::from(log_prob));
        score
    }
}

/// Scores pieces with one model.
pub(crate) struct Scorer<'a> {
    pub(crate) plan: &'a Plan<'a>,
    pub(crate) path: PathId,
    pub(crate) model: &'a dyn LanguageModel,
    pub(crate) token_bytes: Option<&'a [u32]>,
}

impl Scorer<'_> {
    /// Scores the pieces of one batch.
    pub(crate) fn score(&self, pieces: &[Piece]) -> Result<Vec<Score>, EvalError> {
        Ok(self.counted(pieces)?.iter().map(Counted::score).collect())
    }

    /// The log-probabilities of the counted tokens of the pieces of one batch.
    pub(crate) fn counted(&self, pieces: &[Piece]) -> Result<Vec<Counted>, EvalError> {
        let rows: Vec<_> = pieces.iter().map(|piece| (piece, &self.plan.sequences[piece.sequence])).collect();
        let Some((_, first)) = rows.iter().min_by_key(|(piece, _)| piece.sequence) else {
            return Ok(Vec::new());
        };
        // All texts have the tokenizer of the run, so the vocabulary of one is that of all.
        let file_of_first = self.plan.text(first).open()?;
        let width = pieces.iter().map(|piece| piece.length - 1).max().unwrap_or(0);
        let mut tokens = Vec::with_capacity(width * rows.len());
        let mut targets = Vec::with_capacity(width * rows.len());
        let mut counted_targets = 0;
        for (piece, sequence) in &rows {
            let text = self.plan.tokens(sequence, piece.length)?;
            let padding = width + 1 - piece.length;
            tokens.extend(text.iter().take(piece.length - 1));
            tokens.extend(std::iter::repeat_n(file_of_first.end_of_text(), padding));
            let counted = |(place, token)| {
                let counts = self.plan.counts(sequence, self.path, place);
                counted_targets += usize::from(counts);
                if counts { token } else { IGNORE }
            };
            targets.extend(text.into_iter().enumerate().skip(1).map(counted));
            targets.extend(std::iter::repeat_n(IGNORE, padding));
        }
        let failed = |source| EvalError::Model {
            file: self.plan.text(first).name(),
            document: first.document,
            source,
        };
        let batch = file_of_first.batch_of(tokens, targets, rows.len(), counted_targets)?;
        let targets = batch.targets();
        let log_probs = self.model.token_log_probs(&batch).map_err(failed)?;
        if log_probs.len() != targets.len() {
            return Err(EvalError::Shape { expected: targets.len(), actual: log_probs.len() });
        }
        let scored = targets.chunks_exact(width).zip(log_probs.chunks_exact(width)).zip(&rows);
        scored
            .map(|((targets, log_probs), (_, sequence))| {
                let mut counted = Counted::default();
                for (&target, &log_prob) in
                    targets.iter().zip(log_probs).filter(|(target, _)| **target != IGNORE)
                {
                    if !log_prob.is_finite() {
                        let (file, document) = (self.plan.text(sequence).name(), sequence.document);
                        return Err(EvalError::NotFinite { file, document, value: log_prob });
                    }
                    counted.log_probs.push(log_prob);
                    counted.bytes += self.bytes_of(target)?;
                }
                Ok(counted)
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
