//! The nearest centroid of many points.

use rayon::prelude::*;

/// Points that are searched together, so that a panel of centroids is read from memory once for all of them.
const BLOCK: usize = 64;
/// Points of one register tile.
const ROWS: usize = 4;
/// Centroids of one register tile.
const LANES: usize = 8;

/// Squared Euclidean distance between two points (D), in f64.
pub(crate) fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0f64; LANES];
    let (a_lanes, a_rest) = a.split_at(a.len() / LANES * LANES);
    let (b_lanes, b_rest) = b.split_at(a_lanes.len());
    for (a, b) in a_lanes.chunks_exact(LANES).zip(b_lanes.chunks_exact(LANES)) {
        for lane in 0..LANES {
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

/// Finds the nearest of a set of centroids, exactly.
///
/// ‖x‖² - 2x·c + ‖c‖² in f32 over all centroids leaves a few candidates, among which distances in f64 decide. The points
/// are centred first, because features of a language model lie far from the origin and close together.
pub(crate) struct CentroidSearch<'a> {
    dimension: usize,
    centroids: &'a [f32],
    mean: &'a [f32],
    /// Centred centroids, (ceil(K / LANES), D, LANES), the last panel padded with zeros.
    panels: Vec<f32>,
    /// ‖c‖² of each centred centroid.
    norms: Vec<f32>,
    /// The largest ‖c‖ of the centred centroids.
    radius: f64,
}

impl<'a> CentroidSearch<'a> {
    /// Prepares `centroids` (K, D), with K ≥ 1; `mean` (D) is subtracted from points and centroids in the f32 pass.
    pub(crate) fn new(centroids: &'a [f32], dimension: usize, mean: &'a [f32]) -> Self {
        let count = centroids.len() / dimension;
        let mut panels = vec![0f32; count.div_ceil(LANES) * dimension * LANES];
        let mut norms = Vec::with_capacity(count);
        let mut radius = 0f64;
        for (index, centroid) in centroids.chunks_exact(dimension).enumerate() {
            let panel = &mut panels[index / LANES * dimension * LANES..];
            let mut norm = 0f64;
            for (d, (&value, &mean)) in centroid.iter().zip(mean).enumerate() {
                let centred = value - mean;
                panel[d * LANES + index % LANES] = centred;
                norm += f64::from(centred) * f64::from(centred);
            }
            norms.push(norm as f32);
            radius = radius.max(norm.sqrt());
        }
        Self { dimension, centroids, mean, panels, norms, radius }
    }

    /// The nearest centroid of each of `points` (N, D), the lowest of equally near ones, and its squared distance.
    pub(crate) fn assign(&self, points: &[f32]) -> (Vec<u32>, Vec<f64>) {
        let count = points.len() / self.dimension;
        let mut assignments = vec![0; count];
        let mut distances = vec![0.0; count];
        points
            .par_chunks(BLOCK * self.dimension)
            .zip(assignments.par_chunks_mut(BLOCK))
            .zip(distances.par_chunks_mut(BLOCK))
            .for_each(|((points, assignments), distances)| self.assign_block(points, assignments, distances));
        (assignments, distances)
    }

    fn assign_block(&self, points: &[f32], assignments: &mut [u32], distances: &mut [f64]) {
        let (dimension, clusters) = (self.dimension, self.norms.len());
        let rows = assignments.len();
        // Centred points, (ceil(rows / ROWS), D, ROWS).
        let mut tiles = vec![0f32; rows.div_ceil(ROWS) * dimension * ROWS];
        let mut lengths = [0f64; BLOCK];
        for (row, point) in points.chunks_exact(dimension).enumerate() {
            let tile = &mut tiles[row / ROWS * dimension * ROWS..];
            for (d, (&value, &mean)) in point.iter().zip(self.mean).enumerate() {
                let centred = value - mean;
                tile[d * ROWS + row % ROWS] = centred;
                lengths[row] += f64::from(centred) * f64::from(centred);
            }
        }
        let mut scores = vec![0f32; rows * clusters];
        for (panel, centroids) in self.panels.chunks_exact(dimension * LANES).enumerate() {
            let first = panel * LANES;
            let width = LANES.min(clusters - first);
            for (tile, points) in tiles.chunks_exact(dimension * ROWS).enumerate() {
                let products = dot_tile(points, centroids);
                for (row, products) in products.iter().enumerate().take(rows - (tile * ROWS).min(rows)) {
                    let scores = &mut scores[(tile * ROWS + row) * clusters + first..][..width];
                    for lane in 0..width {
                        scores[lane] = self.norms[first + lane] - 2.0 * products[lane];
                    }
                }
            }
        }
        for row in 0..rows {
            let scores = &scores[row * clusters..][..clusters];
            let point = &points[row * dimension..][..dimension];
            (assignments[row], distances[row]) = self.decide(point, lengths[row].sqrt(), scores);
        }
    }

    /// Compares exactly the centroids whose f32 score is within twice its error bound of the best.
    fn decide(&self, point: &[f32], length: f64, scores: &[f32]) -> (u32, f64) {
        // A dot product of D terms is off by at most D·u·‖y‖‖c‖, the centring and the norms by a few u·(‖y‖ + ‖c‖)².
        let unit = f64::from(f32::EPSILON) / 2.0;
        let error = (2.0 * self.dimension as f64 + 16.0) * (unit * (length + self.radius).powi(2) + 1e-37);
        let limit = f64::from(scores.iter().copied().fold(f32::INFINITY, f32::min)) + 2.0 * error;
        let mut best = (0, f64::INFINITY);
        for (cluster, &score) in scores.iter().enumerate() {
            // An overflow leaves NaN, which rules nothing out.
            if f64::from(score) > limit && limit.is_finite() {
                continue;
            }
            let distance =
                squared_distance(point, &self.centroids[cluster * self.dimension..][..self.dimension]);
            if distance < best.1 {
                best = (cluster as u32, distance);
            }
        }
        best
    }
}

/// Dot products of ROWS points (D, ROWS) with LANES centroids (D, LANES).
#[inline]
fn dot_tile(points: &[f32], centroids: &[f32]) -> [[f32; LANES]; ROWS] {
    let mut sums = [[0f32; LANES]; ROWS];
    for (point, centroid) in points.chunks_exact(ROWS).zip(centroids.chunks_exact(LANES)) {
        for (sums, &point) in sums.iter_mut().zip(point) {
            for (sum, &centroid) in sums.iter_mut().zip(centroid) {
                *sum += point * centroid;
            }
        }
    }
    sums
}
