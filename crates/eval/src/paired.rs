//! Two models on the same documents.

use std::f64::consts::LN_2;

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::Evaluation;

/// The difference between two models in bits per byte, with its 95 % interval over documents. This is Student's t
/// interval of the ratio of differences to bytes (Cochran, Sampling Techniques, 3rd ed. 1977, §6.4). It says how far other
/// text of the same kind may change the difference, and nothing about other seeds of training.
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
        // A single document does not show how much documents differ.
        if ours.len() < 2 || ours.len() != theirs.len() {
            return None;
        }
        let pairs = ours.iter().zip(theirs).map(|(our, their)| {
            let same = (our.document, our.bytes) == (their.document, their.bytes);
            same.then_some((our.nll_sum - their.nll_sum, our.bytes as f64))
        });
        let pairs: Vec<(f64, f64)> = pairs.collect::<Option<_>>()?;
        let documents = pairs.len() as f64;
        let bytes: f64 = pairs.iter().map(|pair| pair.1).sum();
        let rate = pairs.iter().map(|pair| pair.0).sum::<f64>() / bytes;
        let squares: f64 = pairs.iter().map(|(nats, bytes)| (nats - rate * bytes).powi(2)).sum();
        let error = (squares * documents / (documents - 1.0)).sqrt() / bytes;
        let half = StudentsT::new(0.0, 1.0, documents - 1.0).ok()?.inverse_cdf(0.975) * error;
        let [bits_per_byte, low, high] = [rate, rate - half, rate + half].map(|nats| nats / LN_2);
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
