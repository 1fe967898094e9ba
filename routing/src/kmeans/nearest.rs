//! The nearest centroid of many points, and the sum of the points of each centroid.

use dipaco_ops::{PackedRows, with_vector_units};
use rayon::prelude::*;

/// Points of a block: with the scores of all centroids they stay in the second-level cache.
const BLOCK: usize = 48;
/// Lanes of a vector: scores are compared LANES at a time.
const LANES: usize = 16;
/// Independent partial sums of a distance, so that additions do not wait for each other.
const SUMS: usize = 32;
/// Least number of points of a group.
const LEAST_GROUP: usize = 1024;
/// Largest number of groups. Their sums are added in the order of the groups, so the number of threads changes no bit.
const GROUPS: usize = 64;
/// Largest number of values in the sums of all groups; larger sums mean fewer groups.
const SUM_VALUES: usize = 1 << 23;

/// Square of the largest length at which no sum of products overflows f32.
const LARGEST: f64 = 1e37;

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
    let mut total = reduce(sums, |a, b| a + b);
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        let difference = f64::from(a) - f64::from(b);
        total += difference * difference;
    }
    total
}

/// The assignment of points to centroids.
pub(super) struct NearestCentroids {
    /// The nearest centroid of each point, the lowest of equally near ones (N).
    pub(super) assignments: Vec<u32>,
    /// The squared distance to it (N).
    pub(super) distances: Vec<f64>,
    /// The sum of the points of each centroid (K, D).
    pub(super) sums: Vec<f64>,
    /// Number of points of each centroid (K).
    pub(super) sizes: Vec<u64>,
}

/// Finds the nearest of a set of centroids, exactly.
///
/// ‖x‖² - 2x·c + ‖c‖² in f32 over all centroids leaves a few candidates; distances in f64 decide between them. The points
/// are centred first, because features of a language model lie far from the origin and close together: centring makes the
/// f32 errors small against the differences of distances.
pub(super) struct CentroidSearch<'a> {
    dimension: usize,
    centroids: &'a [f32],
    mean: &'a [f32],
    /// Centred centroids, filled with zeros to whole LANES.
    packed: PackedRows,
    /// ‖c‖² of each centred centroid, filled with infinities to whole LANES, so that the filling is never nearest.
    norms: Vec<f32>,
    /// The largest ‖c‖ of the centred centroids.
    radius: f64,
}

/// Buffers of a task.
struct Scratch {
    /// Centred points (BLOCK, D).
    centred: Vec<f32>,
    /// ‖x‖² of each.
    squares: [f32; BLOCK],
    /// Products with all centroids (BLOCK, K), K filled up to whole LANES.
    products: Vec<f32>,
}

/// The points of each centroid in a group.
#[derive(Default)]
struct ClusterSums {
    /// Sum of the points (K, D).
    sums: Vec<f64>,
    /// Number of the points (K).
    sizes: Vec<u64>,
}

impl<'a> CentroidSearch<'a> {
    /// Prepares `centroids` (K, D), K ≥ 1. The f32 pass subtracts `mean` (D) from points and centroids.
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
        let padded = norms.len().next_multiple_of(LANES);
        centred.resize(padded * dimension, 0.0);
        norms.resize(padded, f32::INFINITY);
        Self { dimension, centroids, mean, packed: PackedRows::new(&centred, dimension), norms, radius }
    }

    /// The nearest centroid of each of `points` (N, D).
    pub(super) fn assign(&self, points: &[f32]) -> NearestCentroids {
        let count = points.len() / self.dimension;
        let groups = (SUM_VALUES / self.centroids.len()).clamp(4, GROUPS);
        let group = count.div_ceil(groups).max(LEAST_GROUP);
        let mut assignments = vec![0; count];
        let mut distances = vec![0.0; count];
        let partial: Vec<ClusterSums> = points
            .par_chunks(group * self.dimension)
            .zip(assignments.par_chunks_mut(group))
            .zip(distances.par_chunks_mut(group))
            .with_max_len(1)
            .map(|((points, assignments), distances)| self.assign_group(points, assignments, distances))
            .collect();
        let mut partial = partial.into_iter();
        let ClusterSums { mut sums, mut sizes } = partial.next().unwrap_or_default();
        for more in partial {
            sums.iter_mut().zip(more.sums).for_each(|(sum, more)| *sum += more);
            sizes.iter_mut().zip(more.sizes).for_each(|(size, more)| *size += more);
        }
        NearestCentroids { assignments, distances, sums, sizes }
    }

    fn assign_group(&self, points: &[f32], assignments: &mut [u32], distances: &mut [f64]) -> ClusterSums {
        let (dimension, padded) = (self.dimension, self.norms.len());
        let mut sums = vec![0f64; self.centroids.len()];
        let mut sizes = vec![0u64; self.centroids.len() / dimension];
        let mut scratch = Scratch {
            centred: vec![0.0; BLOCK * dimension],
            squares: [0.0; BLOCK],
            products: vec![0.0; BLOCK * padded],
        };
        for ((points, assignments), distances) in points
            .chunks(BLOCK * dimension)
            .zip(assignments.chunks_mut(BLOCK))
            .zip(distances.chunks_mut(BLOCK))
        {
            let rows = assignments.len();
            with_vector_units(
                #[inline(always)]
                || {
                    let rows =
                        points.chunks_exact(dimension).zip(scratch.centred.chunks_exact_mut(dimension));
                    for ((point, centred), square) in rows.zip(&mut scratch.squares) {
                        *square = centre(point, self.mean, centred);
                    }
                },
            );
            let centred = &scratch.centred[..rows * dimension];
            self.packed.products(centred, &mut scratch.products[..rows * padded]);
            with_vector_units(
                #[inline(always)]
                || {
                    for (row, point) in points.chunks_exact(dimension).enumerate() {
                        let products = &scratch.products[row * padded..][..padded];
                        let (cluster, distance) = self.decide(point, scratch.squares[row], products);
                        (assignments[row], distances[row]) = (cluster as u32, distance);
                        sizes[cluster] += 1;
                        add(&mut sums[cluster * dimension..][..dimension], point);
                    }
                },
            );
        }
        ClusterSums { sums, sizes }
    }

    /// The nearest centroid of a point and the squared distance, from ‖x‖² and the products with the centred centroids. The
    /// f32 score ‖c‖² - 2x·c may be off by an error bound, so every centroid within twice the bound of the least score is a
    /// candidate, and exact distances decide between the candidates.
    #[inline(always)]
    fn decide(&self, point: &[f32], square: f32, products: &[f32]) -> (usize, f64) {
        let reach = 1.001 * f64::from(square).sqrt() + self.radius;
        // A dot product of D terms is off by at most D·u·‖y‖‖c‖, the centring and the norms by a few u·(‖y‖ + ‖c‖)².
        let unit = f64::from(f32::EPSILON) / 2.0;
        let error = (2.0 * self.dimension as f64 + 16.0) * (unit * reach * reach + 1e-37);
        // Longer vectors overflow f32 scores, so all centroids become candidates.
        let fits = reach * reach < LARGEST;
        let lanes = self.least(products);
        let limit = f64::from(reduce(lanes.least, f32::min)) + 2.0 * error;
        let near = (limit as f32).next_up();
        let (mut candidates, mut cluster) = (0u32, 0u32);
        for lane in 0..LANES {
            let is_near = lanes.least[lane] <= near;
            candidates += u32::from(is_near);
            cluster |= if is_near { lanes.chunk[lane] * LANES as u32 + lane as u32 } else { 0 };
        }
        if fits && candidates == 1 && reduce(lanes.second, f32::min) > near {
            return (cluster as usize, squared_distance(point, self.centroid(cluster as usize)));
        }
        self.compare(point, products, if fits { limit } else { f64::INFINITY })
    }

    /// The nearest of the centroids with a score up to `limit`, by exact distances. They are rarely more than a few.
    #[inline(never)]
    fn compare(&self, point: &[f32], products: &[f32], limit: f64) -> (usize, f64) {
        let mut best = (0, f64::INFINITY);
        let clusters = self.centroids.len() / self.dimension;
        for (cluster, (&product, norm)) in products.iter().zip(&self.norms).enumerate().take(clusters) {
            if limit.is_finite() && f64::from(norm - 2.0 * product) > limit {
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

    /// The least scores ‖c‖² - 2x·c of products x·c in each lane. None may be NaN.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "a loop over lanes becomes vector code")]
    fn least(&self, products: &[f32]) -> Lanes {
        let mut lanes =
            Lanes { least: [f32::INFINITY; LANES], second: [f32::INFINITY; LANES], chunk: [0; LANES] };
        let (products, norms) = (products.as_chunks::<LANES>().0, self.norms.as_chunks::<LANES>().0);
        for (chunk, (products, norms)) in (0u32..).zip(products.iter().zip(norms)) {
            let scores: [f32; LANES] = std::array::from_fn(|lane| norms[lane] - 2.0 * products[lane]);
            for lane in 0..LANES {
                let above = if scores[lane] > lanes.least[lane] { scores[lane] } else { lanes.least[lane] };
                lanes.second[lane] = if above < lanes.second[lane] { above } else { lanes.second[lane] };
            }
            for lane in 0..LANES {
                lanes.chunk[lane] = if scores[lane] < lanes.least[lane] { chunk } else { lanes.chunk[lane] };
            }
            for lane in 0..LANES {
                lanes.least[lane] =
                    if scores[lane] < lanes.least[lane] { scores[lane] } else { lanes.least[lane] };
            }
        }
        lanes
    }
}

/// Scores in lanes: lane l has the scores of the centroids l, l + LANES and so on.
struct Lanes {
    /// The least score.
    least: [f32; LANES],
    /// The second least score.
    second: [f32; LANES],
    /// Number of the chunk of LANES centroids with the least score.
    chunk: [u32; LANES],
}

/// Combines all lanes, halves with halves: vector operations, instead of a chain in which each lane waits for the one
/// before.
#[inline(always)]
fn reduce<T: Copy, const N: usize>(mut values: [T; N], combine: impl Fn(T, T) -> T) -> T {
    let mut width = N / 2;
    while width > 0 {
        for lane in 0..width {
            values[lane] = combine(values[lane], values[lane + width]);
        }
        width /= 2;
    }
    values[0]
}

/// Writes `point` - `mean` (D) into `centred` and returns its squared length.
#[inline(always)]
fn centre(point: &[f32], mean: &[f32], centred: &mut [f32]) -> f32 {
    for ((centred, &point), &mean) in centred.iter_mut().zip(point).zip(mean) {
        *centred = point - mean;
    }
    // A separate loop: sums over lanes would keep the compiler from making the first loop vector code.
    let mut sums = [0f32; LANES];
    let (lanes, rest) = centred.as_chunks::<LANES>();
    for values in lanes {
        for lane in 0..LANES {
            sums[lane] += values[lane] * values[lane];
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|value| value * value).sum::<f32>()
}

/// Adds a point to a sum.
#[inline(always)]
pub(super) fn add(sum: &mut [f64], point: &[f32]) {
    for (sum, &value) in sum.iter_mut().zip(point) {
        *sum += f64::from(value);
    }
}
