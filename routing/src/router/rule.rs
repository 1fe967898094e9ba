//! The rules of routers: distances of a feature to every path.

use dipaco_topology::PathId;

use crate::kmeans::squared_distance;
use crate::{RouterKind, RoutingError};

/// Largest number of paths of a router, the limit of a topology.
const MAX_PATHS: u64 = 1 << 20;

/// The sizes of a rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<'a> {
    pub(super) kind: RouterKind,
    /// Number of choices for each part of the feature, the most significant digit of the path first. Only product k-means
    /// has several parts.
    pub(super) clusters: &'a [u32],
    /// D.
    pub(super) dimension: usize,
}

impl<'a> Shape<'a> {
    /// P, if the sizes can belong to a router.
    pub(super) fn paths(&self) -> Option<u32> {
        let one_part = self.clusters.len() == 1;
        if self.clusters.is_empty() || !(one_part || self.kind == RouterKind::ProductKMeans) {
            return None;
        }
        if self.clusters.len() > self.dimension {
            return None;
        }
        let mut paths = 1u64;
        for &clusters in self.clusters {
            paths = paths.checked_mul(u64::from(clusters)).filter(|paths| (1..=MAX_PATHS).contains(paths))?;
        }
        u32::try_from(paths).ok()
    }

    /// Number of values of the rule: centroids (K, width) of each part or weights (P, D), then biases (P).
    pub(super) fn values(&self) -> Option<usize> {
        let paths = self.paths()? as usize;
        match self.kind {
            RouterKind::Discriminative => paths.checked_mul(self.dimension.checked_add(1)?),
            RouterKind::KMeans | RouterKind::ProductKMeans | RouterKind::Random | RouterKind::Labels => {
                self.parts().try_fold(paths, |sum, part| {
                    sum.checked_add(part.components.len().checked_mul(part.clusters as usize)?)
                })
            }
        }
    }

    /// The parts of the feature.
    fn parts(&self) -> impl Iterator<Item = FeaturePart> + 'a {
        feature_parts(self.dimension, self.clusters)
    }

    /// Distances (P) of `features` (D) to every path: the squared distance to its centroids less its bias, or -ln of the
    /// classifier's probability. The number of `values` is [`Self::values`].
    pub(super) fn distances(&self, values: &[f32], features: &[f32]) -> Vec<f64> {
        match self.kind {
            RouterKind::Discriminative => surprises(values, features),
            RouterKind::KMeans | RouterKind::ProductKMeans | RouterKind::Random | RouterKind::Labels => {
                let mut rest = values;
                let mut sums = vec![0.0];
                for part in self.parts() {
                    let own = &features[part.components.clone()];
                    let (centroids, after) = rest.split_at(part.components.len() * part.clusters as usize);
                    rest = after;
                    let distances: Vec<f64> = centroids
                        .chunks_exact(own.len())
                        .map(|centroid| squared_distance(own, centroid))
                        .collect();
                    // Every sum so far with every distance: the index becomes the path's number, digit by digit.
                    sums = sums.iter().flat_map(|sum| distances.iter().map(move |own| sum + own)).collect();
                }
                sums.iter_mut().zip(rest).for_each(|(sum, &bias)| *sum -= f64::from(bias));
                sums
            }
        }
    }

    /// Squared distances of the parts of `features` (D) to the centroids of `path`, whose number has one digit for each part.
    /// The number of `values` is [`Self::values`], and the rule has centroids.
    pub(super) fn part_distances(&self, values: &[f32], features: &[f32], path: PathId) -> Vec<f64> {
        let (mut rest, mut digits) = (values, Vec::with_capacity(self.clusters.len()));
        let mut number = path.0;
        for &clusters in self.clusters.iter().rev() {
            digits.push((number % clusters) as usize);
            number /= clusters;
        }
        let distance = |(part, digit): (FeaturePart, usize)| {
            let own = &features[part.components.clone()];
            let (centroids, after) = rest.split_at(own.len() * part.clusters as usize);
            rest = after;
            squared_distance(own, &centroids[digit * own.len()..(digit + 1) * own.len()])
        };
        self.parts().zip(digits.into_iter().rev()).map(distance).collect()
    }

    /// A distance in the form that callers see: Euclidean, or -ln of a probability.
    pub(super) fn shown(&self, distance: f64) -> f32 {
        match self.kind {
            RouterKind::Discriminative => distance as f32,
            RouterKind::KMeans | RouterKind::ProductKMeans | RouterKind::Random | RouterKind::Labels => {
                distance.max(0.0).sqrt() as f32
            }
        }
    }
}

/// A contiguous part of a feature with its own clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeaturePart {
    pub(crate) components: std::ops::Range<usize>,
    pub(crate) clusters: u32,
}

/// Cuts `dimension` components into one part for each number of clusters, with lengths that differ by at most one.
pub(crate) fn feature_parts(dimension: usize, clusters: &[u32]) -> impl Iterator<Item = FeaturePart> + '_ {
    let count = clusters.len();
    let bound = move |part: usize| (part as u128 * dimension as u128 / count as u128) as usize;
    clusters
        .iter()
        .enumerate()
        .map(move |(part, &clusters)| FeaturePart { components: bound(part)..bound(part + 1), clusters })
}

/// -ln of the softmax of W x + b, for W (P, D) and then b (P) in `values`.
fn surprises(values: &[f32], features: &[f32]) -> Vec<f64> {
    let dimension = features.len();
    let paths = values.len() / (dimension + 1);
    let (weights, biases) = values.split_at(paths * dimension);
    let logits: Vec<f64> = weights
        .chunks_exact(dimension)
        .zip(biases)
        .map(|(weights, &bias)| {
            let product = |(&weight, &feature): (&f32, &f32)| f64::from(weight) * f64::from(feature);
            weights.iter().zip(features).map(product).sum::<f64>() + f64::from(bias)
        })
        .collect();
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    // In this order the largest logit has the smallest distance whatever the rounding.
    logits.iter().map(|logit| (largest - logit) + sum.ln()).collect()
}

/// The path with the smallest distance, the lowest path of equal ones.
pub(super) fn nearest(distances: &[f64]) -> (PathId, f64) {
    let mut best = (PathId(0), f64::INFINITY);
    for (path, &distance) in (0u32..).zip(distances) {
        if distance < best.1 {
            best = (PathId(path), distance);
        }
    }
    best
}

/// Checks that all numbers of a rule are finite.
pub(super) fn check_finite(values: &[f32], dimension: usize) -> Result<(), RoutingError> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(place) => {
            let (index, component) = ((place / dimension) as u64, place % dimension);
            Err(RoutingError::NotFinite { what: "row of the router", index, component })
        }
    }
}
