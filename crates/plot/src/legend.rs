//! What the lines are, right of the plot.

use crate::canvas::{Anchor, Canvas};
use crate::font;
use crate::frame::TICK;

/// The most pixels of a name.
const WIDEST: f64 = 260.0;
const SWATCH: f64 = 26.0;
const HEIGHT: f64 = 20.0;

/// A line of a legend.
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    pub(crate) colour: &'a str,
    pub(crate) dash: &'a str,
    pub(crate) marked: bool,
}

/// Pixels that a legend takes, margins included; none without names.
pub(crate) fn width(entries: &[Entry<'_>]) -> f64 {
    let widest = entries.iter().map(|entry| font::width(entry.name, TICK).min(WIDEST)).fold(0.0, f64::max);
    if entries.is_empty() { 16.0 } else { widest + SWATCH + 34.0 }
}

/// Pixels down.
pub(crate) fn height(entries: &[Entry<'_>]) -> f64 {
    HEIGHT * entries.len() as f64
}

pub(crate) fn draw(canvas: &mut Canvas, (x, y): (f64, f64), entries: &[Entry<'_>]) {
    for (index, entry) in entries.iter().enumerate() {
        let middle = y + HEIGHT * (index as f64 + 0.5);
        canvas.line((x, middle), (x + SWATCH, middle), entry.colour, 2.2, entry.dash);
        if entry.marked {
            canvas.dot((x + SWATCH / 2.0, middle), 3.5, entry.colour, "#ffffff");
        }
        let name = font::fitted(entry.name, TICK, WIDEST);
        canvas.text((x + SWATCH + 8.0, middle + TICK * 0.36), TICK, Anchor::Start, &name);
    }
}
