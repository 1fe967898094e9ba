//! Labels of numbers.

/// Returns the label of a number on an axis with ticks `step` apart.
pub(crate) fn label(value: f64, step: f64) -> String {
    let size = value.abs();
    let (scaled, unit, step) = if size >= 1e9 {
        (value / 1e9, "G", step / 1e9)
    } else if size >= 1e6 {
        (value / 1e6, "M", step / 1e6)
    } else if size >= 1e4 {
        (value / 1e3, "k", step / 1e3)
    } else {
        (value, "", step)
    };
    // As many digits as neighbouring labels need to differ.
    let digits = if step > 0.0 { (-(step.log10() + 1e-9).floor()).clamp(0.0, 6.0) as usize } else { 0 };
    let text = format!("{scaled:.digits$}");
    // Small negative numbers round to -0.
    let text = if text.trim_start_matches('-').chars().all(|c| c == '0' || c == '.') {
        text.trim_start_matches('-').to_owned()
    } else {
        text.replace('-', "\u{2212}")
    };
    format!("{text}{unit}")
}
