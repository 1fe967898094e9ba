//! The router: chooses the path of a document from the document's beginning.

mod checks;
mod encoding;
mod extend;
mod fitted_on;
mod header;
mod posterior;
mod rule;

use dipaco_topology::PathId;

pub use self::encoding::ROUTER_FORMAT_VERSION;
pub use self::fitted_on::{FittedOn, TargetsFrom};
use self::header::RouterHeader;
pub(crate) use self::rule::{FeaturePart, feature_parts};
use self::rule::{Shape, check_finite, nearest};
use crate::feature_map::FeatureMap;
use crate::{RouterKind, RoutingError, TokenVectors};

/// The path of a document.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentRoute {
    /// The path.
    pub path: PathId,
    /// Distance of the document to each path (P): the root of the squared Euclidean distance to its centroids less its
    /// bias, or for a discriminative router -ln of the path's probability. `path` has the smallest distance and, of equal
    /// distances, the lowest id.
    pub distances: Vec<f32>,
    /// Euclidean distance of each part of the features to the centroid that the path has there, for product k-means. Their
    /// squares sum to the squared distance to the path's centroids, before its bias. Empty for the other kinds.
    pub parts: Vec<f32>,
}

/// A fitted router. It never changes; its hash names it.
#[derive(Clone, PartialEq)]
pub struct Router {
    header: RouterHeader,
    /// The numbers of the rule, then those of the map of features and the token vectors (V, D) if there are any.
    values: Vec<f32>,
    /// The encoding; `hash` is its hash.
    bytes: Vec<u8>,
    hash: String,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router")
            .field("hash", &self.hash)
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

impl Router {
    /// A router that sends a document to the path with the least squared distance to its centroid less its bias, for
    /// `centroids` (P, D), row-major, and `biases` (P). Biases are 0 or less, so the difference is still a squared
    /// distance. Different biases make the cells a power diagram.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Shape`] unless `centroids` is P × D with P biases and P and D at least 1,
    /// [`RoutingError::NotFinite`] for a NaN or an infinity, [`RoutingError::Config`] for unusable settings.
    pub fn kmeans(
        dimension: usize,
        centroids: Vec<f32>,
        biases: &[f32],
        fitted_on: FittedOn,
    ) -> Result<Self, RoutingError> {
        let paths = u32::try_from(biases.len()).unwrap_or(u32::MAX);
        Self::new(RouterKind::KMeans, vec![paths], dimension, centroids, biases, fitted_on)
    }

    /// A router that cuts a feature (D) into contiguous parts, one for each number in `clusters`, with lengths that differ
    /// by at most one. The numbers of the nearest centroids, first part to last, are the digits of the path's number;
    /// `biases` (P) enter as in [`Self::kmeans`]. `centroids` has the centroids (K, width) of the first part, row-major,
    /// then of the next.
    ///
    /// # Errors
    ///
    /// As [`Self::kmeans`]; also if there are more parts than components.
    pub fn product_kmeans(
        clusters: Vec<u32>,
        dimension: usize,
        centroids: Vec<f32>,
        biases: &[f32],
        fitted_on: FittedOn,
    ) -> Result<Self, RoutingError> {
        Self::new(RouterKind::ProductKMeans, clusters, dimension, centroids, biases, fitted_on)
    }

    /// A router that cuts the numbers from 0 to 1 into P equal parts, one for each path. The feature (1) of a document is a
    /// hash of its first tokens, or follows from its label ([`crate::RouterFeatures`]); `fitted_on.config.kind` says which.
    ///
    /// # Errors
    ///
    /// As [`Self::kmeans`].
    pub fn equal_parts(paths: u32, fitted_on: FittedOn) -> Result<Self, RoutingError> {
        let kind = fitted_on.config.kind;
        let centre = |path: u32| ((f64::from(path) + 0.5) / f64::from(paths)) as f32;
        let centres = (0..paths).map(centre).collect();
        Self::new(kind, vec![paths], 1, centres, &vec![0.0; paths as usize], fitted_on)
    }

    /// The same router for features that go through a map first, whose numbers these are.
    ///
    /// # Errors
    ///
    /// As [`Self::kmeans`].
    pub(crate) fn with_map(self, map: FeatureMap, numbers: &[f32]) -> Result<Self, RoutingError> {
        let expected = map.numbers(self.dimension()).unwrap_or(0);
        if map == FeatureMap::None {
            return Ok(self);
        }
        if numbers.len() != expected
            || self.header.map() != Some(FeatureMap::None)
            || self.header.token_vectors > 0
        {
            let what = "the numbers of the map of a router's features";
            return Err(RoutingError::Shape { what, expected, actual: numbers.len() });
        }
        let mut values = self.values;
        values.extend_from_slice(numbers);
        Self::of(self.header.with_map(map), values)
    }

    /// The same router with the token vectors that give its features.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Shape`] if the vectors don't have D components, or the router has vectors already.
    pub fn with_token_vectors(self, vectors: &TokenVectors) -> Result<Self, RoutingError> {
        let dimension = self.dimension();
        let count = u32::try_from(vectors.vocabulary()).unwrap_or(0);
        if vectors.components() != dimension || count == 0 || self.header.token_vectors > 0 {
            let what = "components of the router's token vectors";
            return Err(RoutingError::Shape { what, expected: dimension, actual: vectors.components() });
        }
        let mut values = self.values;
        values.extend_from_slice(vectors.values());
        Self::of(RouterHeader { token_vectors: count, ..self.header }, values)
    }

    /// The token vectors that give the features; `None` if features come from elsewhere.
    #[must_use]
    pub fn token_vectors(&self) -> Option<TokenVectors> {
        let values = self.values.get(self.header.rule_and_map()?..)?;
        TokenVectors::new(self.dimension(), values.to_vec()).ok()
    }

    /// A router that sends a document with features x (D) to the path with the largest component of W x + b, for `weights`
    /// W (P, D), row-major, and `biases` b (P).
    ///
    /// # Errors
    ///
    /// As [`Self::kmeans`].
    pub fn discriminative(
        dimension: usize,
        weights: Vec<f32>,
        biases: &[f32],
        fitted_on: FittedOn,
    ) -> Result<Self, RoutingError> {
        let paths = u32::try_from(biases.len()).unwrap_or(u32::MAX);
        Self::new(RouterKind::Discriminative, vec![paths], dimension, weights, biases, fitted_on)
    }

    fn new(
        kind: RouterKind,
        clusters: Vec<u32>,
        dimension: usize,
        mut values: Vec<f32>,
        biases: &[f32],
        fitted_on: FittedOn,
    ) -> Result<Self, RoutingError> {
        fitted_on.config.check()?;
        values.extend_from_slice(biases);
        let shape = Shape { kind, clusters: &clusters, dimension };
        let expected = shape.values().unwrap_or(0);
        let limited = u32::try_from(dimension).ok().zip(u32::try_from(fitted_on.config.prefix_tokens).ok());
        let Some(((dimension, prefix_tokens), paths)) =
            limited.zip(shape.paths()).filter(|_| values.len() == expected && expected > 0)
        else {
            let what = "the numbers of a router";
            return Err(RoutingError::Shape { what, expected, actual: values.len() });
        };
        Self::of(
            RouterHeader {
                kind,
                paths,
                clusters,
                dimension,
                scaled: false,
                whitened: false,
                token_vectors: 0,
                prefix_tokens,
                fitted_on,
            },
            values,
        )
    }

    /// Encodes a router.
    fn of(header: RouterHeader, values: Vec<f32>) -> Result<Self, RoutingError> {
        check_finite(&values, header.dimension as usize)?;
        let bytes = encoding::encode(&header, &values)?;
        let hash = dipaco_files::content_hash(&bytes);
        Ok(Self { header, values, bytes, hash })
    }

    /// Reads the encoding of [`Self::to_bytes`]. Any bytes are safe: lengths are checked before their use, and a checksum
    /// finds damage.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Artefact`] if the bytes are damaged, cut, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RoutingError> {
        let (header, values) = encoding::decode(bytes)?;
        let hash = dipaco_files::content_hash(bytes);
        Ok(Self { header, values, bytes: bytes.to_vec(), hash })
    }

    /// The encoding: a magic number, the format version, a JSON header, the numbers of the rule as little-endian f32, and
    /// a BLAKE3 checksum of everything before.
    #[must_use]
    pub fn to_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// BLAKE3 hash of the encoding, in hexadecimal.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The rule.
    #[must_use]
    pub fn kind(&self) -> RouterKind {
        self.header.kind
    }

    /// True if the distances of [`Self::route`] are -ln of probabilities, false if they are Euclidean.
    #[must_use]
    pub fn gives_probabilities(&self) -> bool {
        self.kind() == RouterKind::Discriminative
    }

    /// Number of choices for each part of the feature, the most significant digit of the path's number first. Only product
    /// k-means has several parts; the others have one number, P.
    #[must_use]
    pub fn clusters(&self) -> &[u32] {
        &self.header.clusters
    }

    /// P, the number of paths.
    #[must_use]
    pub fn paths(&self) -> u32 {
        self.header.paths
    }

    /// D, the number of components of a feature.
    #[must_use]
    pub fn dimension(&self) -> usize {
        self.header.dimension as usize
    }

    /// Number of tokens at the start of a document for its features.
    #[must_use]
    pub fn prefix_tokens(&self) -> usize {
        self.header.prefix_tokens as usize
    }

    /// Data and settings of the fit.
    #[must_use]
    pub fn fitted_on(&self) -> &FittedOn {
        &self.header.fitted_on
    }

    /// The path for a document's `features` (D), and the distance to every path.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Shape`] without D features, [`RoutingError::NotFinite`] for a NaN or an infinity.
    pub fn route(&self, features: &[f32]) -> Result<DocumentRoute, RoutingError> {
        let distances = self.distances(features)?;
        let ((path, _), shape) = (nearest(&distances), self.header.shape());
        let parts = match self.kind() {
            RouterKind::ProductKMeans => {
                let (map, numbers) = self.map();
                shape.part_distances(self.rule_numbers(), &map.apply(numbers, features), path)
            }
            RouterKind::KMeans | RouterKind::Discriminative | RouterKind::Random | RouterKind::Labels => {
                Vec::new()
            }
        };
        Ok(DocumentRoute {
            path,
            distances: distances.into_iter().map(|distance| shape.shown(distance)).collect(),
            parts: parts.into_iter().map(|distance| shape.shown(distance)).collect(),
        })
    }

    /// The numbers of the rule.
    fn rule_numbers(&self) -> &[f32] {
        let values = self.header.shape().values().unwrap_or(0).min(self.values.len());
        &self.values[..values]
    }

    /// The map of the features, and its numbers.
    fn map(&self) -> (FeatureMap, &[f32]) {
        let map = self.header.map().unwrap_or(FeatureMap::None);
        let numbers = map.numbers(self.dimension()).unwrap_or(0);
        (
            map,
            self.values
                .get(self.rule_numbers().len()..)
                .and_then(|rest| rest.get(..numbers))
                .unwrap_or_default(),
        )
    }

    /// The `n` best paths for a document's `features` (D), best first, equal paths by their id; all paths if there are no
    /// more than `n`. The first is the path of [`Self::route`]. A score is the negative of the distance there: a higher
    /// score is a better fit, and scores of one document are comparable between paths.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Shape`] without D features, [`RoutingError::NotFinite`] for a NaN or an infinity.
    pub fn ranked(&self, features: &[f32], n: usize) -> Result<Vec<(PathId, f32)>, RoutingError> {
        let distances = self.distances(features)?;
        let mut paths: Vec<(PathId, f64)> = (0u32..).map(PathId).zip(distances).collect();
        let order = |a: &(PathId, f64), b: &(PathId, f64)| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0));
        if n < paths.len() {
            paths.select_nth_unstable_by(n, order);
            paths.truncate(n);
        }
        paths.sort_unstable_by(order);
        let shape = self.header.shape();
        Ok(paths.into_iter().map(|(path, distance)| (path, -shape.shown(distance))).collect())
    }

    /// Squared distances, or -ln of probabilities (P): the values that the choice compares.
    pub(crate) fn distances(&self, features: &[f32]) -> Result<Vec<f64>, RoutingError> {
        let dimension = self.dimension();
        if features.len() != dimension {
            let actual = features.len();
            return Err(RoutingError::Shape { what: "features of a document", expected: dimension, actual });
        }
        if let Some(component) = features.iter().position(|value| !value.is_finite()) {
            return Err(RoutingError::NotFinite { what: "feature", index: 0, component });
        }
        let (map, numbers) = self.map();
        Ok(self.header.shape().distances(self.rule_numbers(), &map.apply(numbers, features)))
    }
}

#[cfg(test)]
mod tests;
