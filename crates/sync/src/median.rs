//! The median that leans to the smaller side.

/// The median; of two values in the middle the smaller one. `None` without values.
pub(crate) fn lower_median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}
