//! Fitting a router on a token file.

use dipaco_shards::TokenFile;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::features::{FeatureExtractor, Featurizer};
use crate::progress::ProgressFn;
use crate::router::{FittedOn, Router};
use crate::{RouterConfig, RouterKind, RoutingError, kmeans};

/// Stream of the random generator that draws the sample; k-means uses the streams from 0 up.
const SAMPLE_STREAM: u64 = u64::MAX;

/// A fitted router and how well it fits.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The router.
    pub router: Router,
    /// Documents of the sample that go to each path (P).
    pub sizes: Vec<u64>,
    /// Iterations of the best start of k-means.
    pub iterations: usize,
}

/// Fits a router with `paths` paths on the features of `config.sample_documents` documents of `file`, drawn evenly.
///
/// `seed_hash` names the weights of `model`; whoever uses the router checks it with [`Router::check_seed`]. The same
/// inputs give the same router, bit for bit. Memory: the sample's features, f32.
///
/// # Errors
///
/// Settings that can't be used, a prefix over the model's context, an empty document, features that can't be computed
/// or are not finite, fewer different documents than paths, or [`RoutingError::Cancelled`].
pub fn fit(
    model: &dyn FeatureExtractor,
    seed_hash: &str,
    file: &TokenFile,
    paths: u32,
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Fit, RoutingError> {
    config.check()?;
    let dimension = model.dimension();
    let documents = sample(file.documents(), config.sample_documents as u64, config.seed);
    if (documents.len() as u64) < u64::from(paths) {
        let (clusters, points) = (paths as usize, documents.len());
        return Err(RoutingError::TooFewPoints { clusters, points, distinct: points });
    }
    let mut points = Vec::with_capacity(documents.len().saturating_mul(dimension));
    let featurizer =
        Featurizer { model, prefix_tokens: config.prefix_tokens, batch_documents: config.batch_documents };
    let total = documents.len() as u64;
    featurizer.for_each(file, documents.into_iter(), total, progress, |_, features| {
        points.extend_from_slice(features);
        Ok(())
    })?;
    let RouterKind::KMeans = config.kind;
    let clustering = kmeans(&points, dimension, paths as usize, config, progress)?;
    let fitted_on = FittedOn {
        tokens_hash: file.content_hash().to_owned(),
        tokenizer_hash: file.tokenizer_hash().to_owned(),
        seed_hash: seed_hash.to_owned(),
        documents: total,
        mean_squared_distance: clustering.inertia / total as f64,
        config: config.clone(),
    };
    let router = Router::kmeans(paths, dimension, clustering.centroids, fitted_on)?;
    Ok(Fit { router, sizes: clustering.sizes, iterations: clustering.iterations })
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
        let fit = fit(&Histogram, "seed", &file, TOPICS, &RouterConfig::default(), &mut silent).unwrap();
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
            fit(&Histogram, "seed", &file, 4, &config, &mut silent).unwrap().router
        };
        assert_eq!(run(100, 64, 0), run(100, 64, 0));
        assert_eq!(run(100, 64, 0).fitted_on().documents, 100);
        assert_ne!(run(100, 64, 0).hash(), run(100, 64, 1).hash());
    }

    #[test]
    fn too_many_paths_and_too_long_prefixes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = corpus(folder.path(), 3);
        let error = fit(&Histogram, "", &file, 4, &RouterConfig::default(), &mut silent).unwrap_err();
        assert!(matches!(error, RoutingError::TooFewPoints { clusters: 4, points: 3, .. }), "{error}");
        let config = RouterConfig { prefix_tokens: 65, ..RouterConfig::default() };
        let message = fit(&Histogram, "", &file, 2, &config, &mut silent).unwrap_err().to_string();
        assert!(message.contains("routing.prefix_tokens = 65"), "{message}");
    }
}
