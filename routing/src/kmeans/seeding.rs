//! k-means++: drawing the first centroids.

use dipaco_ops::with_vector_units;
use rand::Rng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::squared_distance;
use crate::RoutingError;

/// Points per cluster of the sample that the first centroids are drawn from. Each draw reads the whole sample.
const SAMPLE: usize = 256;
/// Points of a task.
const CHUNK: usize = 512;

/// Draws `clusters` of the `points` (N, D), or of a sample if there are many points. The first is drawn evenly, each next
/// with a probability in proportion to its squared distance from the nearest drawn point (Arthur and Vassilvitskii, 2007).
///
/// `alive` is called before each draw and may stop it with an error.
pub(super) fn plus_plus(
    points: &[f32],
    dimension: usize,
    clusters: usize,
    random: &mut ChaCha8Rng,
    alive: &mut dyn FnMut() -> Result<(), RoutingError>,
) -> Result<Vec<f32>, RoutingError> {
    let (count, wanted) = (points.len() / dimension, clusters.saturating_mul(SAMPLE));
    if count > wanted {
        let mut chosen = index::sample(random, count, wanted).into_vec();
        chosen.sort_unstable();
        let mut sample = Vec::with_capacity(wanted * dimension);
        chosen.iter().for_each(|&point| sample.extend_from_slice(&points[point * dimension..][..dimension]));
        match draw_all(&sample, dimension, clusters, random, alive) {
            // The sample may have too few different points although all points together have enough.
            Err(RoutingError::TooFewPoints { .. } | RoutingError::Identical { .. }) => {}
            drawn => return drawn,
        }
    }
    draw_all(points, dimension, clusters, random, alive)
}

fn draw_all(
    points: &[f32],
    dimension: usize,
    clusters: usize,
    random: &mut ChaCha8Rng,
    alive: &mut dyn FnMut() -> Result<(), RoutingError>,
) -> Result<Vec<f32>, RoutingError> {
    let count = points.len() / dimension;
    let mut centroids = Vec::with_capacity(clusters * dimension);
    let mut chosen = random.random_range(0..count);
    let mut distances = vec![f64::INFINITY; count];
    for drawn in 1..=clusters {
        alive()?;
        let centroid = &points[chosen * dimension..][..dimension];
        centroids.extend_from_slice(centroid);
        if drawn == clusters {
            break;
        }
        distances.par_chunks_mut(CHUNK).zip(points.par_chunks(CHUNK * dimension)).for_each(
            |(distances, points)| {
                with_vector_units(
                    #[inline(always)]
                    || {
                        for (distance, point) in distances.iter_mut().zip(points.chunks_exact(dimension)) {
                            *distance = distance.min(squared_distance(point, centroid));
                        }
                    },
                );
            },
        );
        let total: f64 = distances.iter().sum();
        if total <= 0.0 {
            if drawn == 1 && count > 1 {
                return Err(RoutingError::Identical { points: count });
            }
            // Every point equals a drawn point, and the drawn points all differ.
            return Err(RoutingError::TooFewPoints { clusters, points: count, distinct: drawn });
        }
        chosen = draw(&distances, total, random);
    }
    Ok(centroids)
}

/// Draws a point with a probability in proportion to its weight; never a point with weight 0.
fn draw(weights: &[f64], total: f64, random: &mut ChaCha8Rng) -> usize {
    let target = random.random::<f64>() * total;
    let mut sum = 0.0;
    let mut last = 0;
    for (point, &weight) in weights.iter().enumerate() {
        if weight > 0.0 {
            sum += weight;
            last = point;
            if sum > target {
                return point;
            }
        }
    }
    last
}
