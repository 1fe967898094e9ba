//! Loss curves as SVG.

use std::fmt::Write;

use crate::LossPoint;
use crate::page::text;

/// That of the page, so that its letters have the size of all others.
const WIDTH: f64 = 1184.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 48.0;
const BOTTOM: f64 = 24.0;
/// Room for the names of the curves.
const RIGHT: f64 = 140.0;
const TOP: f64 = 10.0;

/// The curves of training and validation over rounds; `None` without a point.
pub(super) fn render(training: &[LossPoint], validation: &[LossPoint]) -> Option<String> {
    let all = || training.iter().chain(validation);
    let last = all().map(|point| point.rounds).max()?;
    let lowest = all().map(|point| point.loss).fold(f64::INFINITY, f64::min);
    let highest = all().map(|point| point.loss).fold(f64::NEG_INFINITY, f64::max);
    // A flat curve lies in the middle.
    let span = if highest - lowest > 1e-9 { highest - lowest } else { 1.0 };
    let lowest = if highest - lowest > 1e-9 { lowest } else { lowest - 0.5 };
    let x = |rounds: u64| LEFT + (WIDTH - LEFT - RIGHT) * rounds as f64 / last.max(1) as f64;
    let y = |loss: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (loss - lowest) / span);
    let mut out = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img aria-label=\"Loss by round\">");
    for line in 0..=4 {
        let loss = lowest + span * f64::from(line) / 4.0;
        let at = y(loss);
        let _ = write!(
            out,
            "<line x1={LEFT} x2={} y1={at:.1} y2={at:.1} stroke=\"var(--line)\"/><text x={} y={:.1} \
             text-anchor=end>{loss:.2}</text>",
            x(last),
            LEFT - 6.0,
            at + 4.0
        );
    }
    let _ = write!(
        out,
        "<text x={LEFT} y={0}>0</text><text x={1:.1} y={0} text-anchor=end>round {last}</text>",
        HEIGHT - 6.0,
        x(last)
    );
    for (curve, colour, name) in
        [(training, "var(--busy)", "training"), (validation, "var(--good)", "validation")]
    {
        let Some(end) = curve.last() else { continue };
        let points: Vec<String> =
            curve.iter().map(|point| format!("{:.1},{:.1}", x(point.rounds), y(point.loss))).collect();
        let _ = write!(
            out,
            "<polyline points=\"{}\" fill=none stroke=\"{colour}\" stroke-width=2 />\
             <circle cx={:.1} cy={:.1} r=3 fill=\"{colour}\"/><text x={:.1} y={:.1}>{} {:.3}</text>",
            points.join(" "),
            x(end.rounds),
            y(end.loss),
            x(end.rounds) + 8.0,
            y(end.loss) + 4.0,
            text(name),
            end.loss
        );
    }
    out.push_str("</svg>");
    Some(out)
}
