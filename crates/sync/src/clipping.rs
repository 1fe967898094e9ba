//! Centred clipping of the contributions to an outer step.

use crate::median::lower_median;

/// Number of times that the centre is estimated.
const ITERATIONS: usize = 3;

/// Centred clipping (arXiv:2012.10333, algorithm 2, of several iterations): each contribution counts with at most a
/// radius of its distance from a centre, and the clipped mean is the next centre.
///
/// The first centre is 0. The radius is a multiple of the median distance of the contributions from the centre, so it
/// follows the scale of the training. Of two distances in the middle the smaller one is the median: of two contributions
/// the longer one is shortened to the other's length, and nothing tells which of two equal lengths is wrong.
///
/// Every centre is a weighted sum of the contributions. Their inner products therefore say all that clipping needs, and
/// the result is the weighted mean of the contributions, each multiplied by a factor. The cost is n (n + 1) / 2
/// multiplications for each value of n contributions.
#[derive(Clone, Debug, PartialEq)]
pub struct Clipping {
    /// Inner products of the contributions, row by row.
    products: Vec<Vec<f64>>,
}

impl Clipping {
    /// Clipping of so many contributions.
    #[must_use]
    pub fn new(contributions: usize) -> Self {
        Self { products: vec![vec![0.0; contributions]; contributions] }
    }

    /// Adds the same slice of every contribution, in the order of the slices.
    pub fn add(&mut self, slices: &[&[f32]]) {
        for (row, (products, one)) in self.products.iter_mut().zip(slices).enumerate() {
            for (product, other) in products.iter_mut().zip(slices).take(row + 1) {
                for (a, b) in one.iter().zip(*other) {
                    *product += f64::from(*a) * f64::from(*b);
                }
            }
        }
    }

    /// Factors of the contributions: the clipped mean is the sum of weight × factor × contribution.
    ///
    /// `weights` are those of the mean, and `radius` is the multiple of the median distance. Contributions within the
    /// radius of every centre keep the factor 1, but for rounding. Distances whose median is 0 have no scale, and are
    /// not clipped.
    #[must_use]
    pub fn factors(&self, weights: &[f32], radius: f64) -> Vec<f32> {
        let total: f64 = weights.iter().copied().map(f64::from).sum();
        if total <= 0.0 {
            return vec![1.0; weights.len()];
        }
        let weights: Vec<f64> = weights.iter().map(|weight| f64::from(*weight) / total).collect();
        // The centre is the sum of share × contribution.
        let mut shares = vec![0.0; weights.len()];
        for _ in 0..ITERATIONS {
            let distances = self.distances(&shares);
            let limit = radius * lower_median(&distances).unwrap_or(0.0);
            let clip = |distance: f64| if limit > 0.0 && distance > limit { limit / distance } else { 1.0 };
            let clipped: Vec<f64> =
                weights.iter().zip(&distances).map(|(weight, distance)| weight * clip(*distance)).collect();
            let kept = 1.0 - clipped.iter().sum::<f64>();
            shares = shares.iter().zip(&clipped).map(|(share, clipped)| share * kept + clipped).collect();
        }
        let factor = |(share, weight): (f64, f64)| if weight > 0.0 { (share / weight) as f32 } else { 1.0 };
        shares.into_iter().zip(weights).map(factor).collect()
    }

    /// Distances of the contributions from the sum of share × contribution.
    fn distances(&self, shares: &[f64]) -> Vec<f64> {
        let product = |i: usize, j: usize| self.products[i.max(j)][i.min(j)];
        let count = self.products.len();
        let with_centre = |i: usize| (0..count).map(|j| shares[j] * product(i, j)).sum::<f64>();
        let with_centre: Vec<f64> = (0..count).map(with_centre).collect();
        let centre: f64 = with_centre.iter().zip(shares).map(|(product, share)| product * share).sum();
        // Rounding may leave a square just below 0.
        let distance = |i: usize| (product(i, i) - 2.0 * with_centre[i] + centre).max(0.0).sqrt();
        (0..count).map(distance).collect()
    }
}
