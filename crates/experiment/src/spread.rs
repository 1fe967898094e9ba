//! Mean, spread and confidence interval of a few numbers.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

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
    /// Of differences between two runs with the same seed it is the paired interval.
    #[must_use]
    pub fn interval(&self) -> Option<(f64, f64)> {
        let deviation = self.deviation?;
        let count = self.count as f64;
        let quantile = StudentsT::new(0.0, 1.0, count - 1.0).ok()?.inverse_cdf(0.975);
        let half = quantile * deviation / count.sqrt();
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
