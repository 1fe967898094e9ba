//! Mean, spread and confidence interval of a few numbers.

use serde::{Deserialize, Serialize};

/// Mean, sample standard deviation and range of some numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Number of numbers.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation (divided by n - 1); `None` for one number.
    pub deviation: Option<f64>,
    /// Smallest number.
    pub lowest: f64,
    /// Largest number.
    pub highest: f64,
}

/// The 0.975 quantiles of Student's t distribution with 1, 2, … 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706_205, 4.302_653, 3.182_446, 2.776_445, 2.570_582, 2.446_912, 2.364_624, 2.306_004, 2.262_157,
    2.228_139, 2.200_985, 2.178_813, 2.160_369, 2.144_787, 2.131_450, 2.119_905, 2.109_816, 2.100_922,
    2.093_024, 2.085_963, 2.079_614, 2.073_873, 2.068_658, 2.063_899, 2.059_539, 2.055_529, 2.051_831,
    2.048_407, 2.045_230, 2.042_272,
];

impl Spread {
    /// The spread of some numbers; `None` without numbers.
    #[must_use]
    pub fn of(numbers: &[f64]) -> Option<Self> {
        let count = numbers.len();
        if count == 0 {
            return None;
        }
        let n = count as f64;
        let mean = numbers.iter().sum::<f64>() / n;
        let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
        Some(Self {
            count,
            mean,
            deviation: (count > 1).then(|| (squares / (n - 1.0)).sqrt()),
            lowest: numbers.iter().copied().fold(f64::INFINITY, f64::min),
            highest: numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    /// Both ends of the 95 % confidence interval of the mean, by Student's t distribution; `None` for one number.
    ///
    /// Of differences between two runs with the same seed it is the paired interval. More than 31 numbers take the quantile
    /// of 31, so their interval is slightly too wide.
    #[must_use]
    pub fn interval(&self) -> Option<(f64, f64)> {
        let quantile = STUDENT[(self.count.checked_sub(2)?).min(STUDENT.len() - 1)];
        let half = quantile * self.deviation? / (self.count as f64).sqrt();
        Some((self.mean - half, self.mean + half))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        let spread = Spread::of(&[2.0, 4.0, 9.0]).unwrap();
        assert_eq!((spread.count, spread.mean, spread.lowest, spread.highest), (3, 5.0, 2.0, 9.0));
        // The expected value is Python's statistics.stdev([2, 4, 9]).
        assert!((spread.deviation.unwrap() - 3.605_551_275_463_989).abs() < 1e-12);
        assert_eq!(Spread::of(&[3.0]).unwrap().deviation, None);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn the_interval_of_the_mean_is_that_of_students_t() {
        // The expected values are those of scipy.stats.t.interval(0.95, n - 1, mean, scipy.stats.sem(numbers)).
        let (low, high) = Spread::of(&[2.0, 4.0, 9.0]).unwrap().interval().unwrap();
        assert!((low + 3.956_685_895).abs() < 1e-5 && (high - 13.956_685_895).abs() < 1e-5, "{low} {high}");
        let numbers: Vec<f64> = (0..10).map(|number| f64::from(number * number)).collect();
        let (low, high) = Spread::of(&numbers).unwrap().interval().unwrap();
        assert!((low - 8.251_903_124).abs() < 1e-4 && (high - 48.748_096_876).abs() < 1e-4, "{low} {high}");
        assert_eq!(Spread::of(&[3.0]).unwrap().interval(), None);
    }
}
