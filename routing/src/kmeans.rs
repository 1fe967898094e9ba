//! Lloyd's k-means with k-means++ seeding and restarts.
//!
//! The same points, settings and seed give the same bits whatever the number of threads: each point is treated by
//! itself, and every sum is taken in the order of the points, in f64.

mod nearest;
mod seeding;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use self::nearest::CentroidSearch;
pub(crate) use self::nearest::squared_distance;
use crate::progress::{Progress, ProgressFn, report};
use crate::{RouterConfig, RoutingError};

/// The best clustering of all starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Clustering {
    /// Centroids (K, D), row-major.
    pub centroids: Vec<f32>,
    /// The nearest centroid of each point, the lowest one of several.
    pub assignments: Vec<u32>,
    /// Points of each cluster.
    pub sizes: Vec<u64>,
    /// Sum of the squared distances between points and their centroids.
    pub inertia: f64,
    /// Iterations of the start that won.
    pub iterations: usize,
}

/// Points, their centroids and how far they are.
struct State {
    centroids: Vec<f32>,
    assignments: Vec<u32>,
    /// Squared distance of each point to its centroid.
    distances: Vec<f64>,
    inertia: f64,
}

/// Divides `points` (N, D), row-major, into `clusters` clusters, and keeps the best of `config.restarts` starts.
///
/// A cluster that runs empty restarts at the farthest point of the largest cluster. Distances are exact to f64
/// rounding, so the inertia falls with every iteration that is taken.
///
/// # Errors
///
/// [`RoutingError::TooFewPoints`] when fewer than `clusters` points differ, [`RoutingError::NotFinite`] for a NaN or an
/// infinity, [`RoutingError::Shape`] when `points` is not a multiple of `dimension`, [`RoutingError::Config`] for a bad
/// setting, [`RoutingError::Cancelled`] when `progress` says so.
pub fn kmeans(
    points: &[f32],
    dimension: usize,
    clusters: usize,
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Clustering, RoutingError> {
    config.check()?;
    let count = points.len().checked_div(dimension).unwrap_or(0);
    if count * dimension != points.len() || dimension == 0 {
        let expected = (count + 1) * dimension.max(1);
        return Err(RoutingError::Shape { what: "points of k-means", expected, actual: points.len() });
    }
    if let Some(place) = points.par_iter().position_first(|value| !value.is_finite()) {
        let (index, component) = ((place / dimension) as u64, place % dimension);
        return Err(RoutingError::NotFinite { what: "point", index, component });
    }
    if clusters == 0 || clusters > count || u32::try_from(clusters).is_err() {
        let distinct = count.min(clusters);
        return Err(RoutingError::TooFewPoints { clusters, points: count, distinct });
    }
    let mean = mean_of(points, dimension);
    let mut best: Option<(State, usize)> = None;
    for restart in 0..config.restarts {
        let mut random = ChaCha8Rng::seed_from_u64(config.seed);
        random.set_stream(restart as u64);
        let (state, iterations) =
            lloyd(points, dimension, clusters, &mean, config, &mut random, restart, progress)?;
        if best.as_ref().is_none_or(|(known, _)| state.inertia < known.inertia) {
            best = Some((state, iterations));
        }
    }
    let Some((state, iterations)) = best else {
        return Err(RoutingError::Config {
            key: "restarts",
            value: "0".into(),
            problem: "must be at least 1",
        });
    };
    let sizes = sizes_of(&state.assignments, clusters);
    let State { centroids, assignments, inertia, .. } = state;
    Ok(Clustering { centroids, assignments, sizes, inertia, iterations })
}

#[allow(
    clippy::too_many_arguments,
    reason = "one start has exactly these inputs; a struct would only rename them"
)]
fn lloyd(
    points: &[f32],
    dimension: usize,
    clusters: usize,
    mean: &[f32],
    config: &RouterConfig,
    random: &mut ChaCha8Rng,
    restart: usize,
    progress: &mut ProgressFn<'_>,
) -> Result<(State, usize), RoutingError> {
    let centroids = seeding::plus_plus(points, dimension, clusters, random, &mut || {
        report(progress, Progress::KMeans { restart, iteration: 0, inertia: f64::INFINITY })
    })?;
    let mut state = assign(points, dimension, mean, centroids);
    report(progress, Progress::KMeans { restart, iteration: 0, inertia: state.inertia })?;
    for iteration in 1..=config.iterations {
        let mut assignments = state.assignments.clone();
        let refilled = refill_empty(&mut assignments, &state.distances, clusters);
        if refilled > 0 {
            tracing::debug!(restart, iteration, refilled, "empty clusters restarted");
        }
        let centroids = means(points, dimension, clusters, &assignments, &state.centroids);
        let next = assign(points, dimension, mean, centroids);
        // Rounding of centroids to f32 can raise the inertia in the last bits once nothing is left to gain.
        if next.inertia >= state.inertia {
            return Ok((state, iteration - 1));
        }
        let gain = (state.inertia - next.inertia) / state.inertia;
        state = next;
        report(progress, Progress::KMeans { restart, iteration, inertia: state.inertia })?;
        let empty = sizes_of(&state.assignments, clusters).contains(&0);
        if gain <= config.tolerance && !empty {
            return Ok((state, iteration));
        }
    }
    Ok((state, config.iterations))
}

fn assign(points: &[f32], dimension: usize, mean: &[f32], centroids: Vec<f32>) -> State {
    let search = CentroidSearch::new(&centroids, dimension, mean);
    let (assignments, distances) = search.assign(points);
    let inertia = distances.iter().sum();
    State { centroids, assignments, distances, inertia }
}

/// Gives every empty cluster the farthest point of the largest cluster that has points apart from its centroid.
/// Returns how many clusters were refilled.
fn refill_empty(assignments: &mut [u32], distances: &[f64], clusters: usize) -> usize {
    let mut sizes = sizes_of(assignments, clusters);
    if !sizes.contains(&0) {
        return 0;
    }
    let mut farthest: Vec<Vec<usize>> = vec![Vec::new(); clusters];
    for (point, &cluster) in assignments.iter().enumerate() {
        if distances[point] > 0.0 {
            farthest[cluster as usize].push(point);
        }
    }
    // The last of each list is the farthest; of equally far ones, the first point.
    for list in &mut farthest {
        list.sort_unstable_by(|&a, &b| distances[a].total_cmp(&distances[b]).then(b.cmp(&a)));
    }
    let mut refilled = 0;
    for empty in (0..clusters).filter(|&cluster| sizes[cluster] == 0).collect::<Vec<_>>() {
        let donor = (0..clusters)
            .filter(|&cluster| sizes[cluster] > 1 && !farthest[cluster].is_empty())
            .max_by_key(|&cluster| (sizes[cluster], std::cmp::Reverse(cluster)));
        let Some(donor) = donor else { break };
        let Some(point) = farthest[donor].pop() else { break };
        assignments[point] = empty as u32;
        sizes[donor] -= 1;
        sizes[empty] += 1;
        refilled += 1;
    }
    refilled
}

/// The mean of each cluster's points, or its old centroid where it has none.
fn means(points: &[f32], dimension: usize, clusters: usize, assignments: &[u32], old: &[f32]) -> Vec<f32> {
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); clusters];
    for (point, &cluster) in assignments.iter().enumerate() {
        members[cluster as usize].push(point);
    }
    let mut centroids = old.to_vec();
    centroids
        .par_chunks_exact_mut(dimension)
        .zip(&members)
        .filter(|(_, members)| !members.is_empty())
        .for_each(|(centroid, members)| {
            let mut sum = vec![0f64; dimension];
            for &point in members {
                add(&mut sum, &points[point * dimension..][..dimension]);
            }
            let count = members.len() as f64;
            for (value, sum) in centroid.iter_mut().zip(sum) {
                *value = (sum / count) as f32;
            }
        });
    centroids
}

/// The mean of all points, which centring subtracts.
fn mean_of(points: &[f32], dimension: usize) -> Vec<f32> {
    const CHUNK: usize = 4096;
    let partial: Vec<Vec<f64>> = points
        .par_chunks(CHUNK * dimension)
        .map(|chunk| {
            let mut sum = vec![0f64; dimension];
            chunk.chunks_exact(dimension).for_each(|point| add(&mut sum, point));
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

fn add(sum: &mut [f64], point: &[f32]) {
    for (sum, &value) in sum.iter_mut().zip(point) {
        *sum += f64::from(value);
    }
}

fn sizes_of(assignments: &[u32], clusters: usize) -> Vec<u64> {
    let mut sizes = vec![0; clusters];
    for &cluster in assignments {
        sizes[cluster as usize] += 1;
    }
    sizes
}

#[cfg(test)]
mod tests;
