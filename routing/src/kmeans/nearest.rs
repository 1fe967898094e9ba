//! The nearest centroid of many points, and the sums of the points of each.

use dipaco_ops::{PackedRows, with_vector_units};
use rayon::prelude::*;

/// Points that are searched together: with the scores of all centroids they stay in the second-level cache.
const BLOCK: usize = 96;
/// Values that are treated side by side.
const LANES: usize = 16;
/// Independent sums of a distance, so that additions do not wait for each other.
const SUMS: usize = 32;
/// Points of a group at least.
const LEAST_GROUP: usize = 1024;
/// Groups at most. Their sums are added in the order of the groups, so that the number of threads changes no bit.
const GROUPS: usize = 64;
/// Memory that the sums of all groups may take, in values, before there are fewer groups.
const SUM_VALUES: usize = 1 << 23;

/// Squared Euclidean distance between two points (D), in f64.
#[inline(always)]
pub(crate) fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0f64; SUMS];
    let (a_lanes, a_rest) = a.as_chunks::<SUMS>();
    let (b_lanes, b_rest) = b.as_chunks::<SUMS>();
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for lane in 0..SUMS {
            let difference = f64::from(a[lane]) - f64::from(b[lane]);
            sums[lane] += difference * difference;
        }
    }
    let mut total: f64 = sums.iter().sum();
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        let difference = f64::from(a) - f64::from(b);
        total += difference * difference;
    }
    total
}

/// Where each point belongs.
pub(super) struct Assigned {
    /// The nearest centroid of each point, the lowest of equally near ones (N).
    pub(super) assignments: Vec<u32>,
    /// The squared distance to it (N).
    pub(super) distances: Vec<f64>,
    /// The sum of the points of each centroid (K, D).
    pub(super) sums: Vec<f64>,
    /// How many they are (K).
    pub(super) sizes: Vec<u64>,
}

/// Finds the nearest of a set of centroids, exactly.
///
/// ‖x‖² - 2x·c + ‖c‖² in f32 over all centroids leaves a few candidates, among which distances in f64 decide. The points
/// are centred first, because features of a language model lie far from the origin and close together.
pub(super) struct CentroidSearch<'a> {
    dimension: usize,
    centroids: &'a [f32],
    mean: &'a [f32],
    /// Centred centroids.
    packed: PackedRows,
    /// ‖c‖² of each centred centroid.
    norms: Vec<f32>,
    /// The largest ‖c‖ of the centred centroids.
    radius: f64,
}

/// Memory of a task.
struct Scratch {
    /// Centred points (BLOCK, D).
    centred: Vec<f32>,
    /// ‖x‖² of each.
    squares: [f32; BLOCK],
    /// Products, then scores (BLOCK, K).
    scores: Vec<f32>,
}

impl<'a> CentroidSearch<'a> {
    /// Prepares `centroids` (K, D), with K ≥ 1; `mean` (D) is subtracted from points and centroids in the f32 pass.
    pub(super) fn new(centroids: &'a [f32], dimension: usize, mean: &'a [f32]) -> Self {
        let mut centred = Vec::with_capacity(centroids.len());
        let mut norms = Vec::with_capacity(centroids.len() / dimension);
        let mut radius = 0f64;
        for centroid in centroids.chunks_exact(dimension) {
            let mut norm = 0f64;
            for (&value, &mean) in centroid.iter().zip(mean) {
                let value = value - mean;
                centred.push(value);
                norm += f64::from(value) * f64::from(value);
            }
            norms.push(norm as f32);
            radius = radius.max(norm.sqrt());
        }
        Self { dimension, centroids, mean, packed: PackedRows::new(&centred, dimension), norms, radius }
    }

    /// The nearest centroid of each of `points` (N, D).
    pub(super) fn assign(&self, points: &[f32]) -> Assigned {
        let count = points.len() / self.dimension;
        let groups = (SUM_VALUES / self.centroids.len()).clamp(4, GROUPS);
        let group = count.div_ceil(groups).max(LEAST_GROUP);
        let mut assignments = vec![0; count];
        let mut distances = vec![0.0; count];
        let partial: Vec<(Vec<f64>, Vec<u64>)> = points
            .par_chunks(group * self.dimension)
            .zip(assignments.par_chunks_mut(group))
            .zip(distances.par_chunks_mut(group))
            .with_max_len(1)
            .map(|((points, assignments), distances)| self.assign_group(points, assignments, distances))
            .collect();
        let mut partial = partial.into_iter();
        let (mut sums, mut sizes) = partial.next().unwrap_or_default();
        for (more_sums, more_sizes) in partial {
            sums.iter_mut().zip(more_sums).for_each(|(sum, more)| *sum += more);
            sizes.iter_mut().zip(more_sizes).for_each(|(size, more)| *size += more);
        }
        Assigned { assignments, distances, sums, sizes }
    }

    fn assign_group(
        &self,
        points: &[f32],
        assignments: &mut [u32],
        distances: &mut [f64],
    ) -> (Vec<f64>, Vec<u64>) {
        let (dimension, clusters) = (self.dimension, self.norms.len());
        let mut sums = vec![0f64; self.centroids.len()];
        let mut sizes = vec![0u64; clusters];
        let mut scratch = Scratch {
            centred: vec![0.0; BLOCK * dimension],
            squares: [0.0; BLOCK],
            scores: vec![0.0; BLOCK * clusters],
        };
        for ((points, assignments), distances) in points
            .chunks(BLOCK * dimension)
            .zip(assignments.chunks_mut(BLOCK))
            .zip(distances.chunks_mut(BLOCK))
        {
            let rows = assignments.len();
            with_vector_units(
                #[inline(always)]
                || self.centre(points, &mut scratch),
            );
            let centred = &scratch.centred[..rows * dimension];
            self.packed.products(centred, &mut scratch.scores[..rows * clusters]);
            with_vector_units(
                #[inline(always)]
                || {
                    for (row, point) in points.chunks_exact(dimension).enumerate() {
                        let scores = &mut scratch.scores[row * clusters..][..clusters];
                        let (cluster, distance) = self.decide(point, scratch.squares[row], scores);
                        (assignments[row], distances[row]) = (cluster as u32, distance);
                        sizes[cluster] += 1;
                        add(&mut sums[cluster * dimension..][..dimension], point);
                    }
                },
            );
        }
        (sums, sizes)
    }

    #[inline(always)]
    fn centre(&self, points: &[f32], scratch: &mut Scratch) {
        let rows = points.chunks_exact(self.dimension).zip(scratch.centred.chunks_exact_mut(self.dimension));
        for ((point, centred), square) in rows.zip(&mut scratch.squares) {
            let mut sums = [0f32; LANES];
            let (point, point_rest) = point.as_chunks::<LANES>();
            let (mean, mean_rest) = self.mean.as_chunks::<LANES>();
            let (centred, centred_rest) = centred.as_chunks_mut::<LANES>();
            for ((point, mean), centred) in point.iter().zip(mean).zip(centred) {
                for lane in 0..LANES {
                    let value = point[lane] - mean[lane];
                    centred[lane] = value;
                    sums[lane] += value * value;
                }
            }
            let mut sum: f32 = sums.iter().sum();
            for ((&point, &mean), centred) in point_rest.iter().zip(mean_rest).zip(centred_rest) {
                *centred = point - mean;
                sum += *centred * *centred;
            }
            *square = sum;
        }
    }

    /// The nearest centroid of a point, from its products with the centred ones: exact distances are compared of those
    /// whose f32 score is within twice its error bound of the best.
    #[inline(always)]
    fn decide(&self, point: &[f32], square: f32, products: &mut [f32]) -> (usize, f64) {
        let least = self.scores(products);
        // A dot product of D terms is off by at most D·u·‖y‖‖c‖, the centring and the norms by a few u·(‖y‖ + ‖c‖)².
        let unit = f64::from(f32::EPSILON) / 2.0;
        let reach = 1.001 * f64::from(square).sqrt() + self.radius;
        let error = (2.0 * self.dimension as f64 + 16.0) * (unit * reach * reach + 1e-37);
        let limit = (f64::from(least) + 2.0 * error) as f32;
        // An overflow leaves NaN, which rules nothing out.
        let limit = if limit.is_finite() { limit.next_up() } else { f32::INFINITY };
        if let Some(cluster) = only_candidate(products, limit) {
            return (cluster, squared_distance(point, self.centroid(cluster)));
        }
        let mut best = (0, f64::INFINITY);
        for (cluster, &score) in products.iter().enumerate() {
            if score > limit {
                continue;
            }
            let distance = squared_distance(point, self.centroid(cluster));
            if distance < best.1 {
                best = (cluster, distance);
            }
        }
        best
    }

    #[inline(always)]
    fn centroid(&self, cluster: usize) -> &[f32] {
        &self.centroids[cluster * self.dimension..][..self.dimension]
    }

    /// Makes products x·c scores ‖c‖² - 2x·c, and gives the least.
    #[inline(always)]
    fn scores(&self, products: &mut [f32]) -> f32 {
        let mut least = [f32::INFINITY; LANES];
        let (lanes, rest) = products.as_chunks_mut::<LANES>();
        let (norms, norms_rest) = self.norms.as_chunks::<LANES>();
        for (products, norms) in lanes.iter_mut().zip(norms) {
            for lane in 0..LANES {
                let score = norms[lane] - 2.0 * products[lane];
                products[lane] = score;
                least[lane] = if score < least[lane] { score } else { least[lane] };
            }
        }
        let mut least = least.into_iter().fold(f32::INFINITY, f32::min);
        for (product, norm) in rest.iter_mut().zip(norms_rest) {
            *product = norm - 2.0 * *product;
            least = least.min(*product);
        }
        least
    }
}

/// The one score that is not above the limit, when there is just one.
#[inline(always)]
fn only_candidate(scores: &[f32], limit: f32) -> Option<usize> {
    let mut counts = [0u32; LANES];
    let mut found = [0u32; LANES];
    let (lanes, rest) = scores.as_chunks::<LANES>();
    for (chunk, scores) in (0u32..).zip(lanes) {
        for lane in 0..LANES {
            let near = u32::from(!(scores[lane] > limit));
            counts[lane] += near;
            found[lane] |= near * chunk;
        }
    }
    let mut count: u32 = counts.iter().sum();
    let mut place = 0;
    for lane in 0..LANES {
        if counts[lane] > 0 {
            place = found[lane] as usize * LANES + lane;
        }
    }
    for (index, &score) in rest.iter().enumerate() {
        if !(score > limit) {
            count += 1;
            place = lanes.len() * LANES + index;
        }
    }
    (count == 1).then_some(place)
}

/// Adds a point to a sum.
#[inline(always)]
pub(super) fn add(sum: &mut [f64], point: &[f32]) {
    for (sum, &value) in sum.iter_mut().zip(point) {
        *sum += f64::from(value);
    }
}
