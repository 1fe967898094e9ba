//! Mean and spread of a few numbers.

use serde::{Deserialize, Serialize};

/// Mean, sample standard deviation and range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many numbers.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their sample standard deviation (divided by n - 1); absent for one number.
    pub deviation: Option<f64>,
    /// The smallest.
    pub lowest: f64,
    /// The largest.
    pub highest: f64,
}

impl Spread {
    /// Of some numbers; `None` when there are none.
    #[must_use]
    pub fn of(numbers: &[f64]) -> Option<Self> {
        let count = numbers.len();
        if count == 0 {
            return None;
        }
        // As many numbers as seeds.
        #[allow(clippy::cast_precision_loss)]
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        let spread = Spread::of(&[2.0, 4.0, 9.0]).unwrap();
        assert_eq!((spread.count, spread.mean, spread.lowest, spread.highest), (3, 5.0, 2.0, 9.0));
        // statistics.stdev([2, 4, 9]) of Python.
        assert!((spread.deviation.unwrap() - 3.605_551_275_463_989).abs() < 1e-12);
        assert_eq!(Spread::of(&[3.0]).unwrap().deviation, None);
        assert_eq!(Spread::of(&[]), None);
    }
}
