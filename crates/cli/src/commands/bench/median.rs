//! The median of measurements.

/// Has a median.
pub(super) trait Median {
    /// The median; NaN without values.
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
