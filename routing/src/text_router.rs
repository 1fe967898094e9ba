//! A router together with the model that gives its features.

use dipaco_model::ModelConfig;
use dipaco_shards::TokenRows;
use dipaco_topology::PathId;

use crate::{BoxError, DocumentRoute, FeatureExtractor, Router, RouterFeatures, RoutingError, SeedFeatures};

/// Chooses paths by the first tokens of texts.
#[derive(Debug)]
pub struct TextRouter {
    router: Router,
    features: RouterFeatures,
}

impl TextRouter {
    /// A router for a path with the dimensions `model`, and a seed whose weights have the hash `seed_hash`. `seed` is called
    /// if the router reads features of the seed.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Mismatch`] if the router was made for another seed, and the errors of `seed`.
    pub fn new<E: From<RoutingError>, S: SeedFeatures + 'static>(
        router: Router,
        model: &ModelConfig,
        seed_hash: &str,
        seed: impl FnOnce() -> Result<S, E>,
    ) -> Result<Self, E> {
        let features = RouterFeatures::of_router(&router, model, seed)?;
        router.check_seed(features.dimension(), seed_hash)?;
        Ok(Self { router, features })
    }

    /// Checks what [`Self::new`] checks of a router, without a seed.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn check(router: &Router, model: &ModelConfig, seed_hash: &str) -> Result<(), RoutingError> {
        let unread = || Ok::<_, RoutingError>(UnreadSeed(model.hidden_size));
        let features = RouterFeatures::of_router(router, model, unread)?;
        router.check_seed(features.dimension(), seed_hash)
    }

    /// The router.
    #[must_use]
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// The route of each row. `tokens` is (B, T), padded on the right; `lengths` (B) is the number of tokens of each row
    /// without padding, at most [`Router::prefix_tokens`].
    ///
    /// # Errors
    ///
    /// A shape or the vocabulary does not fit.
    pub fn route(&self, tokens: &TokenRows, lengths: &[usize]) -> Result<Vec<DocumentRoute>, BoxError> {
        let features = self.features.features(tokens, lengths)?;
        let route = |features: &[f32]| Ok(self.router.route(features)?);
        features.chunks_exact(self.router.dimension()).map(route).collect()
    }

    /// The `most` best paths of each row with `ln` of their weights ([`Router::posterior`]), for `tokens` and `lengths` as
    /// [`Self::route`] takes them.
    ///
    /// # Errors
    ///
    /// A shape or the vocabulary does not fit, or the temperature is not above 0.
    pub fn posteriors(
        &self,
        tokens: &TokenRows,
        lengths: &[usize],
        most: usize,
        temperature: f64,
    ) -> Result<Vec<Vec<(PathId, f64)>>, BoxError> {
        let features = self.features.features(tokens, lengths)?;
        let weights = |features: &[f32]| Ok(self.router.posterior(features, most, temperature)?);
        features.chunks_exact(self.router.dimension()).map(weights).collect()
    }
}

/// Has the width of a seed that nobody reads.
#[derive(Debug)]
struct UnreadSeed(usize);

impl SeedFeatures for UnreadSeed {
    fn hidden_size(&self) -> usize {
        self.0
    }

    fn early_features(&self, _: usize, _: &TokenRows, _: &[usize]) -> Result<Vec<f32>, BoxError> {
        Err("the seed was not read".into())
    }

    fn device(&self) -> String {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fitted_on;
    use crate::{FeatureKind, FittedOn, RouterConfig, RouterKind};

    /// Data and settings of a fit whose seed has the hash `cc`.
    fn fitted(kind: RouterKind, features: FeatureKind) -> FittedOn {
        let config = RouterConfig { kind, features, ..RouterConfig::default() };
        FittedOn { config, ..fitted_on() }
    }

    #[test]
    fn a_router_that_can_not_choose_is_refused_without_its_seed() {
        let model = ModelConfig { hidden_size: 6, ..ModelConfig::default() };
        let centroids = (0..24u8).map(f32::from).collect();
        let router = Router::kmeans(6, centroids, &[0.0; 4], fitted(RouterKind::KMeans, FeatureKind::Seed));
        let router = router.unwrap();
        TextRouter::check(&router, &model, "cc").unwrap();
        let refused = |router: &Router, model: &ModelConfig, seed: &str, says: &str| {
            let error = TextRouter::check(router, model, seed).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        refused(&router, &model, "dd", "the router's seed model does not match");
        refused(&router, &ModelConfig::default(), "cc", "the router's width and the model's does not match");
        let labels = Router::equal_parts(4, fitted(RouterKind::Labels, FeatureKind::Lsa)).unwrap();
        refused(&labels, &model, "cc", "routing.kind = \"labels\": routes only the run's own text");
    }
}
