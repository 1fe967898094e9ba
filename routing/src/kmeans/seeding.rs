//! k-means++: the first centroids.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::squared_distance;
use crate::RoutingError;

/// Draws `clusters` of the `points` (N, D): the first evenly, each next one with a probability in proportion to its
/// squared distance from the nearest of those that were drawn (Arthur and Vassilvitskii, 2007).
///
/// `alive` is called before each draw and may stop it.
pub(super) fn plus_plus(
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
        distances.par_iter_mut().zip(points.par_chunks_exact(dimension)).for_each(|(distance, point)| {
            *distance = distance.min(squared_distance(point, centroid));
        });
        let total: f64 = distances.iter().sum();
        if total <= 0.0 {
            if drawn == 1 && count > 1 {
                return Err(RoutingError::Identical { points: count });
            }
            // Every point coincides with a drawn one, and those all differ.
            return Err(RoutingError::TooFewPoints { clusters, points: count, distinct: drawn });
        }
        chosen = draw(&distances, total, random);
    }
    Ok(centroids)
}

/// A point with a probability in proportion to its weight; never one with weight 0.
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
