//! Mean and spread of a few numbers.

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
}
