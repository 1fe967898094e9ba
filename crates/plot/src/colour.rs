//! Colours that people with the common forms of colour blindness tell apart.

/// The palette of Okabe and Ito with grey instead of yellow, which is too faint for a line.
const LINES: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00", "#888888"];

/// Dashes of the lines. When the colours are used up, the next lines have the next dashes.
const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];

/// Points of viridis, evenly spaced.
const VIRIDIS: [(f64, f64, f64); 9] = [
    (68.0, 1.0, 84.0),
    (71.0, 44.0, 122.0),
    (59.0, 81.0, 139.0),
    (44.0, 113.0, 142.0),
    (33.0, 144.0, 141.0),
    (39.0, 173.0, 129.0),
    (92.0, 200.0, 99.0),
    (170.0, 220.0, 50.0),
    (253.0, 231.0, 37.0),
];

/// Returns the colour of the line with this number.
pub(crate) fn line(number: usize) -> &'static str {
    LINES[number % LINES.len()]
}

/// Returns the dashes of the line with this number.
pub(crate) fn dash(number: usize) -> &'static str {
    DASHES[number / LINES.len() % DASHES.len()]
}

/// Returns the colour of a share from 0 to 1.
pub(crate) fn shade(share: f64) -> String {
    let place = share.clamp(0.0, 1.0) * (VIRIDIS.len() - 1) as f64;
    let below = (place.floor() as usize).min(VIRIDIS.len() - 2);
    let part = place - below as f64;
    let mix = |from: f64, to: f64| from + (to - from) * part;
    let ((r0, g0, b0), (r1, g1, b1)) = (VIRIDIS[below], VIRIDIS[below + 1]);
    format!("rgb({:.0},{:.0},{:.0})", mix(r0, r1), mix(g0, g1), mix(b0, b1))
}

/// Returns the colour of text on [`shade`].
pub(crate) fn on_shade(share: f64) -> &'static str {
    if share > 0.6 { "#000000" } else { "#ffffff" }
}
