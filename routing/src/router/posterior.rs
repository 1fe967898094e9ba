//! Probabilities of paths, as c-BTM weights its experts (arXiv:2303.14177 §3.3).

use dipaco_topology::PathId;

use super::Router;
use crate::{RouterKind, RoutingError};

impl Router {
    /// The `n` best paths for a document's `features` (D) with `ln` of their weights. The weights sum to 1.
    ///
    /// A discriminative router gives its own probabilities. The weight of another router's path is proportional to
    /// exp(-d² / `temperature`), where d is the distance of [`Self::route`].
    ///
    /// # Errors
    ///
    /// [`RoutingError::Shape`] without D features, [`RoutingError::NotFinite`] for a NaN or an infinity, also as the
    /// temperature, which must be above 0.
    pub fn posterior(
        &self,
        features: &[f32],
        n: usize,
        temperature: f64,
    ) -> Result<Vec<(PathId, f64)>, RoutingError> {
        if !(temperature > 0.0 && temperature.is_finite()) {
            return Err(RoutingError::NotFinite { what: "temperature", index: 0, component: 0 });
        }
        let ranked = self.ranked(features, n)?;
        let logit = |score: f32| match self.kind() {
            RouterKind::Discriminative => f64::from(score),
            RouterKind::KMeans | RouterKind::ProductKMeans | RouterKind::Random | RouterKind::Labels => {
                -f64::from(score).powi(2) / temperature
            }
        };
        // The first is the largest, so no exponential overflows and their sum is at least 1.
        let Some(&(_, best)) = ranked.first() else { return Ok(Vec::new()) };
        let largest = logit(best);
        let sum: f64 = ranked.iter().map(|&(_, score)| (logit(score) - largest).exp()).sum();
        Ok(ranked.into_iter().map(|(path, score)| (path, logit(score) - largest - sum.ln())).collect())
    }
}
