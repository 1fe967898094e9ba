//! Linear maps of features, fitted on documents: they decide how much each component counts.
//!
//! Distances between documents do not depend on where the origin lies, so no map takes means away.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::RouterConfig;

/// A component whose own variance is less than this share of its whole variance is a sum of earlier components up to
/// rounding.
const OWN_VARIANCE: f64 = 1e-6;
/// Documents whose products are summed together.
const GROUP: usize = 4096;

/// The kind of a map of features (D).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeatureMap {
    /// Features stay as they are.
    None,
    /// Each component is multiplied by its factor (D).
    Factors,
    /// Each component becomes a sum of itself and the earlier ones. The numbers are the rows of a lower triangular matrix
    /// (D, D), row i with its i + 1 numbers.
    Triangle,
}

impl FeatureMap {
    /// The map that settings ask for.
    pub(crate) fn of(config: &RouterConfig) -> Self {
        match (config.whiten, config.standardise) {
            (true, _) => Self::Triangle,
            (false, true) => Self::Factors,
            (false, false) => Self::None,
        }
    }

    /// Number of the map's numbers for features (D); `None` if they are too many to count.
    pub(crate) fn numbers(self, dimension: usize) -> Option<usize> {
        match self {
            Self::None => Some(0),
            Self::Factors => Some(dimension),
            Self::Triangle => Some(dimension.checked_add(1)?.checked_mul(dimension)? / 2),
        }
    }

    /// The numbers of the map that fits points (N, D).
    pub(crate) fn fit(self, points: &[f32], dimension: usize) -> Vec<f32> {
        match self {
            Self::None => Vec::new(),
            Self::Factors => factors(points, dimension),
            Self::Triangle => triangle(points, dimension),
        }
    }

    /// Features (D) after the map with these numbers.
    pub(crate) fn apply<'a>(self, numbers: &[f32], features: &'a [f32]) -> Cow<'a, [f32]> {
        match self {
            Self::None => Cow::Borrowed(features),
            Self::Factors => features.iter().zip(numbers).map(|(value, factor)| value * factor).collect(),
            Self::Triangle => {
                let row = |component: usize| {
                    let begin = component * (component + 1) / 2;
                    let row = numbers.get(begin..=begin + component).unwrap_or_default();
                    row.iter().zip(features).map(|(&a, &x)| f64::from(a) * f64::from(x)).sum::<f64>() as f32
                };
                (0..features.len()).map(row).collect()
            }
        }
    }

    /// Points (N, D) after the map.
    pub(crate) fn apply_all<'a>(
        self,
        numbers: &[f32],
        points: &'a [f32],
        dimension: usize,
    ) -> Cow<'a, [f32]> {
        if self == Self::None {
            return Cow::Borrowed(points);
        }
        let mut mapped = vec![0.0; points.len()];
        mapped
            .par_chunks_mut(dimension)
            .zip(points.par_chunks(dimension))
            .for_each(|(mapped, point)| mapped.copy_from_slice(&self.apply(numbers, point)));
        Cow::Owned(mapped)
    }
}

/// The inverse of the standard deviation of each component of points (N, D); 0 for a component that never changes.
fn factors(points: &[f32], dimension: usize) -> Vec<f32> {
    let count = (points.len() / dimension) as f64;
    let component = |component: usize| {
        let mean = mean(points, dimension, component);
        let squares = values(points, dimension, component).map(|value| (value - mean).powi(2));
        let deviation = (squares.sum::<f64>() / count).sqrt();
        if changes(deviation, mean) { (1.0 / deviation) as f32 } else { 0.0 }
    };
    (0..dimension).into_par_iter().map(component).collect()
}

/// The values of one component of points (N, D).
fn values(points: &[f32], dimension: usize, component: usize) -> impl Iterator<Item = f64> {
    points.iter().skip(component).step_by(dimension).map(|&value| f64::from(value))
}

/// The mean of one component of points (N, D).
fn mean(points: &[f32], dimension: usize, component: usize) -> f64 {
    values(points, dimension, component).sum::<f64>() / (points.len() / dimension) as f64
}

/// Rounding makes a tiny deviation of equal values.
fn changes(deviation: f64, mean: f64) -> bool {
    deviation > 1e-6 * mean.abs()
}

/// The inverse of the Cholesky factor of the covariance of points (N, D): the map after which components have variance 1 and
/// are not correlated. Row i of the map is 0 if component i never changes, or says nothing that earlier components do not
/// say.
///
/// Each turn of such a map has this property too, and changes no distance. This one keeps the first part of the features to
/// the first components, and leaves to each next part what the parts before do not tell.
fn triangle(points: &[f32], dimension: usize) -> Vec<f32> {
    let covariance = covariance(points, dimension);
    // Rows of the factor, of which only those that count have numbers.
    let mut factor: Vec<Vec<f64>> = Vec::with_capacity(dimension);
    for (i, row) in covariance.iter().enumerate() {
        let mut new = vec![0.0; i + 1];
        for j in 0..i {
            let known: f64 = new.iter().zip(&factor[j][..j]).map(|(a, b)| a * b).sum();
            let pivot = factor[j][j];
            new[j] = if pivot > 0.0 { (row[j] - known) / pivot } else { 0.0 };
        }
        let own = row[i] - new[..i].iter().map(|value| value * value).sum::<f64>();
        new[i] = if own > OWN_VARIANCE * row[i] { own.sqrt() } else { 0.0 };
        factor.push(new);
    }
    let mut inverse: Vec<Vec<f64>> = Vec::with_capacity(dimension);
    for (i, row) in factor.iter().enumerate() {
        let mut new = vec![0.0; i + 1];
        let pivot = row[i];
        if pivot > 0.0 {
            for (&weight, earlier) in row.iter().zip(&inverse) {
                new.iter_mut().zip(earlier).for_each(|(new, earlier)| *new -= weight * earlier / pivot);
            }
            new[i] = 1.0 / pivot;
        }
        inverse.push(new);
    }
    inverse.into_iter().flatten().map(|value| value as f32).collect()
}

/// The rows of the lower triangle of the covariance of points (N, D). A component that never changes has zeros.
fn covariance(points: &[f32], dimension: usize) -> Vec<Vec<f64>> {
    let count = (points.len() / dimension) as f64;
    let mean = |component| mean(points, dimension, component);
    let means: Vec<f64> = (0..dimension).into_par_iter().map(mean).collect();
    let zeros = || (0..dimension).map(|i| vec![0.0; i + 1]).collect::<Vec<_>>();
    let of_group = |group: &[f32]| {
        let mut sums = zeros();
        let mut centred = vec![0.0; dimension];
        for point in group.chunks_exact(dimension) {
            for ((centred, &value), mean) in centred.iter_mut().zip(point).zip(&means) {
                *centred = f64::from(value) - mean;
            }
            for (row, &own) in sums.iter_mut().zip(&centred) {
                row.iter_mut().zip(&centred).for_each(|(sum, other)| *sum += own * other);
            }
        }
        sums
    };
    // Groups of a fixed length, added in their order: the number of threads changes no bit.
    let groups: Vec<Vec<Vec<f64>>> = points.par_chunks(GROUP * dimension).map(of_group).collect();
    let mut all = zeros();
    for group in &groups {
        for (row, of_group) in all.iter_mut().zip(group) {
            row.iter_mut().zip(of_group).for_each(|(sum, part)| *sum += part / count);
        }
    }
    let constant = |(&mean, row): (&f64, &Vec<f64>)| !changes(row.last().map_or(0.0, |own| own.sqrt()), mean);
    let constant: Vec<bool> = means.iter().zip(&all).map(constant).collect();
    for (row, &own) in all.iter_mut().zip(&constant) {
        for (sum, _) in row.iter_mut().zip(&constant).filter(|&(_, &other)| own || other) {
            *sum = 0.0;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points (N, 3). The second component follows the first.
    fn points(third: impl Fn(f32, f32) -> f32) -> Vec<f32> {
        (0u32..6000)
            .flat_map(|n| {
                let noise = |by: u32| (f64::from(n % 997 * by % 997) / 997.0 - 0.5) as f32;
                let (a, b) = (noise(31), noise(77));
                let second = 5.0 + 3.0 * a + 0.1 * b;
                [a, second, third(a, second)]
            })
            .collect()
    }

    #[test]
    fn whitened_components_have_variance_one_and_no_correlation() {
        let noise = |a: f32, b: f32| (a * 977.0).sin() * 40.0 + b;
        let points = points(noise);
        let numbers = FeatureMap::Triangle.fit(&points, 3);
        assert_eq!(Some(numbers.len()), FeatureMap::Triangle.numbers(3));
        let whitened = FeatureMap::Triangle.apply_all(&numbers, &points, 3);
        for (i, row) in covariance(&whitened, 3).iter().enumerate() {
            for (j, value) in row.iter().enumerate() {
                let expected = if i == j { 1.0 } else { 0.0 };
                assert!((value - expected).abs() < 1e-4, "{i}, {j}: {value}");
            }
        }
        // The first component keeps its direction.
        assert!(numbers[0] > 0.0 && whitened[0] == numbers[0] * points[0]);
    }

    /// The numbers come from numpy: `inv(cholesky(cov(points.T, bias=True)))`.
    #[test]
    fn the_triangle_is_that_of_numpy() {
        let points = [1.0, 2.0, 0.0, 2.0, 3.5, -1.0, 0.0, 0.5, 2.0, -1.0, -2.0, 0.5, 4.0, 5.0, 4.0];
        let expected = [0.581238, -2.320521, 1.700184, -2.211680, 1.339536, 0.822353];
        for (found, expected) in FeatureMap::Triangle.fit(&points, 3).iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} {expected}");
        }
    }

    #[test]
    fn a_sum_of_earlier_components_does_not_count() {
        let numbers = FeatureMap::Triangle.fit(&points(|a, b| 2.0 * a - b), 3);
        assert_eq!(numbers[3..], [0.0; 3], "{numbers:?}");
        assert!(numbers[..3].iter().all(|number| number.is_finite()) && numbers[2] > 0.0);
        let constant = FeatureMap::Triangle.fit(&points(|_, _| 0.1), 3);
        assert_eq!(constant[3..], [0.0; 3], "{constant:?}");
    }

    #[test]
    fn points_and_single_features_are_mapped_alike() {
        let points = points(|a, b| a * b);
        for map in [FeatureMap::None, FeatureMap::Factors, FeatureMap::Triangle] {
            let numbers = map.fit(&points, 3);
            let all = map.apply_all(&numbers, &points, 3);
            for (mapped, point) in all.chunks(3).zip(points.chunks(3)).take(50) {
                assert_eq!(mapped, &*map.apply(&numbers, point));
            }
        }
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        let points = points(|a, b| (a * 977.0).sin() + b);
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| FeatureMap::Triangle.fit(&points, 3))
        };
        assert_eq!(with(1), with(3));
    }
}
