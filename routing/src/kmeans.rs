//! Lloyd's k-means with k-means++ seeding and restarts.
//!
//! The same points, settings and seed give the same bits whatever the number of threads: each point is assigned by
//! itself, and sums are taken in f64 over fixed groups of points, then over the groups in their order.

mod nearest;
mod seeding;
mod starts;

use std::collections::BTreeMap;

use dipaco_ops::with_vector_units;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

pub(crate) use self::nearest::squared_distance;
use self::nearest::{CentroidSearch, NearestCentroids, add};
use self::starts::Starts;
use crate::progress::{ProgressFn, RoutingProgress, report};
use crate::{RouterConfig, RoutingError};

/// The chosen clustering of all starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Clustering {
    /// Centroids (K, D), row-major.
    pub centroids: Vec<f32>,
    /// The nearest centroid of each point (N), the lowest of equally near ones.
    pub assignments: Vec<u32>,
    /// Number of points of each cluster (K).
    pub sizes: Vec<u64>,
    /// Sum of the squared distances between points and their centroids.
    pub inertia: f64,
    /// Iterations of the chosen start.
    pub iterations: usize,
}

/// Centroids and the assignment of the points to them.
struct State {
    centroids: Vec<f32>,
    assigned: NearestCentroids,
    inertia: f64,
}

impl State {
    fn into_clustering(self, iterations: usize) -> Clustering {
        let NearestCentroids { assignments, sizes, .. } = self.assigned;
        Clustering { centroids: self.centroids, assignments, sizes, inertia: self.inertia, iterations }
    }
}

/// Divides `points` (N, D), row-major, into `clusters` clusters, and keeps one of `config.restarts` starts: among those whose
/// inertia is at most 5 % above the lowest, the one with the most even clusters.
///
/// An empty cluster restarts at the farthest point of the largest cluster. Distances are exact to f64 rounding, so the
/// inertia falls with every accepted iteration.
///
/// # Errors
///
/// [`RoutingError::TooFewPoints`] if fewer than `clusters` points differ, [`RoutingError::NotFinite`] for a NaN or an
/// infinity, [`RoutingError::Shape`] if `points` is not a multiple of `dimension`, [`RoutingError::Config`] for a bad
/// setting, [`RoutingError::Cancelled`] if `progress` breaks.
pub fn kmeans(
    points: &[f32],
    dimension: usize,
    clusters: usize,
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Clustering, RoutingError> {
    check(points, dimension, clusters, config)?;
    let mean = mean_of(points, dimension);
    let search = Lloyd { points, dimension, mean: &mean, config };
    let mut starts = Starts::default();
    for restart in 0..config.restarts {
        // A stream for each start: its draws do not depend on the number of draws of the starts before.
        let mut random = ChaCha8Rng::seed_from_u64(config.seed);
        random.set_stream(restart as u64);
        let centroids = seeding::plus_plus(points, dimension, clusters, &mut random, &mut || {
            report(progress, RoutingProgress::KMeans { restart, iteration: 0, inertia: f64::INFINITY })
        })?;
        let (state, iterations) = search.run(centroids, restart, progress)?;
        starts.add(state.into_clustering(iterations));
    }
    starts.best().ok_or_else(|| RoutingError::Config {
        key: "restarts",
        value: "0".into(),
        problem: "must be at least 1",
    })
}

/// As [`kmeans`], with one start at the given `centroids` (K, D).
///
/// # Errors
///
/// As [`kmeans`]; also if a centroid is not finite or `centroids` is not a multiple of `dimension`.
pub fn kmeans_from(
    points: &[f32],
    dimension: usize,
    centroids: Vec<f32>,
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Clustering, RoutingError> {
    let clusters = centroids.len().checked_div(dimension).unwrap_or(0);
    check(points, dimension, clusters, config)?;
    check(&centroids, dimension, clusters, config)?;
    let mean = mean_of(points, dimension);
    let search = Lloyd { points, dimension, mean: &mean, config };
    let (state, iterations) = search.run(centroids, 0, progress)?;
    Ok(state.into_clustering(iterations))
}

fn check(
    points: &[f32],
    dimension: usize,
    clusters: usize,
    config: &RouterConfig,
) -> Result<(), RoutingError> {
    config.check()?;
    let count = points.len().checked_div(dimension).unwrap_or(0);
    if count * dimension != points.len() || dimension == 0 {
        let expected = (count + 1) * dimension.max(1);
        return Err(RoutingError::Shape { what: "points of k-means", expected, actual: points.len() });
    }
    // The loop reads a whole chunk: without an early end it becomes vector code.
    let finite = |values: &[f32]| values.iter().fold(true, |all, value| all & value.is_finite());
    const CHUNK: usize = 1 << 14;
    if let Some(chunk) = points.par_chunks(CHUNK).position_first(|values| !finite(values)) {
        let first = chunk * CHUNK;
        let within = points[first..].iter().position(|value| !value.is_finite()).unwrap_or(0);
        let (index, component) = (((first + within) / dimension) as u64, (first + within) % dimension);
        return Err(RoutingError::NotFinite { what: "point", index, component });
    }
    if clusters == 0 || clusters > count || u32::try_from(clusters).is_err() {
        let distinct = count.min(clusters);
        return Err(RoutingError::TooFewPoints { clusters, points: count, distinct });
    }
    Ok(())
}

/// Lloyd's iteration on a set of points.
struct Lloyd<'a> {
    /// (N, D), row-major.
    points: &'a [f32],
    dimension: usize,
    /// Mean of the points (D).
    mean: &'a [f32],
    config: &'a RouterConfig,
}

impl Lloyd<'_> {
    /// Iterates from `centroids` (K, D) until the inertia settles; returns the last state and the number of iterations.
    fn run(
        &self,
        centroids: Vec<f32>,
        restart: usize,
        progress: &mut ProgressFn<'_>,
    ) -> Result<(State, usize), RoutingError> {
        let mut state = self.assign(centroids);
        report(progress, RoutingProgress::KMeans { restart, iteration: 0, inertia: state.inertia })?;
        for iteration in 1..=self.config.iterations {
            let next = self.assign(next_centroids(self.points, self.dimension, &state));
            // Rounding of centroids to f32 can raise the inertia in the last bits once nothing is left to gain.
            if next.inertia >= state.inertia {
                return Ok((state, iteration - 1));
            }
            let gain = (state.inertia - next.inertia) / state.inertia;
            state = next;
            report(progress, RoutingProgress::KMeans { restart, iteration, inertia: state.inertia })?;
            // An empty cluster still has a point to gain in the next iteration, however small this gain was.
            let empty = state.assigned.sizes.contains(&0);
            if gain <= self.config.tolerance && !empty {
                return Ok((state, iteration));
            }
        }
        Ok((state, self.config.iterations))
    }

    fn assign(&self, centroids: Vec<f32>) -> State {
        let assigned = CentroidSearch::new(&centroids, self.dimension, self.mean).assign(self.points);
        let inertia = assigned.distances.iter().sum();
        State { centroids, assigned, inertia }
    }
}

/// The next centroids: the mean of each cluster's points, or its old centroid if it has none, after each empty cluster has
/// received a point.
fn next_centroids(points: &[f32], dimension: usize, state: &State) -> Vec<f32> {
    let NearestCentroids { sums, sizes, .. } = &state.assigned;
    let mut centroids = state.centroids.clone();
    let mean = |centroid: &mut [f32], sum: &[f64], size: u64| {
        if size > 0 {
            centroid.iter_mut().zip(sum).for_each(|(value, sum)| *value = (sum / size as f64) as f32);
        }
    };
    for (cluster, centroid) in centroids.chunks_exact_mut(dimension).enumerate() {
        mean(centroid, &sums[cluster * dimension..][..dimension], sizes[cluster]);
    }
    let moves = refill_empty(&state.assigned);
    if moves.is_empty() {
        return centroids;
    }
    tracing::debug!(refilled = moves.len(), "empty clusters restarted");
    // Donors lose their points: their means are taken again from sums without them, in the order of the clusters.
    let mut left: BTreeMap<usize, (Vec<f64>, u64)> = BTreeMap::new();
    for Move { point, from, to } in moves {
        let point = &points[point * dimension..][..dimension];
        centroids[to * dimension..][..dimension].copy_from_slice(point);
        let (sum, size) =
            left.entry(from).or_insert_with(|| (sums[from * dimension..][..dimension].to_vec(), sizes[from]));
        sum.iter_mut().zip(point).for_each(|(sum, &value)| *sum -= f64::from(value));
        *size -= 1;
    }
    for (cluster, (sum, size)) in left {
        mean(&mut centroids[cluster * dimension..][..dimension], &sum, size);
    }
    centroids
}

/// A point that moves to an empty cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Move {
    point: usize,
    from: usize,
    to: usize,
}

/// Gives every empty cluster the farthest point of the largest cluster. Donors need a point away from their centroid.
fn refill_empty(assigned: &NearestCentroids) -> Vec<Move> {
    let NearestCentroids { assignments, distances, sizes, .. } = assigned;
    if !sizes.contains(&0) {
        return Vec::new();
    }
    let (clusters, mut sizes) = (sizes.len(), sizes.clone());
    let mut farthest: Vec<Vec<usize>> = vec![Vec::new(); clusters];
    for (point, &cluster) in assignments.iter().enumerate() {
        if distances[point] > 0.0 {
            farthest[cluster as usize].push(point);
        }
    }
    // Ascending, so that `pop` takes the farthest point; of equally far points the first.
    for list in &mut farthest {
        list.sort_unstable_by(|&a, &b| distances[a].total_cmp(&distances[b]).then(b.cmp(&a)));
    }
    let mut moves = Vec::new();
    for to in (0..clusters).filter(|&cluster| sizes[cluster] == 0).collect::<Vec<_>>() {
        let donor = (0..clusters)
            .filter(|&cluster| sizes[cluster] > 1 && !farthest[cluster].is_empty())
            .max_by_key(|&cluster| (sizes[cluster], std::cmp::Reverse(cluster)));
        let Some(from) = donor else { break };
        let Some(point) = farthest[from].pop() else { break };
        moves.push(Move { point, from, to });
        sizes[from] -= 1;
        sizes[to] += 1;
    }
    moves
}

/// Mean of all points (D), which centring subtracts.
fn mean_of(points: &[f32], dimension: usize) -> Vec<f32> {
    const CHUNK: usize = 4096;
    let partial: Vec<Vec<f64>> = points
        .par_chunks(CHUNK * dimension)
        .map(|chunk| {
            let mut sum = vec![0f64; dimension];
            with_vector_units(
                #[inline(always)]
                || chunk.chunks_exact(dimension).for_each(|point| add(&mut sum, point)),
            );
            sum
        })
        .collect();
    let mut sum = vec![0f64; dimension];
    for partial in partial {
        sum.iter_mut().zip(partial).for_each(|(sum, value)| *sum += value);
    }
    let count = (points.len() / dimension) as f64;
    sum.into_iter().map(|value| (value / count) as f32).collect()
}

#[cfg(test)]
mod tests;
