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
