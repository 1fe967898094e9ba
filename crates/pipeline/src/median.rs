//! The median of measurements.

/// Has a median.
pub trait Median {
    /// The median; of an even number of values the mean of the two in the middle. NaN without values.
    fn median(self) -> f64;
}

impl Median for Vec<f64> {
    fn median(mut self) -> f64 {
        self.sort_by(f64::total_cmp);
        let at = self.len() / 2;
        let upper = self.get(at).copied().unwrap_or(f64::NAN);
        if self.len() % 2 == 1 {
            upper
        } else {
            f64::midpoint(upper, self.get(at.wrapping_sub(1)).copied().unwrap_or(upper))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(vec![3.0, 1.0, 2.0].median(), 2.0);
        assert_eq!(vec![4.0, 1.0, 2.0, 3.0].median(), 2.5);
        assert!(Vec::<f64>::new().median().is_nan());
    }
}
