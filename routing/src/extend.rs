//! Fitting the new paths of a router that keeps its old ones.

use crate::progress::ProgressFn;
use crate::{FitOrigin, FittedOn, Router, RouterConfig, RoutingError, kmeans};

/// Adds `paths` paths to a router. Their centroids are those of k-means on features (N, D), row-major, of documents for the
/// new paths. `origin` describes these documents.
///
/// # Errors
///
/// [`RoutingError::NoCentroids`] for a router without a centroid per path, [`RoutingError::Config`] if `config` asks for
/// other features than the router reads, and as [`kmeans()`].
pub fn fit_added(
    router: &Router,
    points: &[f32],
    paths: u32,
    origin: FitOrigin,
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Router, RoutingError> {
    router.check_extendable()?;
    check_features(&router.fitted_on().config, config)?;
    let dimension = router.dimension();
    let points = &*router.mapped(points);
    let found = kmeans(points, dimension, paths as usize, config, progress)?;
    let documents = points.len() / dimension;
    let fitted_on = FittedOn {
        tokens_hash: origin.tokens_hash,
        tokenizer_hash: origin.tokenizer_hash,
        seed_hash: origin.seed_hash,
        labels_hash: None,
        devices: origin.devices,
        documents: documents as u64,
        loss: found.inertia / documents as f64,
        targets: None,
        config: config.clone(),
    };
    router.with_centroids(&found.centroids, fitted_on)
}

/// Checks that settings describe the features that a router reads.
fn check_features(kept: &RouterConfig, config: &RouterConfig) -> Result<(), RoutingError> {
    let problem = "differs from the router whose paths this run keeps: set it back";
    let same = [
        ("kind", kept.kind == config.kind, format!("{:?}", config.kind)),
        ("prefix_tokens", kept.prefix_tokens == config.prefix_tokens, config.prefix_tokens.to_string()),
        ("features", kept.features == config.features, format!("{:?}", config.features)),
        ("lsa_components", kept.lsa_components == config.lsa_components, config.lsa_components.to_string()),
        (
            "feature_blocks",
            kept.feature_blocks == config.feature_blocks,
            format!("{:?}", config.feature_blocks),
        ),
        ("standardise", kept.standardise == config.standardise, config.standardise.to_string()),
        ("whiten", kept.whiten == config.whiten, config.whiten.to_string()),
    ];
    match same.into_iter().find(|(_, same, _)| !same) {
        Some((key, _, value)) => Err(RoutingError::Config { key, value, problem }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::silent;
    use crate::fit_points;

    fn origin(tokens: &str) -> FitOrigin {
        FitOrigin {
            tokens_hash: tokens.into(),
            tokenizer_hash: "tokenizer".into(),
            seed_hash: "seed".into(),
            labels_hash: None,
            devices: Vec::new(),
        }
    }

    /// Features (N, 2) around some places. The second component has a much larger scale.
    fn around(places: &[[f32; 2]]) -> Vec<f32> {
        let near = |place: &[f32; 2]| {
            let [x, y] = *place;
            [[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [0.1, 0.1]].map(|[dx, dy]| [x + dx, 100.0 * (y + dy)])
        };
        places.iter().flat_map(near).flatten().collect()
    }

    #[test]
    fn new_text_gets_the_new_paths_and_old_text_keeps_its_own() {
        let (old_text, new_text) = (around(&[[0.0, 0.0], [5.0, 5.0]]), around(&[[0.0, 9.0], [9.0, 0.0]]));
        for (standardise, whiten) in [(true, false), (false, true)] {
            let config = RouterConfig { standardise, whiten, least_share: 0.0, ..RouterConfig::default() };
            let old = fit_points(&old_text, 2, &[2], 1, origin("old"), &config, &mut silent).unwrap().router;
            let new = fit_added(&old, &new_text, 2, origin("new"), &config, &mut silent).unwrap();
            assert_eq!((new.paths(), new.fitted_on().tokens_hash.as_str()), (4, "new"));
            let paths = |router: &Router, text: &[f32]| -> Vec<u32> {
                text.chunks_exact(2).map(|point| router.route(point).unwrap().path.0).collect()
            };
            assert_eq!(paths(&new, &old_text), paths(&old, &old_text));
            let found = paths(&new, &new_text);
            assert!(found.iter().all(|&path| path >= 2), "{found:?}");
            assert!(found[..4].iter().all(|&path| path == found[0]) && found[0] != found[4], "{found:?}");
        }
    }

    #[test]
    fn other_features_are_refused_by_name() {
        let config = RouterConfig::default();
        let text = around(&[[0.0, 0.0], [5.0, 0.0]]);
        let old = fit_points(&text, 2, &[2], 1, origin("old"), &config, &mut silent).unwrap().router;
        let other = RouterConfig { prefix_tokens: 16, ..config };
        let error = fit_added(&old, &text, 1, origin("new"), &other, &mut silent).unwrap_err().to_string();
        assert!(error.contains("routing.prefix_tokens = 16: differs from the router"), "{error}");
    }
}
