//! Fitting the router of a later phase on what the paths make of the reserved documents.

use dipaco_shards::TokenFile;
use dipaco_topology::PathId;

use crate::fit::{Fit, Origin, sample};
use crate::progress::ProgressFn;
use crate::router::{FittedOn, TargetsFrom};
use crate::sample_features::SampleFeatures;
use crate::{Router, RouterConfig, RoutingError};

/// The reserved documents that a router is fitted on: all, or `routing.sample_documents` of them, drawn evenly.
#[must_use]
pub fn refit_sample(file: &TokenFile, config: &RouterConfig) -> Vec<u64> {
    sample(file.documents(), config.sample_documents as u64, config.seed)
}

/// Fits a discriminative router (arXiv:2403.10616 §2.4.2) on the seed's features of the documents of
/// [`refit_sample`], whose `scores` (N, P), row-major, are the log-likelihoods that the paths give them, in nats. `from`
/// says which router and scores the targets come from. Features are kept in `folder` until the router is fitted. Memory:
/// features and scores of the documents, f32.
///
/// # Errors
///
/// As [`fit()`](crate::fit()), and when there are not N × P scores or one is not finite.
pub fn refit(
    features: &SampleFeatures<'_>,
    dimension: usize,
    origin: Origin,
    scores: &[f32],
    paths: u32,
    from: TargetsFrom,
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Fit, RoutingError> {
    let points = features.all(progress)?;
    let targets: Vec<PathId> = scores
        .chunks_exact(paths as usize)
        .map(|scores| {
            let mut best = 0;
            for (path, score) in scores.iter().enumerate() {
                if *score > scores[best] {
                    best = path;
                }
            }
            PathId(best as u32)
        })
        .collect();
    nearest_mean(&points, dimension, &targets, paths, origin, from, config)
}

fn nearest_mean(
    points: &[f32],
    dimension: usize,
    targets: &[PathId],
    paths: u32,
    origin: Origin,
    from: TargetsFrom,
    config: &RouterConfig,
) -> Result<Fit, RoutingError> {
    let mut means = vec![0f32; paths as usize * dimension];
    let mut sizes = vec![0u64; paths as usize];
    for (point, target) in points.chunks_exact(dimension).zip(targets) {
        sizes[target.index()] += 1;
        let mean = &mut means[target.index() * dimension..][..dimension];
        mean.iter_mut().zip(point).for_each(|(mean, value)| *mean += value);
    }
    for (mean, &size) in means.chunks_exact_mut(dimension).zip(&sizes) {
        mean.iter_mut().for_each(|mean| *mean /= size.max(1) as f32);
    }
    let biases: Vec<f32> = means
        .chunks_exact(dimension)
        .map(|mean| -0.5 * mean.iter().map(|value| value * value).sum::<f32>())
        .collect();
    let fitted_on = FittedOn {
        tokens_hash: origin.tokens_hash,
        tokenizer_hash: origin.tokenizer_hash,
        seed_hash: origin.seed_hash,
        documents: targets.len() as u64,
        loss: 0.0,
        targets: Some(from),
        config: config.clone(),
    };
    let router = Router::discriminative(dimension, means, &biases, fitted_on)?;
    Ok(Fit { router, sizes, iterations: 1 })
}
