//! Training data of the transformer router: windows of the reserved documents and the best path at each position.

use std::ops::Range;

use dipaco_path::Trainer;
use dipaco_shards::{IGNORE, Permutation, TokenBatch, TokenError, TokenSet};

use crate::TrainError;
use crate::router::RouterError;
use dipaco_routing::{PathScores, router_targets};

/// A part of a document, at most as long as the router's context.
#[derive(Clone, Copy)]
pub(super) struct Window {
    document: u64,
    /// Position of its first token in the document.
    start: u64,
}

/// Windows for training and for validation.
pub(super) struct Split {
    pub(super) train: Vec<Window>,
    pub(super) held_out: Vec<Window>,
}

/// The reserved documents with the scores of all paths.
pub(super) struct RouterData<'a> {
    pub(super) tokens: &'a TokenSet,
    pub(super) scores: &'a mut [PathScores],
    /// Largest number of tokens of a window.
    pub(super) window: usize,
    /// Tokens ahead that decide which path is best; 0 takes the rest of the window.
    pub(super) score_tokens: usize,
}

/// The window at a position of the training order. The order repeats all windows endlessly, each time in a new permutation.
pub(super) fn window_at(windows: &[Window], position: u64, seed: u64) -> Window {
    let count = windows.len() as u64;
    let place = Permutation::new(count, seed, position / count).apply(position % count);
    windows[place as usize]
}

impl RouterData<'_> {
    /// Splits the windows: the last `holdout_fraction` of the documents is held out.
    pub(super) fn split(&self, holdout_fraction: f64) -> Split {
        let documents = self.tokens.documents();
        let border = documents - held_out_documents(documents, holdout_fraction);
        Split { train: self.windows(0..border), held_out: self.windows(border..documents) }
    }

    /// The windows of some documents. Windows of one token are left out: they have no next token to route.
    fn windows(&self, documents: Range<u64>) -> Vec<Window> {
        let of = |document| {
            let range = self.tokens.document_range(document);
            let length = range.end - range.start;
            (0..length)
                .step_by(self.window)
                .filter(move |start| length - start > 1)
                .map(move |start| Window { document, start })
        };
        documents.flat_map(of).collect()
    }

    /// A batch of B windows (B, T), padded to the longest of them. The target of a position is the best path from there on;
    /// [`IGNORE`] in the padding.
    pub(super) fn batch(&mut self, windows: &[Window]) -> Result<TokenBatch, RouterError> {
        let mut rows = Vec::with_capacity(windows.len());
        for window in windows {
            let text = self.tokens.document(window.document);
            let range = window.start..window.start + self.window as u64;
            let tokens = text.slice(range.clone()).to_vec();
            let mut scores = Vec::with_capacity(self.scores.len());
            for path in self.scores.iter_mut() {
                scores.push(path.document(self.tokens, window.document)?);
            }
            let (start, end) = (window.start as usize, window.start as usize + tokens.len());
            let own: Vec<&[f32]> = scores.iter().map(|scores| &scores[start..end]).collect();
            let ahead = if self.score_tokens == 0 { usize::MAX } else { self.score_tokens };
            rows.push((tokens, router_targets(&own, ahead)));
        }
        let width = rows.iter().map(|(tokens, _)| tokens.len()).max().unwrap_or(0);
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for (mut tokens, mut best) in rows {
            tokens.resize(width, self.tokens.end_of_text());
            best.resize(width, IGNORE);
            inputs.extend(tokens);
            targets.extend(best);
        }
        let inputs = self.tokens.rows(inputs, windows.len())?;
        TokenBatch::new(inputs, targets, self.scores.len()).map_err(|error: TokenError| {
            let what = format!("the targets of the transformer router are no batch ({error})");
            TrainError::Internal { what }.into()
        })
    }

    /// Mean of `-ln p(best path)` over all positions of windows, in nats.
    pub(super) fn loss(
        &mut self,
        trainer: &mut Trainer,
        windows: &[Window],
        batch: usize,
    ) -> Result<f64, RouterError> {
        let (mut sum, mut counted) = (0.0, 0u64);
        for windows in windows.chunks(batch) {
            let batch = self.batch(windows)?;
            let log_probs = trainer.token_log_probs(&batch)?;
            let targets = batch.targets();
            for (log_prob, _) in log_probs.iter().zip(targets).filter(|&(_, &target)| target != IGNORE) {
                sum -= f64::from(*log_prob);
                counted += 1;
            }
        }
        Ok(mean(sum, counted))
    }

    /// Mean of `-ln p(best path)` over all positions of windows, in nats, for a guess from counts. Each count gets 1 added,
    /// so that no path has the probability 0.
    pub(super) fn blind_loss(&mut self, counts: &[u64], windows: &[Window]) -> Result<f64, RouterError> {
        let all = counts.iter().sum::<u64>() + counts.len() as u64;
        let (mut sum, mut counted) = (0.0, 0u64);
        for &window in windows {
            // A batch of one window has no padding.
            let batch = self.batch(&[window])?;
            for &target in batch.targets() {
                sum -= mean((counts[target as usize] + 1) as f64, all).ln();
                counted += 1;
            }
        }
        Ok(mean(sum, counted))
    }
}

/// Number of held-out documents: at least one if the fraction is positive, and never more than half.
fn held_out_documents(documents: u64, fraction: f64) -> u64 {
    if fraction <= 0.0 {
        return 0;
    }
    ((documents as f64 * fraction).round() as u64).max(1).min(documents / 2)
}

fn mean(sum: f64, counted: u64) -> f64 {
    sum / counted.max(1) as f64
}
