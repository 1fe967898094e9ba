//! Vectors of tokens by latent semantic analysis (LSA), and the features of documents that they give.
//!
//! A document is a row of weights, one for each token of the vocabulary: (1 + ln count) · idf, scaled to length 1. The
//! first C right singular vectors of a sample of documents are the directions that keep most of it (Deerwester et al.,
//! "Indexing by latent semantic analysis", 1990; c-BTM clusters by them too, arXiv:2303.14177 §3.1). A token's vector is its
//! row of these directions times its idf. The feature of a text is the sum of the vectors of its tokens, each times
//! 1 + ln count, scaled to length 1.

use dipaco_shards::TokenSet;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::fit::sample;
use crate::progress::{ProgressFn, RoutingProgress, report};
use crate::{RouterConfig, RoutingError};

/// Largest number of documents that vectors are fitted on. More change the clusters little and take memory: 8 bytes for
/// each different token of each document.
const MOST_DOCUMENTS: u64 = 20_000;
/// Rounds of subspace iteration. Four settle the clusters of 8,000 documents.
const ITERATIONS: usize = 8;
/// Stream of the random generator for the first directions.
const START_STREAM: u64 = u64::MAX - 1;
/// A direction that keeps less than this share of its length after the others are taken out is rounding, not data.
const LEAST_REST: f64 = 1e-9;

/// A vector for each token of a vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenVectors {
    components: usize,
    /// (V, C), row-major.
    values: Vec<f32>,
}

impl TokenVectors {
    /// Fits vectors of `config.lsa_components` components on whole documents of `file`, drawn evenly.
    ///
    /// The same inputs give the same bits, whatever the number of threads.
    ///
    /// # Errors
    ///
    /// Unusable settings, more components than the vocabulary has tokens, or [`RoutingError::Cancelled`].
    pub fn fit(
        file: &TokenSet,
        config: &RouterConfig,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Self, RoutingError> {
        config.check()?;
        let (vocabulary, components) = (file.vocab_size() as usize, config.lsa_components);
        if components > vocabulary {
            return Err(RoutingError::Config {
                key: "lsa_components",
                value: components.to_string(),
                problem: "is more than the tokens of the vocabulary",
            });
        }
        let wanted = MOST_DOCUMENTS.min(config.sample_documents as u64);
        let numbers = sample(file.documents(), wanted, config.seed);
        let mut counted = Vec::with_capacity(numbers.len());
        for (done, &document) in numbers.iter().enumerate() {
            if done % config.batch_documents == 0 {
                report(progress, RoutingProgress::Vectors { iteration: 0, iterations: ITERATIONS })?;
            }
            counted.push(counts(file.document(document).iter().collect()));
            file.release(document..document + 1);
        }
        let idf = inverse_frequencies(&counted, vocabulary);
        let rows: Vec<Row> = counted.par_iter().map(|counts| row(counts, &idf)).collect();
        drop(counted);
        let start = start(vocabulary, components, config.seed);
        let directions = principal(&rows, start, ITERATIONS, progress)?;
        Self::of_directions(&directions, &idf)
    }

    /// Vectors of orthonormal directions (C of V each) and the idf of each token (V).
    fn of_directions(directions: &[Vec<f64>], idf: &[f64]) -> Result<Self, RoutingError> {
        let components = directions.len();
        let mut values = vec![0f32; idf.len() * components];
        for (token, vector) in values.chunks_exact_mut(components.max(1)).enumerate() {
            for (value, direction) in vector.iter_mut().zip(directions) {
                *value = (direction[token] * idf[token]) as f32;
            }
        }
        Self::new(components, values)
    }

    /// Vectors with this number of `components` and these `values` (V, C), row-major.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Shape`] if the values are not whole vectors, [`RoutingError::NotFinite`] for a NaN or an infinity.
    pub fn new(components: usize, values: Vec<f32>) -> Result<Self, RoutingError> {
        if components == 0 || values.is_empty() || !values.len().is_multiple_of(components) {
            let expected = values.len().div_ceil(components.max(1)).max(1) * components.max(1);
            return Err(RoutingError::Shape {
                what: "values of token vectors",
                expected,
                actual: values.len(),
            });
        }
        if let Some(place) = values.iter().position(|value| !value.is_finite()) {
            let (index, component) = ((place / components) as u64, place % components);
            return Err(RoutingError::NotFinite { what: "the vector of token", index, component });
        }
        Ok(Self { components, values })
    }

    /// C, the number of components of a vector.
    #[must_use]
    pub fn components(&self) -> usize {
        self.components
    }

    /// V, the number of tokens.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.values.len() / self.components
    }

    /// The vectors (V, C), row-major.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The feature (C) of some tokens. Its length is 1, or 0 if no document of the fit had one of the tokens.
    #[must_use]
    pub fn feature(&self, tokens: &[u32]) -> Vec<f32> {
        let mut sum = vec![0f64; self.components];
        for (token, count) in counts(tokens.to_vec()) {
            let start = token as usize * self.components;
            // An id from V up belongs to no text of the fit, as when a model has more embedding rows than its tokenizer.
            let Some(vector) = self.values.get(start..start + self.components) else { continue };
            let weight = damped(count);
            sum.iter_mut().zip(vector).for_each(|(sum, &value)| *sum += weight * f64::from(value));
        }
        let length = sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        if length > 0.0 {
            sum.iter_mut().for_each(|value| *value /= length);
        }
        sum.into_iter().map(|value| value as f32).collect()
    }
}

/// The weights of a document's tokens, tokens ascending.
type Row = Vec<(u32, f32)>;

/// Different tokens and how often each occurs, ascending.
fn counts(mut tokens: Vec<u32>) -> Vec<(u32, u32)> {
    tokens.sort_unstable();
    tokens.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u32)).collect()
}

/// Weight of a token that occurs `count` times: a word that is repeated says little more than the word once.
fn damped(count: u32) -> f64 {
    1.0 + f64::from(count).ln()
}

/// 1 + ln((1 + N) / (1 + documents with the token)) for each token (V).
fn inverse_frequencies(documents: &[Vec<(u32, u32)>], vocabulary: usize) -> Vec<f64> {
    let mut containing = vec![0u32; vocabulary];
    for &(token, _) in documents.iter().flatten() {
        if let Some(count) = containing.get_mut(token as usize) {
            *count += 1;
        }
    }
    let all = 1.0 + documents.len() as f64;
    containing.into_iter().map(|count| 1.0 + (all / (1.0 + f64::from(count))).ln()).collect()
}

/// The weights of a document, scaled to length 1.
fn row(counts: &[(u32, u32)], idf: &[f64]) -> Row {
    let weight =
        |&(token, count): &(u32, u32)| idf.get(token as usize).map(|idf| (token, damped(count) * idf));
    let weights: Vec<(u32, f64)> = counts.iter().filter_map(weight).collect();
    let length = weights.iter().map(|(_, weight)| weight * weight).sum::<f64>().sqrt();
    weights.into_iter().map(|(token, weight)| (token, (weight / length) as f32)).collect()
}

/// C random directions (V each).
fn start(vocabulary: usize, components: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(START_STREAM);
    (0..components).map(|_| (0..vocabulary).map(|_| random.random::<f64>() - 0.5).collect()).collect()
}

/// C orthonormal directions (V each) that span about the same space as the first right singular vectors of `rows`, by
/// subspace iteration from the given `directions`. Distances between features do not depend on the basis of this space.
fn principal(
    rows: &[Row],
    mut directions: Vec<Vec<f64>>,
    iterations: usize,
    progress: &mut ProgressFn<'_>,
) -> Result<Vec<Vec<f64>>, RoutingError> {
    for iteration in 1..=iterations {
        // A direction is multiplied by one thread, in the order of the documents.
        directions.par_iter_mut().for_each(|direction| *direction = gram_product(rows, direction));
        orthonormalise(&mut directions);
        report(progress, RoutingProgress::Vectors { iteration, iterations })?;
    }
    Ok(directions)
}

/// AᵀA x for the documents A (N, V) and a direction x (V).
fn gram_product(rows: &[Row], direction: &[f64]) -> Vec<f64> {
    let mut product = vec![0f64; direction.len()];
    for row in rows {
        let along: f64 =
            row.iter().map(|&(token, weight)| f64::from(weight) * direction[token as usize]).sum();
        for &(token, weight) in row {
            product[token as usize] += along * f64::from(weight);
        }
    }
    product
}

/// Makes directions (C of V each) orthogonal and of length 1, by modified Gram-Schmidt. A direction without a part of its
/// own becomes 0: documents span fewer directions than were wanted.
fn orthonormalise(directions: &mut [Vec<f64>]) {
    for index in 0..directions.len() {
        let (done, rest) = directions.split_at_mut(index);
        let Some(own) = rest.first_mut() else { return };
        let before = length(own);
        // The second pass takes out the rounding of the first.
        for _ in 0..2 {
            for other in done.iter() {
                let along: f64 = other.iter().zip(own.iter()).map(|(a, b)| a * b).sum();
                own.iter_mut().zip(other).for_each(|(own, other)| *own -= along * other);
            }
        }
        let after = length(own);
        let scale = if after > LEAST_REST * before { 1.0 / after } else { 0.0 };
        own.iter_mut().for_each(|value| *value *= scale);
    }
}

fn length(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests;
