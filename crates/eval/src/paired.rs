//! Two models on the same documents.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::Evaluation;

/// Number of resamples of the documents.
const RESAMPLES: usize = 1_000;

/// The difference between two models in bits per byte, with its 95 % interval by the paired bootstrap over documents: the
/// documents are drawn with replacement, and each draw takes the losses of both models on a document (Efron and Tibshirani, An
/// Introduction to the Bootstrap, 1993, §13.3, percentiles). It says how far other text of the same kind may change the
/// difference, and nothing about other seeds of training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedDifference {
    /// Bits per byte of the model, less those of the base; negative if the model is better.
    pub bits_per_byte: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl PairedDifference {
    /// Compares a model with a base. Equal inputs give equal bits. `None` if the two did not score the same documents, or only one,
    /// or the bytes of their text are not known.
    #[must_use]
    pub fn between(model: &Evaluation, base: &Evaluation) -> Option<Self> {
        let (ours, theirs) = (&model.document_losses, &base.document_losses);
        // The draws of a single document are all alike, and an interval without width would promise much.
        if ours.len() < 2 || ours.len() != theirs.len() {
            return None;
        }
        let pairs = ours.iter().zip(theirs).map(|(our, their)| {
            let same = (our.document, our.bytes) == (their.document, their.bytes);
            same.then_some((our.nll_sum - their.nll_sum, our.bytes as f64))
        });
        let pairs: Vec<(f64, f64)> = pairs.collect::<Option<_>>()?;
        let rate = |sums: (f64, f64)| sums.0 / sums.1 / std::f64::consts::LN_2;
        let add = |sum: (f64, f64), pair: &(f64, f64)| (sum.0 + pair.0, sum.1 + pair.1);
        let bits_per_byte = rate(pairs.iter().fold((0.0, 0.0), add));
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let mut resampled: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let drawn = (0..pairs.len()).map(|_| &pairs[random.random_range(0..pairs.len())]);
                rate(drawn.fold((0.0, 0.0), add))
            })
            .collect();
        resampled.sort_by(f64::total_cmp);
        let (low, high) = (resampled[RESAMPLES / 40], resampled[RESAMPLES - 1 - RESAMPLES / 40]);
        // Without bytes of text there is no rate.
        (bits_per_byte.is_finite() && low.is_finite() && high.is_finite()).then_some(Self {
            bits_per_byte,
            low,
            high,
        })
    }
}

#[cfg(test)]
mod tests;
