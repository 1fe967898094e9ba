//! Percentiles of measurements.

use serde::Serialize;

/// Percentiles of measured values. Each is a value that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half of the values are at most this.
    pub p50: f64,
    /// 90 % of the values are at most this.
    pub p90: f64,
    /// 99 % of the values are at most this.
    pub p99: f64,
    /// The largest value.
    pub most: f64,
}

impl Percentiles {
    /// The percentiles of values in any order; NaN (in JSON `null`) without values.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let [p50, p90, p99, most] = [0.5, 0.9, 0.99, 1.0].map(|share| percentile(&values, share));
        Self { p50, p90, p99, most }
    }
}

/// The quantile `share` of sorted values; NaN when there are none.
#[must_use]
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).or(sorted.last()).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let found = Percentiles::of((1..=200).rev().map(f64::from).collect());
        assert_eq!(found, Percentiles { p50: 100.0, p90: 180.0, p99: 198.0, most: 200.0 });
        assert!(Percentiles::of(Vec::new()).p50.is_nan());
    }
}
