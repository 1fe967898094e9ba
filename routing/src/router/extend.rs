//! Routers with the centroids of another one, and more or fewer of them.

use std::borrow::Cow;

use dipaco_topology::PathId;

use super::header::RouterHeader;
use super::{FittedOn, Router};
use crate::{RouterKind, RoutingError};

impl Router {
    /// Checks that the router has a centroid of its own for each path.
    ///
    /// # Errors
    ///
    /// [`RoutingError::NoCentroids`] for another kind than k-means.
    pub fn check_extendable(&self) -> Result<(), RoutingError> {
        if self.kind() == RouterKind::KMeans { Ok(()) } else { Err(RoutingError::NoCentroids) }
    }

    /// The same router with further paths. Their `centroids` (N, D), row-major, are of features after the router's map, as its
    /// own are. The new paths have no bias. A document keeps its path unless a new centroid is nearer than all others.
    ///
    /// # Errors
    ///
    /// [`RoutingError::NoCentroids`], and as [`Self::kmeans`].
    pub fn with_centroids(&self, centroids: &[f32], fitted_on: FittedOn) -> Result<Self, RoutingError> {
        self.check_extendable()?;
        let (own, biases, rest) = self.rule();
        let new = centroids.len() / self.dimension();
        let biases = [biases, &vec![0.0; new]].concat();
        self.of_rule(&[own, centroids].concat(), &biases, rest, fitted_on)
    }

    /// The same router without some paths. The others are numbered anew in the same order. A document of a path that stays
    /// keeps it.
    ///
    /// # Errors
    ///
    /// [`RoutingError::NoCentroids`], and [`RoutingError::Shape`] if no path is left.
    pub fn without_paths(&self, removed: &[PathId]) -> Result<Self, RoutingError> {
        self.check_extendable()?;
        let (centroids, biases, rest) = self.rule();
        let (mut kept_centroids, mut kept_biases) = (Vec::new(), Vec::new());
        for ((path, centroid), &bias) in (0u32..).zip(centroids.chunks_exact(self.dimension())).zip(biases) {
            if !removed.contains(&PathId(path)) {
                kept_centroids.extend_from_slice(centroid);
                kept_biases.push(bias);
            }
        }
        self.of_rule(&kept_centroids, &kept_biases, rest, self.fitted_on().clone())
    }

    /// Features (N, D) as the rule sees them: after the router's map.
    pub(crate) fn mapped<'a>(&self, points: &'a [f32]) -> Cow<'a, [f32]> {
        let (map, numbers) = self.map();
        map.apply_all(numbers, points, self.dimension())
    }

    /// The centroids (P, D) and biases (P) of a k-means router, and the values after them.
    fn rule(&self) -> (&[f32], &[f32], &[f32]) {
        let paths = self.paths() as usize;
        let (centroids, after) = self.values.split_at((paths * self.dimension()).min(self.values.len()));
        let (biases, rest) = after.split_at(paths.min(after.len()));
        (centroids, biases, rest)
    }

    fn of_rule(
        &self,
        centroids: &[f32],
        biases: &[f32],
        rest: &[f32],
        fitted_on: FittedOn,
    ) -> Result<Self, RoutingError> {
        let paths = u32::try_from(biases.len()).unwrap_or(u32::MAX);
        let header = RouterHeader { paths, clusters: vec![paths], fitted_on, ..self.header.clone() };
        let values = [centroids, biases, rest].concat();
        match header.values() {
            Some(expected) if expected == values.len() => Self::of(header, values),
            expected => {
                let (what, expected) = ("the numbers of a router", expected.unwrap_or(0));
                Err(RoutingError::Shape { what, expected, actual: values.len() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenVectors;
    use crate::feature_map::FeatureMap;
    use crate::testing::fitted_on;

    /// Three centroids in the plane, the second with a bias, features doubled, and two token vectors.
    fn router() -> Router {
        let router =
            Router::kmeans(2, vec![0.0, 0.0, 4.0, 0.0, 0.0, 3.0], &[0.0, -0.5, 0.0], fitted_on()).unwrap();
        let vectors = TokenVectors::new(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        router.with_map(FeatureMap::Factors, &[2.0, 2.0]).unwrap().with_token_vectors(&vectors).unwrap()
    }

    /// Features all over the plane.
    fn features() -> impl Iterator<Item = [f32; 2]> {
        (-8i16..16).flat_map(|x| (-8i16..16).map(move |y| [f32::from(x) / 4.0, f32::from(y) / 4.0]))
    }

    #[test]
    fn a_document_changes_to_a_new_path_or_keeps_its_own() {
        let (old, new) = (router(), router().with_centroids(&[4.0, 4.0], fitted_on()).unwrap());
        assert_eq!(new.paths(), 4);
        let mut changed = 0;
        for point in features() {
            let (before, after) = (old.route(&point).unwrap(), new.route(&point).unwrap());
            assert_eq!(after.distances[..3], before.distances, "the distances to old paths keep their bits");
            if after.path == PathId(3) {
                changed += 1;
                assert!(after.distances[3] < before.distances[before.path.index()]);
            } else {
                assert_eq!(after.path, before.path);
            }
        }
        assert!(changed > 10, "{changed}");
        assert_eq!(new.token_vectors().unwrap().values(), old.token_vectors().unwrap().values());
        assert_eq!(new.route(&[2.0, 2.0]).unwrap().distances[3], 0.0, "the centroid has the router's scale");
        assert_eq!(Router::from_bytes(new.to_bytes()).unwrap(), new);
    }

    #[test]
    fn without_a_path_the_others_keep_their_documents() {
        let (all, fewer) = (router(), router().without_paths(&[PathId(0)]).unwrap());
        assert_eq!(fewer.paths(), 2);
        for point in features() {
            let (before, after) = (all.route(&point).unwrap(), fewer.route(&point).unwrap());
            assert_eq!(after.distances, before.distances[1..]);
            if before.path != PathId(0) {
                assert_eq!(after.path.0, before.path.0 - 1);
            }
        }
        let added = router().with_centroids(&[4.0, 4.0], fitted_on()).unwrap();
        assert_eq!(added.without_paths(&[PathId(3)]).unwrap().to_bytes(), router().to_bytes());
        let all: Vec<_> = (0..3).map(PathId).collect();
        assert!(matches!(router().without_paths(&all), Err(RoutingError::Shape { .. })));
    }

    #[test]
    fn only_a_router_with_a_centroid_per_path_is_extended() {
        let product = Router::product_kmeans(vec![2, 2], 2, vec![0.0; 4], &[0.0; 4], fitted_on()).unwrap();
        assert!(matches!(product.with_centroids(&[0.0; 2], fitted_on()), Err(RoutingError::NoCentroids)));
        assert!(matches!(product.without_paths(&[]), Err(RoutingError::NoCentroids)));
        assert!(matches!(router().with_centroids(&[0.0; 3], fitted_on()), Err(RoutingError::Shape { .. })));
    }
}
