//! Fitting a router on features of documents.

use dipaco_shards::TokenFile;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::features::{FeatureExtractor, Featurizer};
use crate::progress::ProgressFn;
use crate::router::{FittedOn, Part, Router, parts};
use crate::{RouterConfig, RouterKind, RoutingError, calibrate, kmeans};

/// Stream of the random generator that draws the sample; k-means uses the streams from 0 up.
const SAMPLE_STREAM: u64 = u64::MAX;
/// A path with more than this share of the documents is worth a warning, when it is also over [`DOMINANT_TIMES`] equal
/// shares.
const DOMINANT_SHARE: f64 = 0.5;
/// See [`DOMINANT_SHARE`].
const DOMINANT_TIMES: f64 = 2.0;

/// Where the documents come from whose features a router is fitted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Content hash of the token file.
    pub tokens_hash: String,
    /// Hash of the tokenizer that made it.
    pub tokenizer_hash: String,
    /// Hash of the seed model that gives the features.
    pub seed_hash: String,
}

/// A fitted router and how well it fits.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The router.
    pub router: Router,
    /// Documents of the sample that go to each path (P).
    pub sizes: Vec<u64>,
    /// Iterations of the best start of k-means; the most of all parts for product k-means.
    pub iterations: usize,
}

/// Fits a router on the features of `config.sample_documents` documents of `file`, drawn evenly. `clusters` are the digits
/// of a path's number (`Topology::radices`): product k-means fits as many centroids to each part of the feature, k-means
/// needs only their product, the number of paths.
///
/// `seed_hash` names the weights of `model`; whoever uses the router checks it with [`Router::check_seed`]. The same
/// inputs give the same router, bit for bit. Memory: the sample's features, f32, twice for product k-means.
///
/// # Errors
///
/// Settings that can't be used, a prefix over the model's context, an empty document, features that can't be computed
/// or are not finite, fewer different documents than paths, or [`RoutingError::Cancelled`].
pub fn fit(
    model: &dyn FeatureExtractor,
    seed_hash: &str,
    file: &TokenFile,
    clusters: &[u32],
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Fit, RoutingError> {
    config.check()?;
    config.check_start()?;
    let dimension = model.dimension();
    let documents = sample(file.documents(), config.sample_documents as u64, config.seed);
    check_count(documents.len(), clusters)?;
    let mut points = Vec::with_capacity(documents.len().saturating_mul(dimension));
    let featurizer =
        Featurizer { model, prefix_tokens: config.prefix_tokens, batch_documents: config.batch_documents };
    let total = documents.len() as u64;
    featurizer.for_each(file, documents.into_iter(), total, progress, |_, features| {
        points.extend_from_slice(features);
        Ok(())
    })?;
    let origin = Origin {
        tokens_hash: file.content_hash().to_owned(),
        tokenizer_hash: file.tokenizer_hash().to_owned(),
        seed_hash: seed_hash.to_owned(),
    };
    fit_points(&points, dimension, clusters, origin, config, progress)
}

/// [`fit()`] on features (N, D), row-major, that have been computed already.
///
/// # Errors
///
/// As [`fit()`], and [`RoutingError::Shape`] when `points` is not a multiple of `dimension` or there are more parts than
/// components.
pub fn fit_points(
    points: &[f32],
    dimension: usize,
    clusters: &[u32],
    origin: Origin,
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Fit, RoutingError> {
    config.check()?;
    config.check_start()?;
    let documents = points.len().checked_div(dimension).unwrap_or(0);
    let paths = check_count(documents, clusters)?;
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
    let (mut centroids, mut inertia, mut iterations) = (Vec::new(), 0.0, 0);
    let mut assignments = vec![0u32; documents];
    for part in parts(dimension, &clusters) {
        let found = if part.components.len() == dimension {
            kmeans(points, dimension, part.clusters as usize, config, progress)?
        } else {
            let own = columns(points, dimension, &part);
            kmeans(&own, part.components.len(), part.clusters as usize, config, progress)?
        };
        for (path, digit) in assignments.iter_mut().zip(&found.assignments) {
            *path = *path * part.clusters + digit;
        }
        centroids.extend_from_slice(&found.centroids);
        inertia += found.inertia;
        iterations = iterations.max(found.iterations);
    }
    let fitted_on = FittedOn {
        tokens_hash: origin.tokens_hash,
        tokenizer_hash: origin.tokenizer_hash,
        seed_hash: origin.seed_hash,
        documents: documents as u64,
        loss: inertia / documents as f64,
        targets: None,
        config: config.clone(),
    };
    let with = |biases: &[f32]| {
        let (centroids, fitted_on) = (centroids.clone(), fitted_on.clone());
        match config.kind {
            RouterKind::ProductKMeans => {
                Router::product_kmeans(clusters.clone(), dimension, centroids, biases, fitted_on)
            }
            _ => Router::kmeans(dimension, centroids, biases, fitted_on),
        }
    };
    let mut sizes = histogram(assignments.into_iter(), paths);
    let mut router = with(&vec![0.0; paths as usize])?;
    let floor = config.least_share * documents as f64 / f64::from(paths);
    let small = sizes.iter().filter(|&&size| (size as f64) < floor).count();
    if small > 0 {
        tracing::info!(
            paths = small,
            least = floor.ceil(),
            "paths get next to no text from centroids alone; they are moved nearer until they do (routing.least_share)"
        );
        router = with(&least_biases(&router, points, &sizes)?)?;
        let paths_of = |point: &[f32]| Ok(router.route(point)?.path.0);
        let assignments: Result<Vec<u32>, RoutingError> =
            points.par_chunks_exact(dimension).map(paths_of).collect();
        sizes = histogram(assignments?.into_iter(), paths);
    }
    warn_of_dominance(&sizes);
    Ok(Fit { router, sizes, iterations })
}

/// Biases (P), the largest 0, with which no path of a router that has none yet gets less than `least_share` of an equal
/// share of `points` (N, D), and the others lose as little as possible. `sizes` (P) are what each path gets without.
fn least_biases(router: &Router, points: &[f32], sizes: &[u64]) -> Result<Vec<f32>, RoutingError> {
    let (dimension, fitted) = (router.dimension(), router.fitted_on());
    let stride = calibrate::stride(points.len() / dimension, sizes.len());
    // Relative to the mean squared distance, so that what is soft for one seed model is soft for another.
    let unit = if fitted.loss > 0.0 { fitted.loss } else { 1.0 };
    let rows: Result<Vec<Vec<f64>>, RoutingError> =
        points.par_chunks_exact(dimension).step_by(stride).map(|point| router.distances(point)).collect();
    let logits: Vec<f32> = rows?.into_iter().flatten().map(|distance| (-distance / unit) as f32).collect();
    let biases = calibrate::calibrate(&logits, &calibrate::wanted_shares(sizes, fitted.config.least_share));
    let largest = biases.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Ok(biases.into_iter().map(|bias| ((bias - largest) * unit) as f32).collect())
}

/// Documents of each path (P).
fn histogram(assignments: impl Iterator<Item = u32>, paths: u32) -> Vec<u64> {
    let mut sizes = vec![0u64; paths as usize];
    assignments.for_each(|path| sizes[path as usize] += 1);
    sizes
}

/// P, when there are at least as many documents.
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
fn columns(points: &[f32], dimension: usize, part: &Part) -> Vec<f32> {
    let mut own = Vec::with_capacity(points.len() / dimension * part.components.len());
    points.chunks_exact(dimension).for_each(|point| own.extend_from_slice(&point[part.components.clone()]));
    own
}

/// Warns of a path that gets most of the text: the others would have little to learn from.
pub(crate) fn warn_of_dominance(sizes: &[u64]) {
    let total: u64 = sizes.iter().sum();
    let Some((path, &largest)) =
        sizes.iter().enumerate().max_by_key(|&(path, &size)| (size, usize::MAX - path))
    else {
        return;
    };
    let share = largest as f64 / total.max(1) as f64;
    if share > DOMINANT_SHARE && share * sizes.len() as f64 > DOMINANT_TIMES {
        tracing::warn!(
            path,
            share = format!("{:.1} %", share * 100.0),
            "one path gets most of the text: its domain dominates the sample, or features barely differ; use fewer paths, \
             routing.kind = \"product-kmeans\", a longer routing.prefix_tokens, or a better seed model"
        );
    }
}

/// `wanted` of the numbers below `total`, ascending, each set of them equally likely (Knuth's algorithm S); all of them
/// when there are no more.
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
mod tests {
    use super::*;
    use crate::testing::{Histogram, corpus};
    use crate::{features::silent, testing::TOPICS};

    #[test]
    fn a_sample_is_ascending_and_even() {
        assert_eq!(sample(5, 9, 0), [0, 1, 2, 3, 4]);
        assert_eq!(sample(0, 9, 0), [0u64; 0]);
        let mut counts = [0u32; 10];
        for seed in 0..1000 {
            let chosen = sample(10, 4, seed);
            assert_eq!(chosen.len(), 4);
            assert!(chosen.is_sorted_by(|a, b| a < b));
            chosen.iter().for_each(|&number| counts[number as usize] += 1);
        }
        // Each number is expected 400 times, with a standard deviation of 15.5.
        assert!(counts.iter().all(|count| (340..460).contains(count)), "{counts:?}");
    }

    #[test]
    fn topics_become_paths() {
        let folder = tempfile::tempdir().unwrap();
        let file = corpus(folder.path(), 400);
        let fit = fit(&Histogram, "seed", &file, &[TOPICS], &RouterConfig::default(), &mut silent).unwrap();
        assert_eq!(fit.sizes, [100; TOPICS as usize]);
        let fitted = fit.router.fitted_on();
        assert_eq!((fitted.documents, fitted.seed_hash.as_str()), (400, "seed"));
        assert_eq!(fitted.tokens_hash, file.content_hash());
    }

    #[test]
    fn the_same_inputs_give_the_same_router() {
        let folder = tempfile::tempdir().unwrap();
        let file = corpus(folder.path(), 300);
        let run = |sample_documents, batch_documents, seed| {
            let config = RouterConfig { sample_documents, batch_documents, seed, ..RouterConfig::default() };
            fit(&Histogram, "seed", &file, &[4], &config, &mut silent).unwrap().router
        };
        assert_eq!(run(100, 64, 0), run(100, 64, 0));
        assert_eq!(run(100, 64, 0).fitted_on().documents, 100);
        assert_ne!(run(100, 64, 0).hash(), run(100, 64, 1).hash());
    }

    #[test]
    fn too_many_paths_and_too_long_prefixes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = corpus(folder.path(), 3);
        let error = fit(&Histogram, "", &file, &[4], &RouterConfig::default(), &mut silent).unwrap_err();
        assert!(matches!(error, RoutingError::TooFewPoints { clusters: 4, points: 3, .. }), "{error}");
        let config = RouterConfig { prefix_tokens: 65, ..RouterConfig::default() };
        let message = fit(&Histogram, "", &file, &[2], &config, &mut silent).unwrap_err().to_string();
        assert!(message.contains("routing.prefix_tokens = 65"), "{message}");
    }

    fn origin() -> Origin {
        Origin { tokens_hash: "t".into(), tokenizer_hash: "k".into(), seed_hash: "s".into() }
    }

    /// Points whose first two components are near one of 3 places and whose last two are near one of 2, independently:
    /// point i is at places i % 3 and i / 3 % 2.
    fn grid(count: usize) -> Vec<f32> {
        (0..count)
            .flat_map(|i| {
                let noise = |d: usize| ((i * 31 + d * 17) % 97) as f32 / 97.0;
                let (a, b) = ((i % 3) as f32 * 20.0, (i / 3 % 2) as f32 * 20.0);
                [a + noise(0), noise(1) - a, b + noise(2), noise(3) - b]
            })
            .collect()
    }

    #[test]
    fn product_kmeans_finds_the_product_of_what_its_parts_find() {
        let points = grid(600);
        let config = RouterConfig { kind: RouterKind::ProductKMeans, ..RouterConfig::default() };
        let fit = fit_points(&points, 4, &[3, 2], origin(), &config, &mut silent).unwrap();
        assert_eq!(fit.sizes, [100; 6]);
        let router = fit.router;
        assert_eq!((router.paths(), router.clusters(), router.kind()), (6, [3, 2].as_slice(), config.kind));
        // Paths with equal first digits have equal first places, and so for the second digit.
        let path = |i: usize| router.route(&points[i * 4..][..4]).unwrap().path.0;
        for i in 0..6 {
            for j in 0..6 {
                assert_eq!(path(i) / 2 == path(j) / 2, i % 3 == j % 3);
                assert_eq!(path(i) % 2 == path(j) % 2, i / 3 == j / 3);
            }
        }
        let mean: f64 = points
            .chunks_exact(4)
            .map(|point| f64::from(router.ranked(point, 1).unwrap()[0].1).powi(2))
            .sum::<f64>()
            / 600.0;
        assert!((mean / router.fitted_on().loss - 1.0).abs() < 1e-5);
    }

    #[test]
    fn a_path_between_which_no_document_lies_gets_the_least_share() {
        // Both halves say the same place, so that halves of different places never come together.
        let points: Vec<f32> = (0..600)
            .flat_map(|i| {
                let noise = |d: usize| (i * (7919 + 1009 * d) % 9973) as f32 / 9973.0;
                let place = (i % 3) as f32 * 20.0;
                [place + noise(0), noise(1), place + noise(2), noise(3)]
            })
            .collect();
        let sizes = |least_share| {
            let kind = RouterKind::ProductKMeans;
            let config = RouterConfig { kind, least_share, ..RouterConfig::default() };
            fit_points(&points, 4, &[3, 3], origin(), &config, &mut silent).unwrap().sizes
        };
        assert_eq!(sizes(0.0).iter().filter(|&&size| size == 0).count(), 6);
        // A tenth of a ninth of 600 is 6.7; shares are scaled back to sum to 1.
        let sizes = sizes(0.1);
        assert!(sizes.iter().all(|&size| size >= 5), "{sizes:?}");
        assert_eq!(sizes.iter().filter(|&&size| size > 150).count(), 3, "{sizes:?}");
    }

    #[test]
    fn one_level_of_product_kmeans_is_kmeans() {
        let points = grid(90);
        let fit = |kind, clusters: &[u32]| {
            let config = RouterConfig { kind, ..RouterConfig::default() };
            fit_points(&points, 4, clusters, origin(), &config, &mut silent).unwrap().router
        };
        let (one, other) = (fit(RouterKind::ProductKMeans, &[6]), fit(RouterKind::KMeans, &[3, 2]));
        for point in points.chunks_exact(4) {
            assert_eq!(one.route(point).unwrap(), other.route(point).unwrap());
        }
        // A dense model has one path, whatever the rule.
        assert_eq!(fit(RouterKind::ProductKMeans, &[]).paths(), 1);
    }

    #[test]
    fn what_can_not_be_fitted_is_refused() {
        let fit = |points: &[f32], clusters: &[u32], kind| {
            let config = RouterConfig { kind, ..RouterConfig::default() };
            fit_points(points, 4, clusters, origin(), &config, &mut silent).unwrap_err()
        };
        let product = RouterKind::ProductKMeans;
        let error = fit(&grid(5), &[3, 2], product);
        assert!(matches!(error, RoutingError::TooFewPoints { clusters: 6, points: 5, .. }), "{error}");
        let error = fit(&grid(50), &[2, 2, 1, 1, 1], product);
        assert!(matches!(error, RoutingError::Shape { expected: 5, actual: 4, .. }), "{error}");
        assert!(matches!(fit(&grid(50), &[u32::MAX, 2], product), RoutingError::TooFewPoints { .. }));
        let message = fit(&vec![1.5; 400], &[2], RouterKind::KMeans).to_string();
        assert!(
            message.contains("all 100 points are the same") && message.contains("seed model"),
            "{message}"
        );
        assert!(matches!(fit(&grid(50), &[2], RouterKind::Discriminative), RoutingError::Config { .. }));
    }
}
