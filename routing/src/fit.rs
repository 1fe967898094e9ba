//! Fitting a router on features of documents.

use dipaco_shards::TokenSet;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::advice::dominance_warning;
use crate::arrange::arrange;
use crate::feature_map::FeatureMap;
use crate::features::{FeatureExtractor, Featurizer};
use crate::progress::ProgressFn;
use crate::router::{FeaturePart, FittedOn, Router, feature_parts};
use crate::{RouterConfig, RouterKind, RoutingError, calibrate, kmeans};

/// Stream of the random generator for the sample; k-means uses the streams from 0 up.
const SAMPLE_STREAM: u64 = u64::MAX;

/// Origin of the documents that a router is fitted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FitOrigin {
    /// Content hash of the token file.
    pub tokens_hash: String,
    /// Hash of the tokenizer that made it.
    pub tokenizer_hash: String,
    /// Hash of the seed model that gives the features.
    pub seed_hash: String,
    /// Hash of the label file, for a router of labels.
    pub labels_hash: Option<String>,
    /// Devices that computed the features ([`crate::FeaturePoints::devices`]).
    pub devices: Vec<String>,
}

/// A fitted router and the quality of the fit.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The router.
    pub router: Router,
    /// Documents of the sample that go to each path (P).
    pub sizes: Vec<u64>,
    /// Iterations of the best start of k-means; for product k-means the maximum over the parts.
    pub iterations: usize,
}

/// Fits a router on the features of `config.sample_documents` documents of `file`, drawn evenly. `clusters` are the radices
/// of a path's number (`Topology::radices`): product k-means fits that many centroids to each part of the feature, k-means
/// needs only their product, the number of paths. `replicas` (`Topology::replicas`) is the number of paths through each
/// combination of modules. Above 1 it is the first radix, and the others are levels.
///
/// `seed_hash` names the weights of `model`; users of the router check it with [`Router::check_seed`]. The same inputs give
/// the same router, bit for bit. Memory: the features of the sample as f32, up to three times.
///
/// # Errors
///
/// Unusable settings, a prefix over the model's context, an empty document, features that can't be computed or are not
/// finite, fewer different documents than paths, or [`RoutingError::Cancelled`].
pub fn fit(
    model: &dyn FeatureExtractor,
    seed_hash: &str,
    file: &TokenSet,
    clusters: &[u32],
    replicas: u32,
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Fit, RoutingError> {
    config.check()?;
    config.check_start()?;
    let dimension = model.dimension();
    let documents = sample(file.documents(), config.sample_documents as u64, config.seed);
    // Before the features, which take long to compute.
    check_count(documents.len(), clusters)?;
    let mut points = Vec::with_capacity(documents.len().saturating_mul(dimension));
    let featurizer =
        Featurizer { model, prefix_tokens: config.prefix_tokens, batch_documents: config.batch_documents };
    let total = documents.len() as u64;
    featurizer.for_each(file, documents.into_iter(), total, progress, |_, features| {
        points.extend_from_slice(features);
        Ok(())
    })?;
    let origin = FitOrigin {
        tokens_hash: file.content_hash().to_owned(),
        tokenizer_hash: file.tokenizer_hash().to_owned(),
        seed_hash: seed_hash.to_owned(),
        labels_hash: None,
        devices: model.device().into_iter().collect(),
    };
    fit_points(&points, dimension, clusters, replicas, origin, config, progress)
}

/// [`fit()`] on features (N, D), row-major, that are computed already.
///
/// # Errors
///
/// As [`fit()`], and [`RoutingError::Shape`] if `points` is not a multiple of `dimension` or there are more parts than
/// components.
pub fn fit_points(
    points: &[f32],
    dimension: usize,
    clusters: &[u32],
    replicas: u32,
    origin: FitOrigin,
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Fit, RoutingError> {
    config.check()?;
    config.check_start()?;
    let documents = points.len().checked_div(dimension).unwrap_or(0);
    let paths = check_count(documents, clusters)?;
    // The replicas of a combination share all of its modules, so their digit is no level.
    let levels = clusters.get(usize::from(replicas > 1)..).unwrap_or_default();
    let clusters = match config.kind {
        RouterKind::ProductKMeans if !clusters.is_empty() => clusters.to_vec(),
        _ => vec![paths],
    };
    if clusters.len() > dimension {
        return Err(RoutingError::Shape {
            what: "components of a feature, at least one for each level of product k-means",
            expected: clusters.len(),
            actual: dimension,
        });
    }
    let fitted_on = FittedOn {
        tokens_hash: origin.tokens_hash,
        tokenizer_hash: origin.tokenizer_hash,
        seed_hash: origin.seed_hash,
        labels_hash: origin.labels_hash,
        devices: origin.devices,
        documents: documents as u64,
        loss: 0.0,
        targets: None,
        config: config.clone(),
    };
    if matches!(config.kind, RouterKind::Random | RouterKind::Labels) {
        let router = Router::equal_parts(paths, fitted_on)?;
        let sizes = histogram(choices(&router, points)?.into_iter(), paths);
        return Ok(Fit { router, sizes, iterations: 0 });
    }
    let map = FeatureMap::of(config);
    let numbers = map.fit(points, dimension);
    let mapped = map.apply_all(&numbers, points, dimension);
    let points = &*mapped;
    let mut found = cluster_parts(points, dimension, &clusters, config, progress)?;
    if config.arrange && config.kind == RouterKind::KMeans {
        found.take_order(&arrange(&found.centroids, dimension, levels, config.seed), dimension);
    }
    let loss = found.inertia / documents as f64;
    let fitted_on = FittedOn { loss, ..fitted_on };
    // For points after the map.
    let router_with = |biases: &[f32]| {
        let (centroids, fitted_on) = (found.centroids.clone(), fitted_on.clone());
        match config.kind {
            RouterKind::ProductKMeans => {
                Router::product_kmeans(clusters.clone(), dimension, centroids, biases, fitted_on)
            }
            _ => Router::kmeans(dimension, centroids, biases, fitted_on),
        }
    };
    let mut sizes = histogram(found.paths.into_iter(), paths);
    let mut router = router_with(&vec![0.0; paths as usize])?;
    // Without small paths all biases stay 0: every cell is then a plain nearest-centroid cell.
    if let Some(wanted) = enlarged_shares(&sizes, config.least_share) {
        router = router_with(&least_biases(&router, points, &wanted)?)?;
        sizes = histogram(choices(&router, points)?.into_iter(), paths);
    }
    if let Some(warning) = dominance_warning(&sizes, config.kind, config.features) {
        tracing::warn!("{warning}");
    }
    Ok(Fit { router: router.with_map(map, &numbers)?, sizes, iterations: found.iterations })
}

/// The shares (P) that paths of these sizes (P) are to have, if some have less than `least` of an equal share.
fn enlarged_shares(sizes: &[u64], least: f64) -> Option<Vec<f64>> {
    let documents = sizes.iter().sum::<u64>() as f64;
    let floor = least * documents / sizes.len() as f64;
    let small = sizes.iter().filter(|&&size| (size as f64) < floor).count();
    if small == 0 {
        return None;
    }
    tracing::info!(
        paths = small,
        least = floor.ceil(),
        "paths get too little text from centroids alone; biases enlarge their cells (routing.least_share)"
    );
    Some(calibrate::wanted_shares(sizes, least))
}

/// The paths that a router chooses for points (N, D).
fn choices(router: &Router, points: &[f32]) -> Result<Vec<u32>, RoutingError> {
    let path_of = |point: &[f32]| Ok(router.route(point)?.path.0);
    points.par_chunks_exact(router.dimension()).map(path_of).collect()
}

/// The clusterings of all parts of a feature together.
struct PartClusters {
    /// Centroids (K, width) of the first part, then of the next.
    centroids: Vec<f32>,
    /// The path of each point (N).
    paths: Vec<u32>,
    /// Sum of the squared distances between points and their centroids.
    inertia: f64,
    /// Maximum of the iterations over the parts.
    iterations: usize,
}

impl PartClusters {
    /// Gives each path the cluster of this order (P). The feature has one part.
    fn take_order(&mut self, order: &[u32], dimension: usize) {
        let mut path_of = vec![0; order.len()];
        let mut centroids = Vec::with_capacity(self.centroids.len());
        for (path, &cluster) in (0..).zip(order) {
            path_of[cluster as usize] = path;
            centroids.extend_from_slice(&self.centroids[cluster as usize * dimension..][..dimension]);
        }
        self.centroids = centroids;
        self.paths.iter_mut().for_each(|path| *path = path_of[*path as usize]);
    }
}

/// Clusters each part of the features (N, D) by itself.
fn cluster_parts(
    points: &[f32],
    dimension: usize,
    clusters: &[u32],
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<PartClusters, RoutingError> {
    let documents = points.len() / dimension;
    let mut all =
        PartClusters { centroids: Vec::new(), paths: vec![0; documents], inertia: 0.0, iterations: 0 };
    for part in feature_parts(dimension, clusters) {
        // The only part of plain k-means is the whole feature, which needs no copy.
        let found = if part.components.len() == dimension {
            kmeans(points, dimension, part.clusters as usize, config, progress)?
        } else {
            let own = columns(points, dimension, &part);
            kmeans(&own, part.components.len(), part.clusters as usize, config, progress)?
        };
        // The clusters are the digits of the path's number, the first part the most significant.
        for (path, digit) in all.paths.iter_mut().zip(&found.assignments) {
            *path = *path * part.clusters + digit;
        }
        all.centroids.extend_from_slice(&found.centroids);
        // Squared distances add up over the parts, because the parts have no component in common.
        all.inertia += found.inertia;
        all.iterations = all.iterations.max(found.iterations);
    }
    Ok(all)
}

/// Biases (P), the largest 0, that give each path its share in `wanted` (P) of `points` (N, D). `router` has no biases yet.
fn least_biases(router: &Router, points: &[f32], wanted: &[f64]) -> Result<Vec<f32>, RoutingError> {
    let (dimension, fitted) = (router.dimension(), router.fitted_on());
    let stride = calibrate::stride(points.len() / dimension, wanted.len());
    // In units of the mean squared distance, so that one softness suits every seed model.
    let unit = if fitted.loss > 0.0 { fitted.loss } else { 1.0 };
    let rows: Result<Vec<Vec<f64>>, RoutingError> =
        points.par_chunks_exact(dimension).step_by(stride).map(|point| router.distances(point)).collect();
    let logits: Vec<f32> = rows?.into_iter().flatten().map(|distance| (-distance / unit) as f32).collect();
    let biases = calibrate::calibrate(&logits, wanted);
    // Only differences of biases matter. Biases of 0 or less keep the distance less the bias a squared distance.
    let largest = biases.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Ok(biases.into_iter().map(|bias| ((bias - largest) * unit) as f32).collect())
}

/// Documents of each path (P).
fn histogram(assignments: impl Iterator<Item = u32>, paths: u32) -> Vec<u64> {
    let mut sizes = vec![0u64; paths as usize];
    assignments.for_each(|path| sizes[path as usize] += 1);
    sizes
}

/// P, the number of paths, after the check that there are at least as many documents.
fn check_count(documents: usize, clusters: &[u32]) -> Result<u32, RoutingError> {
    let paths = clusters.iter().try_fold(1u32, |product, &clusters| product.checked_mul(clusters));
    match paths {
        Some(paths) if paths > 0 && paths as usize <= documents => Ok(paths),
        _ => {
            let clusters = paths.map_or(usize::MAX, |paths| paths as usize);
            Err(RoutingError::TooFewPoints { clusters, points: documents, distinct: documents })
        }
    }
}

/// Some components of all points.
fn columns(points: &[f32], dimension: usize, part: &FeaturePart) -> Vec<f32> {
    let mut own = Vec::with_capacity(points.len() / dimension * part.components.len());
    points.chunks_exact(dimension).for_each(|point| own.extend_from_slice(&point[part.components.clone()]));
    own
}

/// `wanted` of the numbers below `total`, ascending, all sets equally likely (Knuth's algorithm S); all numbers if
/// `wanted` is not smaller.
pub(crate) fn sample(total: u64, wanted: u64, seed: u64) -> Vec<u64> {
    if total <= wanted {
        return (0..total).collect();
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(SAMPLE_STREAM);
    let mut chosen = Vec::with_capacity(wanted as usize);
    for number in 0..total {
        let missing = wanted - chosen.len() as u64;
        if missing == 0 {
            break;
        }
        if random.random_range(0..total - number) < missing {
            chosen.push(number);
        }
    }
    chosen
}

#[cfg(test)]
mod tests;
